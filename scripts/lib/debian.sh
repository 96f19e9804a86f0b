# shellcheck shell=bash
# A small Debian in a folder, to build and test with its packages. Needs common.sh and packages.sh.
#
# It is kept for the next time, in DDRUN_DEBIAN_DIR or else in /var/tmp, about 1.5 GB each. Nothing stays mounted: mounts
# are made in a mount namespace that goes away with the last process in it, however that ends.

debian_tree=/src/ddrun # inside
declare -A debian_names=([bookworm]='Debian 12' [trixie]='Debian 13')

# debian_choose CODENAME   which of debian_names the functions below are about; 1 if there is no such
debian_choose() {
  [ -n "${debian_names[$1]:-}" ] || return
  debian_codename=$1
  debian_name=${debian_names[$1]}
  debian_dir=${DDRUN_DEBIAN_DIR:-/var/tmp}/ddrun-$1
}

# Why it cannot be done here; nothing if it can.
debian_obstacle() {
  if [ "$(id -u)" -ne 0 ]; then
    echo "a Debian in a folder needs root"
  elif ! command -v apt-get >/dev/null; then
    echo "no apt-get here to fetch Debian's packages with"
  elif ! unshare --mount true 2>/dev/null; then
    echo "this machine does not allow mount namespaces"
  fi
}

# As it stands in apt's own sources.
_debian_mirror() {
  # shellcheck disable=SC2016 # apt's variables, not ours
  apt-get indextargets --format '$(ORIGIN)|$(LABEL)|$(REPO_URI)' 'Created-By: Packages' |
    awk -F'|' '$1 == "Debian" && $2 == "Debian" && !found++ { print $3 }'
}

_debian_keyring=/usr/share/keyrings/debian-archive-keyring.gpg

debian_prepare() {
  local mirror=${DDRUN_DEBIAN_MIRROR:-}
  [ ! -e "$debian_dir/.ddrun-ready" ] || return 0
  if [ -d "$debian_dir" ] && [ ! -e "$debian_dir/.ddrun" ] && [ -n "$(ls -A "$debian_dir")" ]; then
    die "$debian_dir is not empty and not made by this script" "Set DDRUN_DEBIAN_DIR to another folder"
  fi
  rm -rf --one-file-system "$debian_dir"
  mkdir -p "$debian_dir"
  touch "$debian_dir/.ddrun"
  install_packages "debootstrap" debootstrap debian-archive-keyring
  [ -n "$mirror" ] || mirror=$(_debian_mirror)
  if [ -z "$mirror" ]; then
    step "Reading apt's package lists" apt-update apt-get update
    mirror=$(_debian_mirror)
  fi
  [ -n "$mirror" ] || die "apt's sources name no Debian mirror" "Set DDRUN_DEBIAN_MIRROR to the address of one"
  step "Making a $debian_name in $debian_dir" debootstrap \
    debootstrap --variant=minbase --keyring="$_debian_keyring" "$debian_codename" "$debian_dir" "$mirror"
  touch "$debian_dir/.ddrun-ready"
}

# The tree as it is here, without what git ignores. Only files that differ are written, so that only what changed is
# compiled again.
debian_copy_tree() {
  local tree=$debian_dir$debian_tree fresh=$debian_dir/src/fresh file
  rm -rf "$fresh"
  mkdir -p "$tree" "$fresh"
  if git -c safe.directory='*' -C "$root" rev-parse --git-dir >/dev/null 2>&1; then
    (
      cd "$root" || exit
      git -c safe.directory='*' ls-files -z --cached --others --exclude-standard |
        while IFS= read -r -d '' file; do if [ -e "$file" ]; then printf '%s\0' "$file"; fi; done |
        tar --null --files-from - -cf -
    ) | tar -C "$fresh" -xf -
    # Inside there is no repository to ask.
    git -c safe.directory='*' -C "$root" describe --always --dirty=+changes --exclude='*' --abbrev=12 \
      >"$fresh/scripts/cmake/commit.txt"
  else
    tar -C "$root" --exclude=./build -cf - . | tar -C "$fresh" -xf -
  fi
  while IFS= read -r -d '' file; do
    [ -e "$fresh/$file" ] || rm -f "$tree/$file"
  done < <(cd "$tree" && find . -path ./build -prune -o \( -type f -o -type l \) -print0)
  while IFS= read -r -d '' file; do
    cmp -s "$fresh/$file" "$tree/$file" || install -D -m "$(stat -c %a "$fresh/$file")" "$fresh/$file" "$tree/$file"
  done < <(cd "$fresh" && find . \( -type f -o -type l \) -print0)
  rm -rf "$fresh"
}

# debian_run COMMAND…   in the folder, with /proc, /sys and /dev; its exit status is the command's.
debian_run() {
  cp -L /etc/resolv.conf /etc/hosts "$debian_dir/etc/" 2>/dev/null || true
  # shellcheck disable=SC2016 # expanded by the inner shell
  unshare --mount --propagation private bash -c '
    set -eu
    folder=$1
    shift
    mount --bind "$folder" "$folder" # so that / is a mount point inside, as programs expect
    cd "$folder"
    mount -t proc proc "$folder/proc"
    mount --rbind /sys "$folder/sys"
    mount --rbind /dev "$folder/dev"
    mount -t tmpfs tmpfs "$folder/dev/shm" # its own: tests look at what is left there
    # Not a mere chroot, whose processes are outside again when they enter a mount namespace, as hosts of tests/net do.
    pivot_root . mnt
    umount --lazy mnt
    exec chroot . env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root \
      LANG=C.UTF-8 TERM="${TERM:-dumb}" ${CI:+CI="$CI"} ${DDRUN_JOBS:+DDRUN_JOBS="$DDRUN_JOBS"} \
      ${http_proxy:+http_proxy="$http_proxy"} ${https_proxy:+https_proxy="$https_proxy"} \
      ${no_proxy:+no_proxy="$no_proxy"} "$@"
  ' "$debian_codename" "$debian_dir" "$@"
}
