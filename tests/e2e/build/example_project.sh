#!/usr/bin/env bash
# example_project.sh BUILD_DIR SOURCE_DIR CMAKE GENERATOR COMPILER SANITIZE: a user's way to the store in C++. Installs,
# moves what was installed elsewhere, and builds and runs the example project with nothing but that.
set -euo pipefail
build=$1 source_dir=$2 cmake=$3 generator=$4 compiler=$5 sanitize=$6
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
fail() { echo "FAILED: $*"; exit 1; }
quietly() { "$@" >"$dir/log" 2>&1 || { tail -n 40 "$dir/log"; fail "$*"; }; }
unset CMAKE_PREFIX_PATH CPATH CPLUS_INCLUDE_PATH LIBRARY_PATH PKG_CONFIG_PATH ddrun_DIR ddrun_ROOT
export CCACHE_DISABLE=1 # built for this once
export CMAKE_GENERATOR=$generator # which is there; CMake's default may not be

quietly "$cmake" --install "$build" --prefix "$dir/first"
mv "$dir/first" "$dir/prefix"
prefix=$dir/prefix

# 1. Nothing leads back to where it was built or first installed.
for place in "$build" "$source_dir" "$dir/first"; do
  if grep -rlF "$place" "$prefix/lib/cmake" "$prefix/lib/pkgconfig" "$prefix/include" "$prefix/share"; then
    fail "the files above name $place"
  fi
done
! grep -rl -i boost "$prefix/lib/cmake" "$prefix/lib/pkgconfig" || fail "users of the store need no Boost, say the files above"

# 2. Each header compiles without another before it, under the warnings of careful users, and no header is missing or
# too many: those of ddrun/base are there because one of the store's needs them.
headers() { (cd "$prefix/include" && find "$@" -name '*.hpp' | LC_ALL=C sort); }
[ -n "$(headers ddrun/store)" ] || fail "no header of the store is installed"
check() { # COMPILER HEADER…
  local with=$1 log
  shift
  log=$(mktemp -p "$dir")
  printf '#include "%s"\n' "$@" |
    "$with" -x c++ -std=c++20 -Wall -Wextra -Wpedantic -Werror -fsyntax-only -I "$prefix/include" - >"$log" 2>&1 ||
    { head -n 20 "$log"; fail "$with does not like $*"; }
}
mapfile -t all < <(headers ddrun)
checks=()
for header in "${all[@]}"; do
  check "$compiler" "$header" &
  checks+=($!)
done
for other in g++ clang++; do
  ! command -v "$other" >/dev/null || check "$other" "${all[@]}"
done
for pid in "${checks[@]}"; do wait "$pid" || exit 1; done
headers ddrun/store | sed 's/.*/#include "&"/' | "$compiler" -x c++ -std=c++20 -M -I "$prefix/include" - |
  tr -s '[:space:]' '\n' >"$dir/used"
! grep -i '/boost/' "$dir/used" || fail "headers include the ones above; users of the store need no Boost"
diff <(headers ddrun) <(sed -n "s,^$prefix/include/,,p" "$dir/used" | LC_ALL=C sort -u) ||
  fail "installed headers (<) are not those that the store's headers include (>)"

# 3. The example project, copied to where a user might have it.
cp -r "$prefix/share/doc/ddrun/docs/examples/store-client" "$dir/project"
export CXXFLAGS=-Werror
[ -z "$sanitize" ] || CXXFLAGS+=" -fsanitize=$sanitize"
quietly "$cmake" -S "$dir/project" -B "$dir/build" -DCMAKE_BUILD_TYPE=Debug "-DCMAKE_CXX_COMPILER=$compiler" \
  "-DCMAKE_PREFIX_PATH=$prefix"
grep -qxF "ddrun_DIR:PATH=$prefix/lib/cmake/ddrun" "$dir/build/CMakeCache.txt" ||
  fail "another ddrun was found: $(grep ^ddrun_DIR "$dir/build/CMakeCache.txt")"
quietly "$cmake" --build "$dir/build"
worker=$dir/build/store-client

# 4. All ranks meet, under the installed launcher.
cd /
timeout -s KILL 60 "$prefix/bin/ddrun" --nproc-per-node=4 "$worker" >"$dir/out" 2>&1 </dev/null ||
  { cat "$dir/out"; fail "the example does not run"; }
for rank in 0 1 2 3; do
  line="rank $rank of 4 read 0 1 4 9, and got 'hello from rank $(((rank + 3) % 4))'"
  [ "$(grep -cF "$line" "$dir/out")" -eq 1 ] || { cat "$dir/out"; fail "there is no line: $line"; }
done

# 5. What goes wrong is said in one line, and in time.
says() { # STATUS REGEX COMMAND…
  local expected=$1 regex=$2 status=0
  shift 2
  timeout -s KILL 60 "$@" >"$dir/out" 2>&1 </dev/null || status=$?
  [ "$status" -eq "$expected" ] || { cat "$dir/out"; fail "status $status instead of $expected: $*"; }
  { [ "$(wc -l <"$dir/out")" -eq 1 ] && grep -qE "$regex" "$dir/out"; } || { cat "$dir/out"; fail "no line '$regex': $*"; }
}
says 2 '^store-client: WORLD_SIZE is not set: start this program with ddrun$' \
  env -u RANK -u WORLD_SIZE -u MASTER_ADDR -u MASTER_PORT "$worker"
# No server listens on port 1; the deadline ends the attempts.
says 1 '^store-client: rank 0: .*127\.0\.0\.1:1' \
  env RANK=0 WORLD_SIZE=1 MASTER_ADDR=127.0.0.1 MASTER_PORT=1 "$worker" 300ms

# 6. Versions and components: what is not there is not found.
finds() { # ARGUMENTS_OF_FIND_PACKAGE
  mkdir -p "$dir/finds"
  printf 'cmake_minimum_required(VERSION 3.25)\nproject(finds LANGUAGES CXX)\nfind_package(ddrun %s REQUIRED)\n' "$1" \
    >"$dir/finds/CMakeLists.txt"
  "$cmake" -S "$dir/finds" -B "$dir/finds/build" "-DCMAKE_CXX_COMPILER=$compiler" "-DCMAKE_PREFIX_PATH=$prefix" \
    >"$dir/log" 2>&1
}
version=$("$prefix/bin/ddrun" --version | sed -nE 's/^ddrun ([0-9]+\.[0-9]+).*/\1/p')
finds "$version" || { cat "$dir/log"; fail "find_package(ddrun $version) finds nothing"; }
! finds "${version%.*}.$((${version#*.} + 1))" || fail "find_package is content with an older minor version"
! finds "$version COMPONENTS no_such_thing" || fail "find_package finds a component that does not exist"

# 7. Without CMake.
if command -v pkg-config >/dev/null; then
  flags=$(PKG_CONFIG_PATH=$prefix/lib/pkgconfig pkg-config --cflags --libs ddrun-store)
  # shellcheck disable=SC2086 # several flags each
  quietly "$compiler" -std=c++20 $CXXFLAGS "$dir/project/main.cpp" -o "$dir/by-hand" $flags
  quietly "$prefix/bin/ddrun" --nproc-per-node=2 "$dir/by-hand"
fi
