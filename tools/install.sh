#!/usr/bin/env bash
# Installs the real components that Thaw's tests and demo use into .tools/ of this checkout.
#
#   tools/install.sh [runsc] [containerd] [packages] [python-rootfs] [cargo-deny]
#                    [client-suite] [critest] [gvisor-shim] [old-containerds]
#
# Without arguments: all of them. What is there in the right version is left alone. Existing ones are used instead where
# THAW_RUNSC, THAW_CONTAINERD, THAW_CTR, THAW_BUSYBOX or THAW_PYTHON_ROOTFS name them.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
checkout=$(dirname "$here")
tools=$checkout/.tools
bin=$tools/bin
log=$tools/log
# shellcheck source=tools/versions.env
source "$here/versions.env"

say() { printf '[tools] %s\n' "$*"; }
die() { printf '[tools] error: %s\n' "$*" >&2; exit 1; }

# --- Prerequisites: one clear error each. ---

need_machine() {
    [[ $(uname -s) == Linux && $(uname -m) == x86_64 ]] || die "Thaw needs Linux on x86-64, this is $(uname -s) on $(uname -m)"
    [[ $(id -u) == 0 ]] || die "containers need root: run it again as root, e.g. 'sudo make tools'"
}
need_go() { command -v go >/dev/null || die "go is missing: install Go 1.26 or newer (https://go.dev/doc/install) and put it into PATH"; }
need_cargo() { command -v cargo >/dev/null || die "cargo is missing: install Rust with rustup (https://rustup.rs) and put it into PATH"; }
need_apt() { command -v apt-get >/dev/null || die "apt-get is missing: this script installs $1 on Debian only; install it yourself, or set $2"; }

# --- runsc ---

has_runsc() { [[ -n ${THAW_RUNSC:-} ]] || [[ "$("$bin/runsc" --version 2>/dev/null | head -n 1)" == "runsc version $RUNSC_VERSION" ]]; }
check_runsc() { need_go; }
install_runsc() {
    CGO_ENABLED=0 GOBIN=$bin go install \
        -ldflags "-s -w -X gvisor.dev/gvisor/runsc/version.version=$RUNSC_VERSION" "$RUNSC_MODULE"
}

# --- containerd, ctr and containerd-shim-runc-v2 ---

has_containerd() {
    [[ -n ${THAW_CONTAINERD:-} && -n ${THAW_CTR:-} ]] && return
    local name said
    for name in containerd ctr containerd-shim-runc-v2; do
        # Not through a pipe: a reader that has seen enough would make the writer fail.
        said=$("$bin/$name" -v 2>/dev/null) || return 1
        [[ $said == *" ${CONTAINERD_VERSION#v}"* ]] || return 1
    done
}
check_containerd() { need_go; }
install_containerd() {
    local module=github.com/containerd/containerd/v2/cmd
    CGO_ENABLED=0 GOBIN=$bin go install -tags "no_btrfs no_devmapper no_zfs" \
        "$module/containerd@$CONTAINERD_VERSION" "$module/ctr@$CONTAINERD_VERSION" \
        "$module/containerd-shim-runc-v2@$CONTAINERD_VERSION"
}

# --- Debian packages ---

missing_packages() {
    [[ -x ${THAW_BUSYBOX:-/bin/busybox} ]] || echo busybox-static
    [[ -n ${THAW_PYTHON_ROOTFS:-} ]] || command -v mmdebstrap >/dev/null || echo mmdebstrap
    command -v ip >/dev/null || echo iproute2
    command -v iptables >/dev/null || echo iptables
    command -v runc >/dev/null || echo runc
    command -v patch >/dev/null || echo patch
    [[ -x /usr/lib/cni/bridge ]] || echo containernetworking-plugins
}
has_packages() { [[ -z $(missing_packages) ]]; }
check_packages() { need_apt "$(missing_packages | paste -sd ' ')" "THAW_BUSYBOX and THAW_PYTHON_ROOTFS"; }
install_packages() {
    local packages
    mapfile -t packages < <(missing_packages)
    apt-get update
    DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends "${packages[@]}"
}

# --- Root file system with Python, numpy and pandas, as a tar archive ---

