#!/usr/bin/env bash
# totals.sh SOURCE_DIR CMAKE: the closing lines of scripts/test, from a small project with every way for a test to end.
set -euo pipefail
source_dir=$1
PATH=$(dirname "$2"):$PATH
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
fail() { echo "FAILED: $*"; exit 1; }

cat >"$dir/CMakeLists.txt" <<'END'
cmake_minimum_required(VERSION 3.25)
project(totals LANGUAGES NONE)
enable_testing()
add_test(NAME "one: goes well" COMMAND true)
add_test(NAME "two: says <failure & SKIPPED> but goes well" COMMAND echo "failed, skipped")
add_test(NAME "three: fails" COMMAND false)
add_test(NAME "four: takes too long" COMMAND sleep 60)
add_test(NAME "five: is skipped" COMMAND sh -c "echo noise; echo SKIPPED: no \\\"GPU\\\" \\& no driver; echo more")
add_test(NAME "six: program is missing" COMMAND ${CMAKE_SOURCE_DIR}/missing)
add_test(NAME "seven: crashes" COMMAND sh -c "kill -SEGV $$")
foreach(runs IN ITEMS 2 3 4) # passes when it has been run so often
  add_test(NAME "flaky (+) [${runs}]: fails at first"
    COMMAND sh -c "echo run >>runs.${runs}; test $(wc -l <runs.${runs}) -ge ${runs}")
endforeach()
set_tests_properties("one: goes well" PROPERTIES FIXTURES_SETUP made)
set_tests_properties("flaky (+) [2]: fails at first" PROPERTIES FIXTURES_REQUIRED made)
set_tests_properties("four: takes too long" PROPERTIES TIMEOUT 1)
set_tests_properties("five: is skipped" PROPERTIES SKIP_REGULAR_EXPRESSION "SKIPPED:")
if(BESIDE)
  add_test(NAME "beside: goes well" COMMAND true)
  add_test(NAME "beside: fails" COMMAND false)
  add_test(NAME "beside: goes on" COMMAND sh -c "echo $$ >beside.pid; exec sleep 60")
endif()
END
cat >"$dir/CMakePresets.json" <<'END'
{"version": 6, "configurePresets": [{"name": "dev", "generator": "Ninja", "binaryDir": "${sourceDir}/build/${presetName}"},
                      {"name": "other", "inherits": "dev"}],
 "testPresets": [{"name": "dev", "configurePreset": "dev"}, {"name": "other", "configurePreset": "other"}]}
