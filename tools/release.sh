#!/usr/bin/env bash
# Builds Thaw's binaries as they are released: static and stripped. Arguments go to cargo, e.g. `-p thaw-testkit`.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
command -v cargo >/dev/null || { echo "cargo is missing: install Rust with rustup (https://rustup.rs)" >&2; exit 1; }

target=x86_64-unknown-linux-gnu
echo "[build] release binaries"
# Naming the target keeps the flag away from build scripts and procedural macros, which cannot be static.
RUSTFLAGS='-C target-feature=+crt-static' cargo build --locked --release --target "$target" \
    -p thaw-shim -p thaw-runsc -p thaw-node -p thaw-cli "$@"
for binary in containerd-shim-thaw-v1 thaw-gofer thawd thaw; do
    file=${CARGO_TARGET_DIR:-target}/$target/release/$binary
    # ldd fails for a static executable.
    if [[ $(ldd "$file" 2>/dev/null) == *'=>'* ]]; then
        echo "[build] error: $file is not static" >&2
        exit 1
    fi
done
