# Components for the conformance suites; read by tools/install.sh, whose variables and functions it uses.
#
# Each of these has a stamp that names what it was built from, because test binaries do not tell their version.

stamps=$tools/stamps
stamp_of() {
    case $1 in
        client-suite) echo "$CONTAINERD_VERSION $(cat "$here"/patches/containerd-*.patch | sha256sum)" ;;
        critest) echo "$CRI_TOOLS_VERSION $(cat "$here"/patches/critest-*.patch | sha256sum)" ;;
        gvisor-shim) echo "$RUNSC_MODULE $(cat "$here"/patches/gvisor-*.patch | sha256sum)" ;;
    esac
}
stamped() { [[ "$(cat "$stamps/$1" 2>/dev/null)" == "$(stamp_of "$1")" ]]; }
stamp() { mkdir -p "$stamps" && stamp_of "$1" >"$stamps/$1"; }

# A writable copy of a Go module with patches applied, in a new directory of its own: module_copy <module@version> <patch>...
module_copy() {
    local module=$1 dir copy
    shift
    command -v patch >/dev/null || { echo "patch is missing: run tools/install.sh packages" >&2; return 1; }
    dir=$(cd / && go mod download -json "$module" | sed -n 's/^\t"Dir": "\(.*\)",$/\1/p')
    [[ -d $dir ]] || { echo "go mod download has no directory for $module" >&2; return 1; }
    copy=$(mktemp -d "$tools/source.XXXXXX")
    cp -r --no-preserve=mode "$dir/." "$copy" || return 1
    local patch
    for patch in "$@"; do
        patch --directory "$copy" --strip 1 --silent <"$patch" || return 1
    done
    echo "$copy"
}

# --- containerd's own client suite, integration/client ---

# runc-fp is a runc with failpoints, for two of its tests.
has_client-suite() { [[ -x $bin/client.test && -x $bin/runc-fp ]] && stamped client-suite; }
check_client-suite() { need_go; }
install_client-suite() {
    local copy status=0
    copy=$(module_copy "github.com/containerd/containerd/v2@$CONTAINERD_VERSION" "$here"/patches/containerd-*.patch) || return 1
    (cd "$copy" && export CGO_ENABLED=0 &&
        go test -mod=mod -trimpath -tags "no_btrfs no_devmapper no_zfs" -c -o "$bin/client.test" ./integration/client &&
        go build -mod=mod -trimpath -o "$bin/runc-fp" ./integration/failpoint/cmd/runc-fp) || status=1
    rm -rf "$copy"
    [[ $status == 0 ]] && stamp client-suite
}

# --- critest and crictl ---

has_critest() { [[ -x $bin/critest && -x $bin/crictl ]] && stamped critest; }
check_critest() { need_go; }
install_critest() {
    local copy status=0
    copy=$(module_copy "sigs.k8s.io/cri-tools@$CRI_TOOLS_VERSION" "$here"/patches/critest-*.patch) || return 1
    # critest is a test binary, which `go install` could not build.
    (cd "$copy" && CGO_ENABLED=0 go test -trimpath -c -o "$bin/critest" ./cmd/critest &&
        CGO_ENABLED=0 go build -trimpath -o "$bin/crictl" \
            -ldflags "-X sigs.k8s.io/cri-tools/pkg/version.Version=${CRI_TOOLS_VERSION#v}" ./cmd/crictl) || status=1
    rm -rf "$copy"
    [[ $status == 0 ]] && stamp critest
}

# --- gVisor's own shim, to compare with ---

has_gvisor-shim() { [[ -x $bin/containerd-shim-runsc-v1 ]] && stamped gvisor-shim; }
check_gvisor-shim() { need_go; }
install_gvisor-shim() {
    local copy status=0
    copy=$(module_copy "${RUNSC_MODULE/\/runsc@/@}" "$here"/patches/gvisor-*.patch) || return 1
    (cd "$copy" && CGO_ENABLED=0 go build -trimpath -ldflags "-s -w" -o "$bin/containerd-shim-runsc-v1" ./shim) || status=1
    rm -rf "$copy"
    [[ $status == 0 ]] && stamp gvisor-shim
}

# --- Earlier containerds, from Debian's releases ---

# Each in .tools/containerd-<version>, unpacked and not installed; they run on any Debian of today.
has_old-containerds() {
    local version
    for version in "${!OLD_CONTAINERDS[@]}"; do
        [[ -x $tools/containerd-$version/usr/bin/containerd ]] || return 1
    done
}
check_old-containerds() {
    need_apt "earlier versions of containerd" "nothing else"
    [[ -n $(debian_mirror) ]] || die "apt has no sources for a Debian release: earlier versions of containerd come from there"
}
# The mirror that this machine uses.
debian_mirror() {
    apt-get indextargets --format '$(ORIGIN) $(COMPONENT) $(REPO_URI) $(CODENAME)' 'Created-By: Packages' 2>/dev/null |
        awk '$1 == "Debian" && $2 == "main" && $NF !~ /-/ && !found { found = 1; print $3 }'
}
install_old-containerds() {
    local scratch status=0
    scratch=$(mktemp -d "$tools/source.XXXXXX")
    (cd "$scratch" && fetch_old_containerds) || status=1
    rm -rf "$scratch"
    return $status
}
# Asks apt with lists and settings of its own, so that the machine's stay as they are.
fetch_old_containerds() {
    local mirror version package keyring=/usr/share/keyrings/debian-archive-keyring.gpg apt=(
        -o "Dir::State=$PWD/state" -o "Dir::State::status=$PWD/status" -o "Dir::Cache=$PWD/cache"
        -o "Dir::Etc::SourceList=$PWD/sources.list" -o Dir::Etc::SourceParts=/dev/null
        -o APT::Sandbox::User=root -o Acquire::Languages=none
    )
    mirror=$(debian_mirror)
    [[ -f $keyring ]] || keyring=
    mkdir -p state/lists/partial cache/archives/partial
    : >status
    for version in "${!OLD_CONTAINERDS[@]}"; do
        echo "deb ${keyring:+[signed-by=$keyring] }$mirror ${OLD_CONTAINERDS[$version]} main"
    done >sources.list
    apt-get "${apt[@]}" update || return 1
    for version in "${!OLD_CONTAINERDS[@]}"; do
        package=$(apt-cache "${apt[@]}" madison containerd | awk -v version="$version" '
            index($3, version) == 1 && substr($3, length(version) + 1) ~ /^[^0-9.]/ && !found { found = 1; print $3 }')
        [[ -n $package ]] || { echo "Debian ${OLD_CONTAINERDS[$version]} has no containerd $version any more" >&2; return 1; }
        apt-get "${apt[@]}" download "containerd=$package" || return 1
        rm -rf "$tools/containerd-$version"
        dpkg-deb -x containerd_*.deb "$tools/containerd-$version" || return 1
        rm -f containerd_*.deb
    done
}
