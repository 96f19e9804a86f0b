#!/usr/bin/env bash
# commit.sh SOURCE_DIR CMAKE: what a build says about its commit, in a repository, after a commit, in an archive, without.
set -euo pipefail
source_dir=$1 cmake=$2
command -v git >/dev/null || { echo "SKIPPED: git is not installed"; exit 0; }

dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
fail() { echo "FAILED: $*"; exit 1; }
commit_of() { # REPOSITORY: the string that a build there would hold
  "$cmake" "-DSOURCE_DIR=$1" "-DOUTPUT=$dir/commit.hpp" -P "$1/scripts/cmake/DdrunCommit.cmake"
  sed -n 's/^#define DDRUN_COMMIT "\(.*\)"$/\1/p' "$dir/commit.hpp"
}
export GIT_AUTHOR_NAME=test GIT_AUTHOR_EMAIL=test@example.invalid GIT_CONFIG_NOSYSTEM=1 HOME="$dir"
export GIT_COMMITTER_NAME=$GIT_AUTHOR_NAME GIT_COMMITTER_EMAIL=$GIT_AUTHOR_EMAIL
unset GIT_DIR GIT_WORK_TREE GIT_INDEX_FILE

repository=$dir/repository
mkdir -p "$repository/scripts/cmake"
git init -q -b main "$repository"
# shellcheck disable=SC2016 # git's, not ours
echo '$Format:%h$' >"$repository/scripts/cmake/commit.txt"
cp "$source_dir/scripts/cmake/.gitattributes" "$source_dir/scripts/cmake/DdrunCommit.cmake" "$repository/scripts/cmake/"
git -C "$repository" add .
git -C "$repository" commit -q -m one
first=$(git -C "$repository" rev-parse --short=12 HEAD)
[ "$(commit_of "$repository")" = "$first" ] || fail "the first commit is not named: $(cat "$dir/commit.hpp")"

touch -d '2001-01-01' "$dir/commit.hpp"
commit_of "$repository" >/dev/null
[ "$(stat -c %Y "$dir/commit.hpp")" -lt 1000000000 ] || fail "the header is written again though nothing changed"

echo more >>"$repository/scripts/cmake/.gitattributes"
[ "$(commit_of "$repository")" = "$first+changes" ] || fail "changed files do not show: $(cat "$dir/commit.hpp")"

git -C "$repository" commit -q -a -m two
second=$(git -C "$repository" rev-parse --short=12 HEAD)
[ "$(commit_of "$repository")" = "$second" ] || fail "the second commit is not named: $(cat "$dir/commit.hpp")"

mkdir "$dir/archive"
git -C "$repository" archive HEAD | tar -x -C "$dir/archive"
archived=$(commit_of "$dir/archive")
[[ ${#archived} -ge 7 && $second == "$archived"* ]] || fail "an archive of $second says $archived"

rm -rf "$repository/.git"
[ "$(commit_of "$repository")" = unknown ] || fail "without git and archive it says $(cat "$dir/commit.hpp")"
