# shellcheck shell=bash
# A small Debian 13 in a folder, to build and test with its packages. Needs common.sh and packages.sh.
#
# The folder is kept for the next time (DDRUN_TRIXIE_DIR, else /var/tmp/ddrun-trixie, about 1.5 GB). Nothing stays
# mounted: mounts are made in a mount namespace that goes away with the last process in it, whoever kills it.

trixie_dir=${DDRUN_TRIXIE_DIR:-/var/tmp/ddrun-trixie}
trixie_tree=/src/ddrun # inside

# Why it cannot be done here; nothing if it can.
trixie_obstacle() {
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

trixie_prepare() {
  local mirror=${DDRUN_DEBIAN_MIRROR:-}
  [ ! -e "$trixie_dir/.ddrun-ready" ] || return 0
  if [ -d "$trixie_dir" ] && [ ! -e "$trixie_dir/.ddrun" ] && [ -n "$(ls -A "$trixie_dir")" ]; then
    die "$trixie_dir is not empty and not made by this script" "Set DDRUN_TRIXIE_DIR to another folder"
  fi
  rm -rf --one-file-system "$trixie_dir"
  mkdir -p "$trixie_dir"
  touch "$trixie_dir/.ddrun"
  install_packages "debootstrap" debootstrap debian-archive-keyring
  [ -n "$mirror" ] || mirror=$(_debian_mirror)
  if [ -z "$mirror" ]; then
    step "Reading apt's package lists" apt-update apt-get update
    mirror=$(_debian_mirror)
  fi
  [ -n "$mirror" ] || die "apt's sources name no Debian mirror" "Set DDRUN_DEBIAN_MIRROR to the address of one"
  step "Making a Debian 13 in $trixie_dir" debootstrap \
    debootstrap --variant=minbase --keyring="$_debian_keyring" trixie "$trixie_dir" "$mirror"
  touch "$trixie_dir/.ddrun-ready"
}

# The tree as it is here, without what git ignores. Only files that differ are written, so that only what changed is
# compiled again.
trixie_copy_tree() {
  local tree=$trixie_dir$trixie_tree fresh=$trixie_dir/src/fresh file
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

# trixie_run COMMAND…   in the folder, with /proc, /sys and /dev; its exit status is the command's.
trixie_run() {
  cp -L /etc/resolv.conf /etc/hosts "$trixie_dir/etc/" 2>/dev/null || true
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
    exec chroot "$folder" env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root \
      LANG=C.UTF-8 TERM="${TERM:-dumb}" ${CI:+CI="$CI"} ${DDRUN_JOBS:+DDRUN_JOBS="$DDRUN_JOBS"} \
      ${http_proxy:+http_proxy="$http_proxy"} ${https_proxy:+https_proxy="$https_proxy"} \
      ${no_proxy:+no_proxy="$no_proxy"} "$@"
  ' trixie "$trixie_dir" "$@"
}
