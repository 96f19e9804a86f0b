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

# check_rest PRESET TARGET…   every source file that the build of these targets has left out goes through the preset's
# compiler for errors and warnings only: no code is made, which takes half the time of a build
check_rest() { step "Checking the rest with $1" "check-$1" _check_rest "$@"; }

_check_rest() {
  local preset=$1
  shift
  # Each file's command as the build would run it; xargs stops at none of them but reports a failure.
  python3 -c '
import json, shlex, subprocess, sys
folder, targets = sys.argv[1], sys.argv[2:]
built = set(subprocess.check_output(["ninja", "-C", folder, "-t", "inputs", *targets], text=True).splitlines())
for unit in json.load(open(f"{folder}/compile_commands.json")):
    command = shlex.split(unit["command"])
    if command[command.index("-o") + 1] not in built:
        print(shlex.join(["cd", unit["directory"]]) + " && " + unit["command"] + " -fsyntax-only", end="\0")
' "$root/build/$preset" "$@" |
    CCACHE_DISABLE=1 xargs --null --no-run-if-empty --max-args=1 --max-procs="$(jobs)" bash -c
}

_in_root() {
  cd "$root" || return # presets are found from the top directory only
  "$@"
}
