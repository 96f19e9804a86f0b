# shellcheck shell=bash
# Running CTest and adding up what came of it. Needs common.sh.

passed=0 failed=0 skipped=0
failures=() skips=() flaky=()
failed_tests=() # of CTest: the preset of tests and the name, a tab between them

# More failures than this are no chance: none of them is run again. Nor does any begin again after so many seconds.
max_retried=10 retry_seconds=600

# run_ctest PRESET [CTEST_OPTION…]   goes on after failing tests: they are run again by retry_failed, or counted as failed.
# A second run of a preset needs another ctest_name, that of its logs.
run_ctest() {
  begin_ctest "$@"
  end_ctest "$1"
}

# begin_ctest PRESET [CTEST_OPTION…]   the same beside what follows until end_ctest PRESET, one run of a preset at a time.
# stop_ctest ends all of them, and nothing if there is none.
begin_ctest() {
  local preset=$1 name=${ctest_name:-$1}
  shift
  say "Testing $name ..."
  set -m # a process group of its own, which stop_ctest can end
  _ctest "$name" --preset "$preset" --parallel "$(_test_jobs)" "$@" &
  begun[$preset]="$! $SECONDS $name"
  set +m
}
declare -A begun=() # by preset: process group, start, name

end_ctest() {
  local pid start name status=0
  read -r pid start name <<<"${begun[$1]}"
  wait "$pid" || status=$?
  unset "begun[$1]"
  _count_results "$1" "$name" "$status"
  took "Testing $name" $((SECONDS - start))
}

stop_ctest() {
  local run
  for run in "${begun[@]}"; do kill -TERM -- "-${run%% *}" 2>/dev/null || true; done
  begun=()
}

# Two for each CPU: most tests wait.
_test_jobs() { echo $((2 * $(jobs))); }

# _ctest NAME CTEST_OPTION…   NAME is that of the log.
_ctest() {
  local name=ctest-$1
  shift
  mkdir -p "$log_dir"
  rm -f "$log_dir/$name.xml"
  (cd "$root" && exec ctest --output-junit "$log_dir/$name.xml" "$@") >"$log_dir/$name.log" 2>&1 </dev/null
}

# _count_results PRESET NAME STATUS   of the run with this name, which ended so.
_count_results() {
  local preset=$1 name=ctest-$2 status=$3 log=$log_dir/ctest-$2.log line
  if [ ! -s "$log_dir/$name.xml" ]; then
    tail -n 20 "$log"
    die "ctest did not run the tests of $2 (exit status $status)" "The whole output is in $log"
  fi
  if [ "$status" -ne 0 ]; then
    # Everything but the lines of the tests that went well.
    grep -vE '^ *[0-9]+/[0-9]+ Test +#.* Passed |^ +Start +[0-9]+: |^$' "$log" || true
  fi
  while IFS= read -r line; do
    case $line in
      pass*) passed=$((passed + 1)) ;;
      fail*) failed=$((failed + 1)) failed_tests+=("$preset"$'\t'"${line#fail }") ;;
      skip*) skipped=$((skipped + 1)) skips+=("$preset: ${line#skip }") ;;
    esac
  done < <(_results <"$log_dir/$name.xml")
}

# From CTest's JUnit file, a line for each test: "pass NAME", "fail NAME" or "skip NAME: REASON".
_results() {
  awk '
    function plain(text) {
      gsub(/&lt;/, "<", text); gsub(/&gt;/, ">", text); gsub(/&quot;/, "\"", text); gsub(/&apos;/, "\047", text)
      gsub(/&amp;/, "\\&", text); return text
    }
    function flush_test() {
      if (name == "") return
      if (state == "skip") print "skip " plain(name) ": " plain(reason == "" ? "no reason given" : reason)
      else print state " " plain(name)
      name = ""
    }
    /^\t<testcase / {
      flush_test()
      name = $0; sub(/^.* name="/, "", name); sub(/".*/, "", name)
      state = $0 ~ / status="run"/ ? "pass" : $0 ~ / status="disabled"/ ? "skip" : "fail" # "notrun" may be either
      reason = ""
    }
    /^\t\t<failure/ { state = "fail" }
    /^\t\t<skipped message="SKIP_/ { state = "skip" }
    /SKIPPED: / && reason == "" {
      reason = $0; sub(/^.*SKIPPED: /, "", reason); sub(/<\/system-out>.*/, "", reason)
    }
    END { flush_test() }
  '
}