END
mkdir -p "$dir/scripts/lib"
cp "$source_dir"/scripts/lib/*.sh "$dir/scripts/lib/"
cat >"$dir/scripts/totals" <<'END'
set -euo pipefail
. "$(dirname "$0")/lib/common.sh"
. "$(dirname "$0")/lib/ctest.sh"
run_ctest dev "$@"
[ -z "${RETRY:-}" ] || retry_failed
count pass lint
print_totals
END
(cd "$dir" && cmake --preset dev >/dev/null)

status=0
bash "$dir/scripts/totals" -E flaky >"$dir/all" 2>&1 || status=$?
[ "$status" -eq 1 ] || fail "the status is $status"
expected='skipped: dev: five: is skipped: no "GPU" & no driver
failed: dev: three: fails
failed: dev: four: takes too long
failed: dev: six: program is missing
failed: dev: seven: crashes
3 passed, 4 failed, 1 skipped'
[ "$(tail -n 6 "$dir/all")" = "$expected" ] || { cat "$dir/all"; fail "the closing lines are not: $expected"; }

bash "$dir/scripts/totals" -R '^(one|two|five)' >"$dir/good" 2>&1 || { cat "$dir/good"; fail "the good ones fail"; }
[ "$(tail -n 1 "$dir/good")" = '3 passed, 0 failed, 1 skipped' ] || { cat "$dir/good"; fail "closing line"; }

# A test that fails is run again alone, twice at most; which of them passed then is said.
status=0
RETRY=1 bash "$dir/scripts/totals" -R '^(one|flaky)' >"$dir/flaky" 2>&1 || status=$?
[ "$status" -eq 1 ] || fail "the status with a test that fails thrice is $status"
expected='flaky: dev: flaky (+) [2]: fails at first, 1 of 2
flaky: dev: flaky (+) [3]: fails at first, 2 of 3
failed: dev: flaky (+) [4]: fails at first
4 passed, 1 failed, 0 skipped'
[ "$(tail -n 4 "$dir/flaky")" = "$expected" ] || { cat "$dir/flaky"; fail "the closing lines are not: $expected"; }
[ "$(wc -l <"$dir/build/dev/runs.4")" -eq 3 ] || fail "what fails is run $(cat "$dir/build/dev/runs.4")"
RETRY=1 bash "$dir/scripts/totals" -R '^(one|flaky)' >"$dir/flaky" 2>&1 || { cat "$dir/flaky"; fail "all pass, and the run fails"; }

# Totals of another run are added, and one that stopped without any is a failure.
cat >"$dir/scripts/added" <<'END'
set -euo pipefail
. "$(dirname "$0")/lib/common.sh"
. "$(dirname "$0")/lib/ctest.sh"
count pass lint
add_totals elsewhere "$1"
print_totals
END
status=0
bash "$dir/scripts/added" "$dir/all" >"$dir/added" || status=$?
expected='skipped: elsewhere: dev: five: is skipped: no "GPU" & no driver
failed: elsewhere: dev: three: fails'
[ "$status" -eq 1 ] || fail "the status with added failures is $status"
[ "$(head -n 2 "$dir/added")" = "$expected" ] || { cat "$dir/added"; fail "what is added is not named: $expected"; }
[ "$(tail -n 1 "$dir/added")" = '4 passed, 4 failed, 1 skipped' ] || { cat "$dir/added"; fail "totals are not added"; }
echo killed >"$dir/cut"
! bash "$dir/scripts/added" "$dir/cut" >"$dir/added" || fail "a run that stopped passes"
[ "$(tail -n 1 "$dir/added")" = '1 passed, 1 failed, 0 skipped' ] || { cat "$dir/added"; fail "a run that stopped"; }

# Beside runs of another preset: counted with them, and ended with the script.
cat >"$dir/scripts/beside" <<'END'
set -euo pipefail
. "$(dirname "$0")/lib/common.sh"
. "$(dirname "$0")/lib/ctest.sh"
trap stop_ctest EXIT
begin_ctest other "${@:2}"
[ "$1" = stop ] || run_ctest dev -R '^one'
[ "$1" != stop ] || until [ -s "$root/build/other/beside.pid" ]; do sleep 0.02; done
[ "$1" = stop ] || end_ctest other
print_totals
END
(cd "$dir" && cmake --preset other -DBESIDE=ON >/dev/null)
bash "$dir/scripts/beside" both -R '^beside' -E 'goes on' >"$dir/both" 2>&1 && { cat "$dir/both"; fail "a failure beside is not seen"; }
[ "$(tail -n 2 "$dir/both")" = 'failed: other: beside: fails
2 passed, 1 failed, 0 skipped' ] || { cat "$dir/both"; fail "what ran beside is not counted"; }
bash "$dir/scripts/beside" both -R '^no such test' >"$dir/none" 2>&1 || { cat "$dir/none"; fail "no test beside that matches"; }
[ "$(tail -n 1 "$dir/none")" = '1 passed, 0 failed, 0 skipped' ] || { cat "$dir/none"; fail "closing line"; }
timeout 30 bash "$dir/scripts/beside" stop -R 'goes on' >"$dir/stop" 2>&1 || { cat "$dir/stop"; fail "the script does not end"; }
pid=$(cat "$dir/build/other/beside.pid")
for _ in $(seq 500); do
  [ -e "/proc/$pid" ] || exit 0
  sleep 0.02
done
fail "a test beside runs on after the script"
