# shellcheck shell=bash
# Running CTest and adding up what came of it. Needs common.sh.

passed=0 failed=0 skipped=0
failures=() skips=()

# run_ctest PRESET [CTEST_OPTION…]   goes on after failing tests: they are counted and named at the end.
run_ctest() {
  local preset=$1 name=ctest-$1 log start=$SECONDS status=0 line
  shift
  log=$log_dir/$name.log
  mkdir -p "$log_dir"
  rm -f "$log_dir/$name.xml"
  say "Testing $preset ..."
  (cd "$root" && ctest --preset "$preset" --parallel "$(jobs)" --output-junit "$log_dir/$name.xml" "$@") \
    >"$log" 2>&1 </dev/null || status=$?
  if [ ! -s "$log_dir/$name.xml" ]; then
    tail -n 20 "$log"
    die "ctest did not run the tests of $preset (exit status $status)" "The whole output is in $log"
  fi
  if [ "$status" -ne 0 ]; then
    # Everything but the lines of the tests that went well.
    grep -vE '^ *[0-9]+/[0-9]+ Test +#.* Passed |^ +Start +[0-9]+: |^$' "$log" || true
  fi
  while IFS= read -r line; do
    case $line in
      pass*) passed=$((passed + 1)) ;;
      fail*) failed=$((failed + 1)) failures+=("$preset: ${line#fail }") ;;
      skip*) skipped=$((skipped + 1)) skips+=("$preset: ${line#skip }") ;;
    esac
  done < <(_results <"$log_dir/$name.xml")
  say "Testing $preset: done in $((SECONDS - start)) s"
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

# count STATE NAME [REASON]   a check that is no CTest test.
count() {
  case $1 in
    pass) passed=$((passed + 1)) ;;
    fail) failed=$((failed + 1)) failures+=("$2${3:+: $3}") ;;
    skip) skipped=$((skipped + 1)) skips+=("$2${3:+: $3}") ;;
  esac
}

# The last lines of a run; its status is 1 if something failed.
print_totals() {
  local line
  for line in "${skips[@]}"; do say "skipped: $line"; done
  for line in "${failures[@]}"; do say "failed: $line"; done
  say "$passed passed, $failed failed, $skipped skipped"
  [ "$failed" -eq 0 ]
}
