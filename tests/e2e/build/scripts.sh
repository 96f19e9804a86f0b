#!/usr/bin/env bash
# scripts.sh SOURCE_DIR: each script prints its usage from any directory, and refuses what it does not know in one line.
set -euo pipefail
source_dir=$1
fail() { echo "FAILED: $*"; exit 1; }
cd /
for script in quickstart test setup lint fuzz package structure; do
  path=$source_dir/scripts/$script
  [ -x "$path" ] || fail "$path cannot be executed"
  help=$("$path" --help)
  [[ $help == "usage: scripts/$script"* ]] || fail "$script --help does not begin with its usage"
  status=0
  message=$("$path" --no-such-option 2>&1 >/dev/null) || status=$?
  [ "$status" -ne 0 ] || fail "$script accepts --no-such-option"
  grep -q "^scripts/$script: error: .*--no-such-option" <<<"$message" || fail "$script says: $message"
done
message=$("$source_dir/scripts/test" --preset nonsense 2>&1) && fail "test accepts a preset that does not exist"
grep -q 'error: there is no preset nonsense' <<<"$message" || fail "test says: $message"

for option in --full --soak; do
  grep -q -e "$option" <<<"$("$source_dir/scripts/test" --help)" || fail "test --help does not explain $option"
done

# A step that fails names its log and stops the script.
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
status=0
message=$(DDRUN_SCRIPT_LOGS=$dir bash -c '
  set -euo pipefail
  . "$1/scripts/lib/common.sh"
  step "Making tea" tea sh -c "echo no water; exit 7"
  echo not reached' "$source_dir/scripts/tea" "$source_dir" 2>&1) || status=$?
[ "$status" -eq 1 ] || fail "a failed step ends with $status"
grep -q 'error: Making tea failed (exit status 7)' <<<"$message" || fail "a failed step says: $message"
grep -q "$dir/tea.log" <<<"$message" || fail "a failed step does not name its log: $message"
grep -q 'no water' <<<"$message" || fail "a failed step does not show the end of its log: $message"
! grep -q 'not reached' <<<"$message" || fail "the script goes on after a failed step"
