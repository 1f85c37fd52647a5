#!/usr/bin/env bash
# Everything that must hold before a change goes in: `make test`.
#
#   tools/test.sh [step...]     without arguments: all steps
#
# Goes on after a failure, prints the time of each step, and at the very end one line that adds up all tests.
set -uo pipefail

checkout=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$checkout" || exit 1
log=$(mktemp -d)
trap 'rm -rf "$log"' EXIT

# One set of features for all builds, so that they share their work; the suites need the failpoints.
features=(--features thaw-proto/failpoints)
target=${CARGO_TARGET_DIR:-$checkout/target}

step_tools() { tools/install.sh packages runsc containerd cargo-deny client-suite critest gvisor-shim; }
step_format() { cargo fmt --all --check; }
step_clippy() { cargo clippy --locked --workspace --all-targets "${features[@]}" -- -D warnings; }
step_docs() { RUSTDOCFLAGS='-D warnings' cargo doc --locked --workspace --no-deps --quiet; }
# No advisories: they need the network, and must not make an unchanged tree fail.
step_deny() { cargo fetch --locked --quiet && .tools/bin/cargo-deny --offline --locked --log-level error check bans licenses sources; }
step_build() { cargo test --locked --workspace --no-run --quiet "${features[@]}" && cargo build --locked --workspace --bins --quiet "${features[@]}"; }
# Always the whole workspace, so that every step uses the same builds.
step_unit() {
    local tests=() file
    for file in */tests/*.rs */tests/*/main.rs; do
        [[ $file == tests/* ]] && continue
        file=${file%/main.rs}
        tests+=(--test "$(basename "$file" .rs)")
    done
    cargo test --locked --workspace "${features[@]}" --lib --bins "${tests[@]}" && cargo test --locked --workspace "${features[@]}" --doc --quiet
}
suite() { THAW_BINARIES=$target/debug cargo test --locked --workspace "${features[@]}" --test "$1" -- --test-threads=1; }

steps=("$@")
if [[ ${#steps[@]} -eq 0 ]]; then
    steps=(tools format clippy docs deny build unit)
    for file in tests/tests/*.rs; do
        # Needs earlier versions of containerd: `make conform`.
        [[ $file == */versions.rs ]] && continue
        [[ -e $file ]] && steps+=("suite:$(basename "$file" .rs)")
    done
fi

failed=()
rows=()
all=$SECONDS
for step in "${steps[@]}"; do
    printf '\n=== %s\n' "$step"
    started=$SECONDS
    case $step in
        suite:*) suite "${step#suite:}" 2>&1 | tee "$log/$step" ;;
        *) "step_$step" 2>&1 | tee "$log/$step" ;;
    esac
    status=${PIPESTATUS[0]}
    result=ok
    if [[ $status -ne 0 ]]; then
        result=FAILED
        failed+=("$step")
    fi
    rows+=("$(printf '%-28s %-7s %5d s' "$step" "$result" $((SECONDS - started)))")
    # Nothing else can work without these.
    [[ $status -ne 0 && ($step == tools || $step == build) ]] && break
done

printf '\n=== summary\n'
printf '%s\n' "${rows[@]}"
[[ ${#failed[@]} -eq 0 ]] || printf 'failed: %s\n' "${failed[*]}"
cat "$log"/* | awk -v steps=${#failed[@]} -v took=$((SECONDS - all)) '
    /^test result:/ {
        for (i = 1; i < NF; i++) {
            if ($(i + 1) ~ /^passed/) passed += $i
            if ($(i + 1) ~ /^failed/) failed += $i
            if ($(i + 1) ~ /^ignored/) ignored += $i
        }
    }
    END {
        printf "test result: %s. %d passed; %d failed; %d ignored; finished in %d s\n", \
            (steps || failed) ? "FAILED" : "ok", passed, failed, ignored, took
    }'
[[ ${#failed[@]} -eq 0 ]]
