# shellcheck shell=bash
# Configuring and building a preset. Needs common.sh.

# build_preset PRESET [CMAKE_OPTION…] [-- TARGET…]
build_preset() {
  local preset=$1 options=() targets=()
  shift
  while [ $# -gt 0 ] && [ "$1" != -- ]; do
    options+=("$1")
    shift
  done
  [ $# -eq 0 ] || shift
  [ $# -eq 0 ] || targets=(--target "$@")
  need cmake "Run scripts/setup, or leave out --no-install"
  step "Configuring $preset" "configure-$preset" _in_root cmake --preset "$preset" "${options[@]}"
  step "Building $preset" "build-$preset" _in_root cmake --build "build/$preset" --parallel "$(jobs)" "${targets[@]}"
}

# check_preset PRESET   every source file through the compiler of a preset that makes no code (DDRUN_CHECK_ONLY)
check_preset() {
  local objects
  step "Configuring $1" "configure-$1" _in_root cmake --preset "$1"
  mapfile -t objects < <(ninja -C "$root/build/$1" -t targets all | sed -nE 's/^(.*\.o): CXX_COMPILER_.*/\1/p')
  [ "${#objects[@]}" -gt 0 ] || die "build/$1 names no source files"
  step "Compiling with $1" "build-$1" ninja -C "$root/build/$1" -j "$(jobs)" "${objects[@]}"
}

_in_root() {
  cd "$root" || return # presets are found from the top directory only
  "$@"
}
