# shellcheck shell=bash
# Configuring and building a preset. Needs common.sh.

# What scripts/quickstart gives to the preset release. Debug symbols are in files beside the programs and change no code,
# but writing them takes a fifth of the time.
# shellcheck disable=SC2034 # for others
quickstart_options=(-DDDRUN_BUILD_TESTS=OFF "-DCMAKE_CXX_FLAGS_RELWITHDEBINFO=-O2 -DNDEBUG")

# build_preset PRESET [CMAKE_OPTION…] [-- TARGET…]   compilers are as nice as DDRUN_BUILD_NICE says, if it is set
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
  step "Building $preset" "build-$preset" _in_root nice -n "${DDRUN_BUILD_NICE:-0}" cmake --build "build/$preset" --parallel "$(jobs)" "${targets[@]}"
}

# check_alone all|changed   each source file of modules and programs goes through the compiler by itself, with nothing
# compiled in advance, for errors and warnings only. Finds what a file takes from another one without knowing, which
# builds of a module as one file cannot. changed: those that differ from the last commit but one.
check_alone() {
  step "Configuring files by themselves" configure-alone _in_root cmake --preset dev -B build/alone \
    -DDDRUN_UNITY=OFF -DDDRUN_PRECOMPILE=OFF -DDDRUN_BUILD_TESTS=OFF -DDDRUN_WITH_CUDA=OFF
  step "Compiling files by themselves ($1)" check-alone _check_alone "$1"
}

_check_alone() {
  cmake --build "$root/build/alone" --target ddrun_commit || return # a header that one of them includes
  {
    if [ "$1" = all ] || ! git -C "$root" rev-parse --quiet --verify HEAD~1 >/dev/null; then
      find "$root/apps" "$root/lib" -name '*.cpp'
    else
      git -C "$root" diff --name-only --diff-filter=d HEAD~1 -- apps lib | sed "s|^|$root/|"
      git -C "$root" ls-files --others --exclude-standard -- apps lib | sed "s|^|$root/|"
    fi
  } >"$root/build/alone/wanted"
  _compile_only alone "$root/build/alone/wanted"
}

# check_rest PRESET TARGET…   every source file that the build of these targets has left out goes through the preset's
# compiler for errors and warnings only: no code is made, which takes half the time of a build
check_rest() { step "Checking the rest with $1" "check-$1" _check_rest "$@"; }

_check_rest() {
  local preset=$1
  shift
  python3 -c '
import json, shlex, subprocess, sys
folder, targets = sys.argv[1], sys.argv[2:]
built = set(subprocess.check_output(["ninja", "-C", folder, "-t", "inputs", *targets], text=True).splitlines())
for unit in json.load(open(f"{folder}/compile_commands.json")):
    command = shlex.split(unit["command"])
    if command[command.index("-o") + 1] not in built:
        print(unit["file"])
' "$root/build/$preset" "$@" >"$root/build/$preset/rest" || return
  _compile_only "$preset" "$root/build/$preset/rest"
}

# _compile_only FOLDER LIST   the files that LIST names, each with its command as build/FOLDER would run it, but for code;
# xargs stops at none of them but reports a failure.
_compile_only() {
  python3 -c '
import json, shlex, sys
wanted = set(open(sys.argv[2]).read().splitlines())
for unit in json.load(open(sys.argv[1])):
    if unit["file"] in wanted:
        print(shlex.join(["cd", unit["directory"]]) + " && " + unit["command"] + " -fsyntax-only", end="\0")
' "$root/build/$1/compile_commands.json" "$2" |
    CCACHE_DISABLE=1 nice -n "${DDRUN_BUILD_NICE:-0}" xargs --null --no-run-if-empty --max-args=1 --max-procs="$(jobs)" bash -c
}

_in_root() {
  cd "$root" || return # presets are found from the top directory only
  "$@"
}
