#!/usr/bin/env bash
# configurations.sh SOURCE_DIR CMAKE: what is configured where something is not installed, and by scripts/quickstart.
# Configures only; nothing is compiled.
set -euo pipefail
source_dir=$1 cmake=$2
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
fail() { echo "FAILED: $*"; exit 1; }
cd "$source_dir"
configure() { # NAME OPTION…   in a folder of its own; what is said in a file beside it
  local name=$1
  shift
  "$cmake" --preset release -B "$dir/$name" -DDDRUN_WITH_CUDA=OFF -DCMAKE_CXX_COMPILER_LAUNCHER= "$@" >"$dir/$name.txt" 2>&1
}
targets() { ninja -C "$dir/$1" -t targets all; }

# Without Catch2 the tests are left out, and that is said.
configure without -DCMAKE_DISABLE_FIND_PACKAGE_Catch2=ON || { cat "$dir/without.txt"; fail "a build without Catch2 cannot be configured"; }
grep -q 'tests: left out, as Catch2 is not installed (scripts/setup --tests)' "$dir/without.txt" ||
  { cat "$dir/without.txt"; fail "nothing is said of the tests"; }
# (Not `grep -q`: ninja would die of the closed pipe.)
targets without | grep '^ddrun_program:' >/dev/null || fail "without Catch2 there is no ddrun"
! targets without | grep 'ddrun_test_' >/dev/null || fail "without Catch2 there are tests"

# Asking for them is an error that says what to do.
! configure wanted -DCMAKE_DISABLE_FIND_PACKAGE_Catch2=ON -DDDRUN_BUILD_TESTS=ON || fail "tests can be configured without Catch2"
tr '\n' ' ' <"$dir/wanted.txt" | tr -s ' ' | grep -q 'the tests need Catch2, not installed here.*scripts/setup --tests' ||
  { cat "$dir/wanted.txt"; fail "the message does not say what to install"; }

# scripts/quickstart: all programs as the preset has them, in few steps, as each costs seconds.
# shellcheck disable=SC2016 # the script's words
grep -qxF 'build_preset release "${quickstart_options[@]}"' scripts/quickstart ||
  fail "scripts/quickstart does not build the preset release"
quickstart_options=()
# shellcheck source=/dev/null
. scripts/lib/build.sh
configure quick "${quickstart_options[@]}" || { cat "$dir/quick.txt"; fail "the quickstart's build cannot be configured"; }
steps=$(ninja -C "$dir/quick" -n | grep -c 'Building CXX object')
[ "$steps" -le 50 ] || fail "the quickstart compiles $steps files"
for program in ddrun ddrun-allreduce; do
  ninja -C "$dir/quick" -n | grep "Linking CXX executable bin/$program\$" >/dev/null || fail "the quickstart does not build $program"
done
for setting in CMAKE_BUILD_TYPE CMAKE_CXX_FLAGS DDRUN_LINK DDRUN_WORKER_LINK DDRUN_SPLIT_DEBUG DDRUN_UNITY; do
  [ "$(grep "^$setting:" "$dir/quick/CMakeCache.txt")" = "$(grep "^$setting:" "$dir/without/CMakeCache.txt")" ] ||
    fail "$setting of the quickstart is not that of the preset release"
done
flags() { sed -n 's/^CMAKE_CXX_FLAGS_RELWITHDEBINFO:[A-Z]*=//p' "$dir/$1/CMakeCache.txt" | tr ' ' '\n' | grep -v '^-g' | sort; }
[ "$(flags quick)" = "$(flags without)" ] || fail "the quickstart is optimised otherwise than the preset release"
