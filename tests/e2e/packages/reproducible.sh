#!/usr/bin/env bash
# reproducible.sh SOURCE_DIR BUILD_DIR CMAKE: builds the same sources once more in another folder, as BUILD_DIR was.
set -euo pipefail
source_dir=$1 build=$2 cmake=$3
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
mkdir "$dir/source-elsewhere"
cd "$source_dir"
git -c safe.directory='*' ls-files -z --cached --others --exclude-standard | while IFS= read -r -d '' file; do
  [ ! -e "$file" ] || printf '%s\0' "$file"
done | tar --null --files-from - -cf - | tar -C "$dir/source-elsewhere" -xf -
# There it is in no repository.
git -c safe.directory='*' describe --always --dirty=+changes --exclude='*' --abbrev=12 >"$dir/source-elsewhere/scripts/cmake/commit.txt"

cd "$dir/source-elsewhere"
export CCACHE_DISABLE=1
flags=$(sed -n 's/^CMAKE_CXX_FLAGS_RELWITHDEBINFO:[A-Z]*=//p' "$build/CMakeCache.txt")
if ! "$cmake" --preset release -B "$dir/build" -DDDRUN_BUILD_TESTS=OFF "-DCMAKE_CXX_FLAGS_RELWITHDEBINFO=$flags" >"$dir/log" 2>&1 ||
  ! nice "$cmake" --build "$dir/build" --target ddrun_programs >>"$dir/log" 2>&1; then
  tail -n 40 "$dir/log"
  echo "FAILED: the build"
  exit 1
fi
for file in "$dir/build/bin"/*; do
  cmp "$file" "$build/bin/$(basename "$file")" || { echo "FAILED: $(basename "$file") depends on the folder"; exit 1; }
done
