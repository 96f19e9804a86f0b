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

# check_preset PRESET   every source file through the preset's compiler, for errors and warnings only: no code is made,
# which takes half the time of a build
check_preset() {
  step "Configuring $1" "configure-$1" _in_root cmake --preset "$1"
  step "Checking with $1" "check-$1" _check_sources "$1"
}

_check_sources() {
  cmake --build "$root/build/$1" --target ddrun_commit || return
  # Each file's command as the build would run it; xargs stops at none of them but reports a failure.
  python3 -c '
import json, shlex, sys
for unit in json.load(open(sys.argv[1])):
    print(shlex.join(["cd", unit["directory"]]) + " && " + unit["command"] + " -fsyntax-only", end="\0")
' "$root/build/$1/compile_commands.json" |
    CCACHE_DISABLE=1 xargs --null --max-args=1 --max-procs="$(jobs)" bash -c
}

_in_root() {
  cd "$root" || return # presets are found from the top directory only
  "$@"
}
