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

_in_root() {
  cd "$root" || return # presets are found from the top directory only
  "$@"
}
