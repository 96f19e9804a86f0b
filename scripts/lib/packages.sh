# shellcheck shell=bash
# Which packages ddrun needs, by their names on Debian 12, Debian 13 and Ubuntu, and how to install them.
# Needs common.sh.

need_apt() {
  command -v apt-get >/dev/null || die "this is not a Debian or Ubuntu system: apt-get is missing" \
    "Install g++ 12 or newer, CMake 3.25, Ninja, Boost 1.81 or newer, CLI11, nlohmann-json 3.11, toml++, \
tl-expected, OpenSSL 3 and what it needs (libzstd, zlib) yourself, then call the script with --no-install"
}

as_root() {
  if [ "$(id -u)" -eq 0 ]; then "$@"; else sudo "$@"; fi
}

# Several versions of Boost lie side by side in a release; unversioned packages may be too old. Up to 1.85 we compile
# Process v2 ourselves; later ones need Boost's library of it, which Debian 13 does not package for its 1.88.
# DDRUN_BOOST_VERSION chooses another.
boost_version() {
  local version
  if [ -n "${DDRUN_BOOST_VERSION:-}" ]; then
    echo "$DDRUN_BOOST_VERSION"
    return
  fi
  case "$(sed -n 's/^VERSION_CODENAME=//p' /etc/os-release)" in
    bookworm) echo 1.81 ;;
    trixie | noble) echo 1.83 ;;
    *)
      for version in 1.83 1.81; do
        if apt-cache show "libboost-filesystem$version-dev" >/dev/null 2>&1; then
          echo "$version"
          return
        fi
      done
      apt-cache pkgnames libboost-process | sed -nE 's/^libboost-process([0-9.]+)-dev$/\1/p' | sort -V | tail -n 1 |
        grep . || echo 1.83
      ;;
  esac
}

build_packages() {
  local boost
  boost=$(boost_version)
  echo g++ cmake ninja-build "libboost$boost-dev" "libboost-filesystem$boost-dev" \
    libcli11-dev nlohmann-json3-dev libtomlplusplus-dev libexpected-dev libssl-dev libzstd-dev zlib1g-dev
  case $boost in
    1.8[0-5]) ;; # Process v2 is compiled by ourselves
    *) echo "libboost-process$boost-dev" ;;
  esac
}
test_packages() { echo catch2 gnuplot-nox libgloo-dev zsh fish procps python3-jsonschema "$(net_packages)" "$(slurm_packages)" "$(etcd_packages)" "$(package_packages)" "$(gvisor_packages)"; }
net_packages() { echo iproute2 iptables util-linux openssh-client openssh-server python3-yaml; } # for tests/net
slurm_packages() { echo slurmctld slurmd slurm-client munge; } # a cluster of their own for tests/net
etcd_packages() { echo etcd-server etcd-client curl openssl; } # clusters of their own for the lease
gvisor_packages() { # a kernel of its own that lacks some system calls; not every Ubuntu has it
  case "$(sed -n 's/^VERSION_CODENAME=//p' /etc/os-release)" in
    bookworm | trixie) echo runsc ;;
    *) if apt-cache show runsc >/dev/null 2>&1; then echo runsc; fi ;;
  esac
}
clang_packages() { echo clang libclang-rt-dev lld; } # the second has its sanitizers and libFuzzer
package_packages() { echo rpm python3 python3-venv; }
aarch64_packages() { echo g++-aarch64-linux-gnu qemu-user-static; } # the emulator runs what the build has to run
lint_packages() { echo clang-format clang-tidy clang shellcheck universal-ctags git; }
pytorch_packages() { # the last serves PyPI's Open MPI 4.1, which brings none
  case "$(sed -n 's/^VERSION_CODENAME=//p' /etc/os-release)" in
    bookworm) echo python3-venv libpmix2 ;;
    *) echo python3-venv libpmix2t64 ;;
  esac
}
rival_packages() { echo mpich libmpich-dev openmpi-bin libopenmpi-dev libgloo-dev iperf3 parallel redis-server time gdb; }

missing_packages() {
  local package
  for package in "$@"; do
    case "$(dpkg-query -W -f '${Status}' "$package" 2>/dev/null)" in
      *' ok installed') ;;
      *) echo "$package" ;;
    esac
  done
}

# Nothing is removed for it: other programs may need headers of another Boost.
_apt_get_install() {
  as_root env DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=300 install -y --no-install-recommends \
    --no-remove "$@"
}

_apt_install() {
  # What apt knows may be old or empty: ask for news only then.
  local updated=0 package
  for package in "$@"; do
    apt-cache show "$package" >/dev/null 2>&1 || updated=1
  done
  [ "$updated" -eq 0 ] || as_root apt-get update
  _apt_get_install "$@" && return
  if [ "$updated" -eq 0 ]; then
    as_root apt-get update # a package of the old list may be gone from the mirror
    _apt_get_install "$@" && return
  fi
  echo "If apt refuses because a package would be removed, decide that yourself:"
  echo "  apt-get install --no-install-recommends $*"
  return 1
}

# install_packages WHAT PACKAGE…   installs those that are missing; says nothing if none is.
install_packages() {
  local what=$1 missing
  shift
  need_apt
  mapfile -t missing < <(missing_packages "$@")
  [ "${#missing[@]}" -gt 0 ] || return 0
  say "Packages to install for $what: ${missing[*]}"
  if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null || die "installing packages needs root, and sudo is not there" \
      "Run as root: apt-get install --no-install-recommends ${missing[*]}"
    # It asks for its password here, where that can be seen.
    sudo -v || die "installing packages needs root, and sudo refused" \
      "Ask an administrator to run: apt-get install --no-install-recommends ${missing[*]}"
  fi
  step "Installing packages for $what" "install-${what// /-}" _apt_install "${missing[@]}"
}
