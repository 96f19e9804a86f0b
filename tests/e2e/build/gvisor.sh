#!/usr/bin/env bash
# Runs ddrun in gVisor, whose kernel is not quite Linux: GKE Sandbox, Cloud Run and others run containers in it.
#   gvisor.sh DDRUN
set -euo pipefail
ddrun=$1

command -v runsc >/dev/null || { echo "SKIPPED: there is no runsc here"; exit 0; }
sandbox=(runsc --platform=ptrace --network=none --ignore-cgroups "do")
timeout -k 1 20 "${sandbox[@]}" /bin/true 2>/dev/null || { echo "SKIPPED: runsc cannot start a sandbox here"; exit 0; }

# Each line of the result is a scene. In none of them two processes below two subreapers call setsid() at the same time:
# runsc 20221219 deadlocks in that.
scenes=$(
  cat <<'END'
left() { cat /proc/[0-9]*/cmdline | tr '\0' ' ' | grep -c "[s]leep $1" || true; }
ddrun --label=none -n 2 sh -c 'echo hello'
ddrun -q -n 3 sh -c 'test $RANK != 1 || exit 3; exec sleep 1001'; echo "fails $? leaves $(left 1001)"
ddrun -q -n 2 --max-restarts=1 sh -c 'test $TORCHELASTIC_RESTART_COUNT = 1 || exit 3'; echo "restarts $?"
ddrun -q -n 1 ddrun store --help >/dev/null; echo "runs itself $?"
ddrun -q -n 1 /nonexistent/program 2>/dev/null; echo "missing $?"
ddrun -q --timeout=1 -n 2 sleep 1002; echo "time limit $? leaves $(left 1002)"
(export GUARD=$BASHPID; exec ddrun -q -n 2 sh -c 'test $RANK = 1 || kill -INT $GUARD; exec sleep 1003'); echo "Ctrl-C $? leaves $(left 1003)"
END
)
# A pipe: gVisor's and the caller's offset in a file differ.
result=$(PATH="$(dirname "$ddrun"):$PATH" timeout -k 1 60 "${sandbox[@]}" /bin/bash -s <<<"$scenes" 2>&1 | cat)
expected="hello
hello
fails 3 leaves 0
restarts 0
runs itself 0
missing 127
time limit 124 leaves 0
Ctrl-C 130 leaves 0"
if [ "$(grep -v '^ddrun: \|^  ' <<<"$result")" != "$expected" ]; then
  diff <(echo "$expected") <(echo "$result") || true
  exit 1
fi
