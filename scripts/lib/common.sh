# shellcheck shell=bash
# What every script here shares. To be sourced; needs bash 4.4 or newer.
#
#   root           the repository's top directory
#   log_dir        where `step` puts its logs
#   say TEXT       one line to the user
#   die TEXT [DO]  one line of error (and one of advice), then exit 1
#   step WHAT LOG COMMAND…   runs a command, its output in a log; says what and how long, stops if it fails
#   took WHAT SECONDS   says and keeps it; print_times lists all that took some seconds
#   jobs           how many compilers to run at once

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
log_dir=${DDRUN_SCRIPT_LOGS:-$root/build/logs}
script=scripts/$(basename "$0")

say() { printf '%s\n' "$*"; }

die() {
  printf '%s: error: %s\n' "$script" "$1" >&2
  [ -z "${2:-}" ] || printf '  %s\n' "$2" >&2
  exit 1
}

# One compiler per CPU, but not more than memory allows: few of our files take more than 1 GB, the largest 1.5.
jobs() {
  local cpus gigabytes
  cpus=$(nproc)
  gigabytes=$(awk '/^MemAvailable:/ {print int($2 / 1048576)}' /proc/meminfo)
  [ "$gigabytes" -ge 1 ] || gigabytes=1
  echo "${DDRUN_JOBS:-$((cpus < gigabytes ? cpus : gigabytes))}"
}

# On a terminal the last line of output stands behind the step's name, so that one sees it move.
_show_progress() {
  local line columns
  columns=$(tput cols 2>/dev/null || echo 80)
  while IFS= read -r line; do
    printf '%s\n' "$line" >&3
    printf '\r\033[K%.*s' "$((columns - 1))" "$1: ${line//[$'\t\r']/ }"
  done
  printf '\r\033[K'
}

step() {
  local what=$1 log=$log_dir/$2.log status=0 start=$SECONDS
  shift 2
  mkdir -p "$log_dir"
  if [ -t 1 ] && [ -z "${CI:-}" ]; then
    set +e
    "$@" 2>&1 </dev/null | _show_progress "$what" 3>"$log"
    status=${PIPESTATUS[0]}
    set -e
  else
    say "$what ..."
    "$@" >"$log" 2>&1 </dev/null || status=$?
  fi
  if [ "$status" -ne 0 ]; then
    say "---- end of $log"
    tail -n "${DDRUN_LOG_TAIL:-40}" "$log"
    say "----"
    die "$what failed (exit status $status)" "The whole output is in $log"
  fi
  took "$what" $((SECONDS - start))
}

times=()
took() {
  times+=("$2 $1")
  say "$1: done in $2 s"
}

print_times() {
  local seconds what
  [ ${#times[@]} -gt 0 ] || return 0
  say "Where the time went:"
  printf '%s\n' "${times[@]}" | sort -rn | while read -r seconds what; do
    [ "$seconds" -lt 3 ] || printf '%5d s  %s\n' "$seconds" "$what"
  done
}

# The command that a script needs and where it comes from.
need() {
  command -v "$1" >/dev/null || die "$1 is not installed" "$2"
}
