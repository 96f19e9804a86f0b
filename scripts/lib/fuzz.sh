# shellcheck shell=bash
# Building and running the fuzzers. Needs common.sh, build.sh and ctest.sh.

# Why there can be no fuzzing here; nothing if there can.
fuzz_obstacle() {
  if ! command -v clang++ >/dev/null; then
    echo "clang is not installed (scripts/setup --clang)"
  elif ! echo 'extern "C" int LLVMFuzzerTestOneInput(const char*, unsigned long) { return 0; }' |
    clang++ -fsanitize=fuzzer,address,undefined -x c++ - -o /dev/null 2>/dev/null; then
    echo "clang's libFuzzer is not installed (package libclang-rt-dev of clang's version)"
  fi
}

fuzz_build() { build_preset fuzz -- ddrun_fuzzers; }

fuzz_targets=(server client frames handshake order lines ranks batch python unwind page)

# The module that a target is of, and its program.
_fuzz_module() { case $1 in server | client) echo store ;; lines) echo lease ;; ranks | batch) echo pmi ;; python | unwind | page) echo inspect ;; *) echo rendezvous ;; esac }
_fuzz_program() { echo "$root/build/fuzz/tests/fuzz/$(_fuzz_module "$1")_$1"; }

# fuzz SECONDS TARGET…   all targets at once; counts each as a test
fuzz() {
  local seconds=$1 target pids=() log start=$SECONDS
  shift
  mkdir -p "$log_dir"
  for target in "$@"; do
    _fuzz_one "$seconds" "$target" >"$log_dir/fuzz-$target.log" 2>&1 </dev/null &
    pids+=($!)
  done
  say "Fuzzing for $seconds s: $* ..."
  for target in "$@"; do
    log=$log_dir/fuzz-$target.log
    if wait "${pids[0]}"; then
      count pass "fuzzing of $(_fuzz_module "$target")'s $target"
      say "Fuzzing the $target: $(sed -n 's/^Done \([0-9]*\) runs.*/\1 inputs, nothing found/p' "$log")"
    else
      count fail "fuzzing of $(_fuzz_module "$target")'s $target" "$(_fuzz_found "$log") (see $log)"
      say "---- end of $log"
      tail -n "${DDRUN_LOG_TAIL:-40}" "$log"
      say "----"
      say "Once more: $(_fuzz_program "$target")" \
        "$(sed -n 's/.*Test unit written to //p' "$log")"
    fi
    pids=("${pids[@]:1}")
  done
  took "Fuzzing" $((SECONDS - start))
}

# _fuzz_found LOG   what has ended a fuzzer, and with which input
_fuzz_found() {
  sed -nE 's/.*(does not hold: .*|ERROR: .*|runtime error: .*)/\1/p; s/^Base64: /in base64: /p' "$1" | awk 'NR == 1 || /^in base64/' |
    paste -sd ' '
}

fuzz_corpus() { echo "$root/tests/fuzz/corpus/$1"; }

# Options of libFuzzer.
_fuzz_limits=(-max_len=4096 -len_control=20 -timeout=100 -rss_limit_mb=2048)
# The most that is allocated at once, whatever lengths are announced: a reply to short requests can be long.
_fuzz_malloc() { if [ "$1" = server ]; then echo -malloc_limit_mb=256; else echo -malloc_limit_mb=16; fi; }

_fuzz_one() {
  local seconds=$1 target=$2 finds=$root/build/fuzz/finds/$2 crashes=$root/build/fuzz/crashes
  mkdir -p "$finds" "$crashes"
  ASAN_OPTIONS=quarantine_size_mb=64:detect_stack_use_after_return=1 UBSAN_OPTIONS=print_stacktrace=1 \
    exec "$(_fuzz_program "$target")" "${_fuzz_limits[@]}" "$(_fuzz_malloc "$target")" "-max_total_time=$seconds" \
    "-dict=$root/tests/fuzz/$(_fuzz_module "$target").dict" "-artifact_prefix=$crashes/$target-" -print_final_stats=1 \
    "$finds" "$(fuzz_corpus "$target")"
}

# fuzz_merge TARGET   the corpus afresh: few files of it and of the finds that reach all the code that these reach
fuzz_merge() {
  local target=$1 corpus merged=$root/build/fuzz/merged/$1
  corpus=$(fuzz_corpus "$target")
  rm -rf "$merged"
  mkdir -p "$merged" "$root/build/fuzz/finds/$target"
  # Without counters: how often something is reached is worth keeping during a search only.
  step "Merging the corpus of the $target" "fuzz-merge-$target" \
    "$(_fuzz_program "$target")" "${_fuzz_limits[@]}" -set_cover_merge=1 -use_counters=0 \
    "$merged" "$corpus" "$root/build/fuzz/finds/$target"
  # What has a name of ours, rather than a hash of its contents, stays.
  find "$corpus" -type f -regextype posix-extended -regex '.*/[0-9a-f]{40}' -delete
  cp "$merged"/* "$corpus/"
  say "$corpus: $(find "$corpus" -type f | wc -l) files"
}
