# shellcheck shell=bash
# Building for aarch64 on an x86-64 Debian, by its cross compiler. Needs common.sh, packages.sh and build.sh.
#
# Libraries are fetched once: remove build/sysroot-aarch64 for newer ones.

# Why it cannot be done here; nothing if it can.
aarch64_obstacle() {
  if ! command -v apt-get >/dev/null; then
    echo "no apt-get here to fetch Debian's packages with"
  elif ! grep -qx ID=debian /etc/os-release; then
    echo "this system is not a Debian"
  elif [ "$(dpkg --print-architecture)" != amd64 ]; then
    echo "this system is not x86-64"
  fi
}

# aarch64_build   the released programs, in build/aarch64/bin
aarch64_build() {
  local wanted
  # shellcheck disable=SC2046 # words
  install_packages "aarch64" $(aarch64_packages)
  wanted=$(build_packages)
  wanted=${wanted/g++ cmake ninja-build/libc6-dev} # the tools are this system's
  if [ "$(cat "$root/build/sysroot-aarch64/complete" 2>/dev/null)" != "$wanted" ]; then
    # shellcheck disable=SC2086 # words
    step "Fetching the libraries for aarch64" aarch64-sysroot _aarch64_sysroot $wanted
  fi
  build_preset aarch64 "${quickstart_options[@]}" -- ddrun_programs
}

# _aarch64_sysroot PACKAGE…   these and what they depend on are unpacked, not installed. apt reads the system's own
# sources, with their security updates, but takes no package for installed.
_aarch64_sysroot() {
  local sysroot=$root/build/sysroot-aarch64 file apt
  apt=$sysroot/apt
  rm -rf "$sysroot"
  mkdir -p "$sysroot/usr/lib" "$apt"/{lists,archives}/partial
  ln -s usr/lib "$sysroot/lib" # Debian 12's packages use both names
  : >"$apt/status"
  local apt_get=(apt-get -y -o APT::Architecture=arm64 -o APT::Architectures=arm64 -o APT::Sandbox::User=root
    -o "Dir::State=$apt" -o "Dir::State::status=$apt/status" -o "Dir::Cache=$apt")
  "${apt_get[@]}" update && "${apt_get[@]}" install --download-only --no-install-recommends "$@" || return
  # Links such as libm.so name the absolute path of what lies beside them.
  for file in "$apt"/archives/*.deb; do
    dpkg-deb --fsys-tarfile "$file" | tar -C "$sysroot" -x --no-same-owner --keep-directory-symlink \
      --transform 's|^/lib/aarch64-linux-gnu/||RHs' || return
  done
  rm -r "$apt" && echo "$*" >"$sysroot/complete"
}
