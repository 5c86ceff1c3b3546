# The scripts of this folder include this file: `. "$(dirname "$0")/common.sh"`.
# shellcheck shell=sh

name=$(basename "$0")
repo=$(cd "$(dirname "$0")/.." && pwd)
guests=${TOLLGATE_GUESTS:-$repo/target/guests}

# initramfs_of GUEST: prints the initramfs with programs of the kernel's own width.
initramfs_of() {
    case $1 in
        *amd64*) echo "$guests/initrd-amd64.img" ;;
        *) echo "$guests/initrd-i386.img" ;;
    esac
}

say() { printf '%s: %s\n' "$name" "$*"; }
die() { printf '%s: error: %s\n' "$name" "$*" >&2; exit 1; }
# A wrong command line ends with exit code 2, as with tollgate itself.
usage_error() { printf '%s: error: %s (see --help)\n' "$name" "$*" >&2; exit 2; }

# The comment block at the head of a script, without its #!, is its --help.
help() { sed -n '2,/^[^#]/{/^#/s/^# \{0,1\}//p;}' "$0"; exit 0; }

# need TOOL PACKAGE: stops with the package's name if the tool is missing.
need() {
    command -v "$1" >/dev/null 2>&1 && return
    case $2 in
        qemu-system-x86) flag=' --with-qemu' ;;
        *) flag= ;;
    esac
    die "'$1' is missing; install the Debian package $2 (scripts/install-dependencies$flag does it)"
}

# rustup puts Rust on PATH only in login shells.
if [ -x "${CARGO_HOME:-${HOME:-}/.cargo}/bin/cargo" ]; then
    PATH=${CARGO_HOME:-$HOME/.cargo}/bin:$PATH
fi
tollgate=${CARGO_TARGET_DIR:-$repo/target}/release/tollgate

build_tollgate() {
    need cargo cargo-web
    first=
    [ -x "$tollgate" ] || first='; the first time takes some minutes'
    say "building (release)$first"
    (cd "$repo" && cargo build --release --quiet -p tollgate) || die "the build failed"
    [ -x "$tollgate" ] || die "the build left no $tollgate"
}
