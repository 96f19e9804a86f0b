#!/usr/bin/env bash
# packages.sh SOURCE_DIR: makes the packages of the programs in build/release, looks into them, and runs what they
# install. The wheel has a test of its own, Debian's dependencies too (debian.sh).
set -euo pipefail
source_dir=$1
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
fail() { echo "FAILED: $*"; exit 1; }

command -v rpmbuild >/dev/null || { echo "SKIPPED: rpmbuild is not installed"; exit 0; }
if ! "$source_dir/scripts/package" --no-build >"$dir/log" 2>&1; then
  cat "$dir/log"
  ! grep -q 'Installing the tools of packages failed' "$dir/log" || { echo "SKIPPED: the tools of packages cannot be installed from PyPI"; exit 0; }
  exit 1
fi
packages=$source_dir/build/packages
(cd "$packages" && sha256sum --quiet --check SHA256SUMS && [ "$(wc -l <SHA256SUMS)" -eq 7 ]) || fail "SHA256SUMS does not agree"

# What is linked in stands in both lists.
works=$(python3 -c 'import json, sys; print(*(work["name"] for work in json.load(sys.stdin)["components"]), sep="\n")' <"$(echo "$packages"/*-"$(uname -m)".cdx.json)")
[ "$(wc -l <<<"$works")" -ge 8 ] || fail "the software bill of materials is short: $works"
while read -r work; do grep -qF "$work" "$source_dir/NOTICE" || fail "NOTICE lacks $work"; done <<<"$works"

case $(uname -m) in
  x86_64) machine='Advanced Micro Devices X86-64' debian=amd64 rpm=x86_64 ;;
  aarch64) machine=AArch64 debian=arm64 rpm=aarch64 ;;
esac
version=$("$source_dir/build/release/bin/ddrun" --version | awk 'NR == 1 {print $2}')
tar -xzf "$packages/ddrun-$version-linux-$rpm.tar.gz" -C "$dir"
tree=$dir/ddrun-$version-Linux
PATH=$tree/bin:$PATH ddrun -n 2 ddrun-allreduce -b 8 -e 1K >"$dir/log" 2>&1 || { cat "$dir/log"; fail "the archive's programs do not run"; }

mkdir "$dir/deb" "$dir/rpm"
dpkg-deb --extract "$packages/ddrun_${version}_$debian.deb" "$dir/deb"
rpm2archive - <"$packages/ddrun-$version-1.$rpm.rpm" | tar -xz -C "$dir/rpm"
for root in "$tree" "$dir/deb/usr" "$dir/rpm/usr"; do
  for program in ddrun ddrun-allreduce; do
    header=$(readelf --file-header "$root/bin/$program")
    grep -q "Machine: *$machine\$" <<<"$header" || fail "$root/bin/$program is of another architecture"
    [ -s "$root/share/man/man1/$program.1" ] || fail "$root lacks the page of $program"
  done
  for file in bash-completion/completions/ddrun zsh/site-functions/_ddrun fish/vendor_completions.d/ddrun.fish doc/ddrun/copyright; do
    [ -s "$root/share/$file" ] || fail "$root lacks $file"
  done
done
cmp "$dir/rpm/usr/bin/ddrun-allreduce" "$tree/bin/ddrun-allreduce" || fail "rpmbuild has changed a program"

[ "$(id -u)" -eq 0 ] || { echo "SKIPPED: installing packages into a folder needs root"; exit 0; }
# In a system of nothing else, without a C library.
mkdir -p "$dir/root/var/lib/dpkg" "$dir/root"/{tmp,proc,dev}
touch "$dir/root/var/lib/dpkg/status" "$dir/root/var/lib/dpkg/available"
runs() { # KIND PROGRAM…
  local kind=$1
  shift
  # shellcheck disable=SC2016 # the inner shell's
  unshare --mount --pid --fork bash -c 'mount -t proc proc "$1/proc" && mount --rbind /dev "$1/dev" && exec chroot "$@"' runs "$dir/root" "$@" >"$dir/log" 2>&1 ||
    { cat "$dir/log"; fail "what the $kind has installed does not run"; }
}
dpkg --root="$dir/root" --force-depends --force-script-chrootless --install "$packages/ddrun_${version}_$debian.deb" >"$dir/log" 2>&1 ||
  { cat "$dir/log"; fail "dpkg does not install the package"; }
runs .deb /usr/bin/ddrun -n 2 /usr/bin/ddrun --version
dpkg --root="$dir/root" --force-script-chrootless --purge ddrun >"$dir/log" 2>&1
[ ! -e "$dir/root/usr" ] || fail "dpkg leaves $(find "$dir/root/usr")"
rpm --root "$dir/root" --install "$packages/ddrun-$version-1.$rpm.rpm" || fail "rpm does not install the package"
runs .rpm /usr/bin/ddrun -n 2 /usr/bin/ddrun-allreduce -b 8 -e 1K
rpm --root "$dir/root" --erase ddrun
# A job that lasts longer has a folder in /tmp for `ddrun stacks`.
left=$(find "$dir/root" -name '*ddrun*' -not -path "$dir/root/tmp/ddrun-0*")
[ -z "$left" ] || fail "rpm leaves $left"