rootfs=$tools/rootfs/python.tar
suite=$(. /etc/os-release 2>/dev/null && echo "${VERSION_CODENAME:-}")
rootfs_stamp() { echo "$suite $PYTHON_PACKAGES 1"; }
# The machine's own apt sources for its own release, whatever mirror they name.
apt_sources() {
    grep -lE "^(deb|Suites:)(.*[[:space:]])?$suite([[:space:]]|\$)" \
        /etc/apt/sources.list /etc/apt/sources.list.d/*.list /etc/apt/sources.list.d/*.sources 2>/dev/null || true
}
has_python-rootfs() {
    [[ -n ${THAW_PYTHON_ROOTFS:-} ]] || [[ -f $rootfs && "$(cat "$rootfs.stamp" 2>/dev/null)" == "$(rootfs_stamp)" ]]
}
check_python-rootfs() {
    need_apt "the Python guest" THAW_PYTHON_ROOTFS
    [[ -n $suite && -n $(apt_sources) ]] ||
        die "apt has no sources for this release (${suite:-unknown}): add them to /etc/apt/sources.list.d, or set THAW_PYTHON_ROOTFS to a tar archive with python3, numpy and pandas"
}
install_python-rootfs() {
    local sources
    mapfile -t sources < <(apt_sources)
    mkdir -p "$tools/rootfs"
    rm -f "$rootfs.stamp"
    # A fixed time makes the archive the same for the same packages. Documentation is of no use in a guest.
    SOURCE_DATE_EPOCH=1767225600 mmdebstrap --variant=essential --include="$PYTHON_PACKAGES" \
        --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-exclude=/usr/share/man/*' \
        --dpkgopt='path-exclude=/usr/share/locale/*' "$suite" "$rootfs.new.tar" "${sources[@]}"
    mv "$rootfs.new.tar" "$rootfs"
    rootfs_stamp >"$rootfs.stamp"
}

# --- cargo-deny ---

has_cargo-deny() { [[ "$("$bin/cargo-deny" --version 2>/dev/null)" == "cargo-deny $CARGO_DENY_VERSION" ]]; }
check_cargo-deny() { need_cargo; }
install_cargo-deny() { cargo install --quiet --locked --root "$tools" "cargo-deny@$CARGO_DENY_VERSION"; }

# --- Conformance suites and what they compare with ---

# shellcheck source=tools/suites.sh
source "$here/suites.sh"

# --- The rest ---

typical() {
    case $1 in
        runsc | containerd) echo "about 3 minutes" ;;
        critest | gvisor-shim) echo "about 2 minutes" ;;
        cargo-deny) echo "about 5 minutes" ;;
        *) echo "about a minute" ;;
    esac
}

run() {
    local component=$1
    if ! "install_$component" >"$log/$component.log" 2>&1; then
        tail -n 20 "$log/$component.log" | sed 's/^/    /' >&2
        say "error: $component was not installed; the whole log is $log/$component.log" >&2
        return 1
    fi
    "has_$component" || { say "error: $component was installed but is not what was asked for, see $log/$component.log" >&2; return 1; }
}

components=("$@")
[[ ${#components[@]} -gt 0 ]] || components=(packages runsc containerd python-rootfs cargo-deny client-suite critest gvisor-shim old-containerds)
wanted=()
for component in "${components[@]}"; do
    declare -F "has_$component" >/dev/null || die "there is no component '$component'"
    "has_$component" || wanted+=("$component")
done
if [[ ${#wanted[@]} -eq 0 ]]; then
    say "everything is there: ${components[*]}"
    exit 0
fi

need_machine
for component in "${wanted[@]}"; do "check_$component"; done
mkdir -p "$bin" "$log"

failed=0
started=$SECONDS
declare -A jobs=()
for component in "${wanted[@]}"; do
    say "installing $component ($(typical "$component"))"
    if [[ $component == packages ]]; then
        # Others need what comes with them.
        run packages || exit 1
        say "packages: done after $((SECONDS - started)) s"
        continue
    fi
    run "$component" &
    jobs[$component]=$!
done
while [[ ${#jobs[@]} -gt 0 ]]; do
    for component in "${!jobs[@]}"; do
        kill -0 "${jobs[$component]}" 2>/dev/null && continue
        if wait "${jobs[$component]}"; then
            say "$component: done after $((SECONDS - started)) s"
        else
            failed=1
        fi
        unset "jobs[$component]"
    done
    [[ ${#jobs[@]} -eq 0 ]] && break
    ((SECONDS == started || (SECONDS - started) % 20)) || say "still at work after $((SECONDS - started)) s: ${!jobs[*]}"
    sleep 1
done
exit $failed