# retry_failed   runs each test that has failed again, alone, twice at most. One that passes then is counted as passed and
# named as flaky at the end.
retry_failed() {
  local entry again=("${failed_tests[@]}") preset name start=$SECONDS
  [ ${#again[@]} -gt 0 ] || return 0
  if [ ${#again[@]} -gt "$max_retried" ]; then
    say "${#again[@]} tests failed, which is more than chance: none is run again"
    return 0
  fi
  failed_tests=()
  for entry in "${again[@]}"; do
    preset=${entry%%$'\t'*} name=${entry#*$'\t'}
    if [ $((SECONDS - start)) -ge "$retry_seconds" ]; then
      failed_tests+=("$entry")
      continue
    elif _passes_alone "$preset" "$name" 2; then
      flaky+=("$preset: $name, 1 of 2")
    elif _passes_alone "$preset" "$name" 3; then
      flaky+=("$preset: $name, 2 of 3")
    else
      failed_tests+=("$entry")
      continue
    fi
    passed=$((passed + 1)) failed=$((failed - 1))
  done
  took "Running failed tests again" $((SECONDS - start))
}

# _passes_alone PRESET NAME TRY
_passes_alone() {
  local log=retry-$3 exact
  # Every character that is none of these may mean something in a regular expression.
  # shellcheck disable=SC2001 # ${2//…} has no back reference
  exact=$(sed 's/[^A-Za-z0-9 ]/\\&/g' <<<"$2")
  say "Running $1: $2 again, alone ($3 of 3) ..."
  if _ctest "$log" --preset "$1" --parallel 1 -R "^$exact\$" &&
    _results <"$log_dir/ctest-$log.xml" | grep -xF "pass $2" >/dev/null; then # with its fixtures, if it needs some
    return 0
  fi
  cat "$log_dir/ctest-$log.log"
  return 1
}

# count STATE NAME [REASON]   a check that is no CTest test.
count() {
  case $1 in
    pass) passed=$((passed + 1)) ;;
    fail) failed=$((failed + 1)) failures+=("$2${3:+: $3}") ;;
    skip) skipped=$((skipped + 1)) skips+=("$2${3:+: $3}") ;;
  esac
}

# add_totals NAME LOG   adds the last lines of another scripts/test.
add_totals() {
  local line
  line=$(tail -n 1 "$2")
  if [[ ! $line =~ ^([0-9]+)\ passed,\ ([0-9]+)\ failed,\ ([0-9]+)\ skipped$ ]]; then
    count fail "$1" "stopped: $line (see $2)"
    return
  fi
  passed=$((passed + BASH_REMATCH[1])) failed=$((failed + BASH_REMATCH[2])) skipped=$((skipped + BASH_REMATCH[3]))
  while IFS= read -r line; do
    case $line in
      'skipped: '*) skips+=("$1: ${line#skipped: }") ;;
      'failed: '*) failures+=("$1: ${line#failed: }") ;;
      'flaky: '*) flaky+=("$1: ${line#flaky: }") ;;
    esac
  done <"$2"
}

# The last lines of a run; its status is 1 if something failed.
print_totals() {
  local line
  for line in "${skips[@]}"; do say "skipped: $line"; done
  for line in "${flaky[@]}"; do say "flaky: $line"; done
  for line in "${failed_tests[@]}"; do say "failed: ${line/$'\t'/: }"; done
  for line in "${failures[@]}"; do say "failed: $line"; done
  say "$passed passed, $failed failed, $skipped skipped"
  [ "$failed" -eq 0 ]
}
