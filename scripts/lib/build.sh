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

# check_alone   each C++ file that the working tree or the last 30 commits changed is compiled by itself (alone.py). Finds
# what a file or header does not include: builds with precompiled headers, and those of a module as one file, do not.
# Newest first; what has not begun after 45 s (DDRUN_ALONE_SECONDS) is named in build/alone/left-out.
check_alone() {
  step "Configuring files by themselves" configure-alone _in_root cmake --preset dev -B build/alone \
    -DDDRUN_UNITY=OFF -DDDRUN_PRECOMPILE=OFF -DDDRUN_BUILD_TESTS=ON -DDDRUN_WITH_CUDA=OFF
  step "Compiling files by themselves" check-alone _in_root _check_alone
}

_check_alone() {
  cmake --build build/alone --target ddrun_commit || return # a header that one of them includes
  # A copy without commits, or with the last one only, has nothing but all files.
  {
    git diff --name-only --diff-filter=d HEAD -- apps lib tests
    git ls-files --others --exclude-standard -- apps lib tests
    git log -n 30 --format= --name-only --diff-filter=d -- apps lib tests
    git rev-parse --quiet --verify HEAD >/dev/null || find apps lib tests -type f
  } | CCACHE_DISABLE=1 nice -n "${DDRUN_BUILD_NICE:-0}" python3 scripts/lib/alone.py "$(jobs)" "${DDRUN_ALONE_SECONDS:-45}"
}

_in_root() {
  cd "$root" || return # presets are found from the top directory only
  "$@"
}
