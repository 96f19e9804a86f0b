#!/bin/sh
# A job's lease in etcd 3.4 or newer, by PROTOCOL.md and through etcdctl. ddrun contains this program and runs it:
#   sh -c PROGRAM etcd ENDPOINT,... CACERT CERT KEY      (empty: none)
# All else is etcdctl's: ETCDCTL_USER and so on. Works with dash, bash and busybox.
# Below /ddrun/JOB/ are two keys. `leader` is attached to the leader's lease: its value is the address, its create
# revision the term. `verdict` is attached to a lease of a day. Values stay percent-encoded: one word.
# feed copies ddrun's lines and `etcdctl watch` prints changes of `leader`, both into one pipe, which main reads.
set -uf
trap '' INT TERM HUP PIPE USR1 USR2 # ddrun closes stdin at the end
trap 'exit 1' ALRM
say() { printf '%s\n' "$1"; } # an echo may interpret backslashes
fail() { say "$1" >&2; kill -ALRM $$; finish; }
lease='' term='' address='' tick='' mute=0 synced='' watcher='' debug=--debug troubled='' long='' id='' key='' nl='
'
members=$1
for name in CACERT CERT KEY; do shift; [ -z "$1" ] || export "ETCDCTL_$name=$1"; done
[ -z "${DDRUN_ETCD_USER:-}" ] || { export ETCDCTL_USER="$DDRUN_ETCD_USER" && unset ETCDCTL_PASSWORD; }
# etcdctl would ask the terminal for a password, and refuses an option that is also in the environment.
case ${ETCDCTL_USER:-:}${ETCDCTL_PASSWORD+:} in *:*) ;; *) fail "the user of etcd needs a password: give NAME:PASSWORD" ;; esac
export ETCDCTL_ENDPOINTS="$members" ETCDCTL_API=3 ETCDCTL_WRITE_OUT=fields LC_ALL=C
unset ETCDCTL_COMMAND_TIMEOUT ETCDCTL_HEX ETCDCTL_DEBUG ETCDCTL_WATCH_KEY ETCDCTL_WATCH_RANGE_END
read -r what version ttl job || exit 0
[ "$what $version" = "job 1" ] || fail "speaks version 1 of the lease's protocol only"
keys=/ddrun/$job patience=$((ttl < 9000 ? ttl / 3 : 3000)) ttl=$((ttl / 1000))
all="get --prefix $keys/$nl" seconds=$((patience / 1000)).$(printf %03d $((patience % 1000)))
# The process group, which ends with this program, has to stay; busybox's timeout keeps it.
timeout --foreground 1 true 2>/dev/null && foreground=--foreground || foreground=''
read -r _ _ _ _ group _ </proc/self/stat
# feed: copies ddrun's lines to main (descriptor 3), and with each tick asks the watch (stdout) whether it works.
feed() {
  while IFS= read -r line; do
    # A write of more than PIPE_BUF bytes could be torn by the watch's.
    if [ "${line%% *}" = verdict ]; then
      say "${line#* }" | fold -w 2000 | while read -r part; do say "part $part" >&3; done
      line=verdict
    fi
    say "$line" >&3 || kill -ALRM $$
    [ "${line%% *}" != tick ] || echo progress || exit # the watch has ended
  done
  echo end >&3
}
# watch: a watch ends with its input. One that fails is restarted with ddrun's next line.
watch() {
  while
    { echo "watch $keys/leader" && feed; } | sh -c 'echo "watching $$" && exec etcdctl watch -i'
    IFS= read -r line
  do say "$line"; done
}
# end_watch: while etcd is away it does not read its input. Its PID may be another's by now.
end_watch() { read -r _ _ _ _ of _ <"/proc/$watcher/stat" && [ "$of" = "$group" ] && kill -KILL "$watcher"; } 2>/dev/null
# finish: ends after the others, since ddrun would take an orphan for a worker's.
finish() { end_watch; while read -r what watcher; do [ "$what" != watching ] || end_watch; done; exit; }
# ask INPUT WORD...: runs etcdctl with one member, after a failure with the next one, which is kept. etcdctl's own timeout
# is not for transactions and renewals. Until the first `done` --debug says why there is no connection. What writes may be
# refused while all else is answered: that trouble lasts until etcd has written.
ask() {
  input=$1 && shift
  case "$*" in txn* | 'lease grant'*) kind=write ;; *) kind=read ;; esac
  for _ in first second; do
    answer=$(say "$input" | ETCDCTL_ENDPOINTS=${members%%,*} timeout ${foreground:+"$foreground"} -s KILL "$seconds" \
      etcdctl ${debug:+"$debug"} --command-timeout=$((patience - 100))ms "$@" 2>&1) && learn && return
    case $answer in *'lease not found'*) return 1 ;; esac
    [ "$members" = "${members#*,}" ] || members=${members#*,},${members%%,*}
  done
  synced='' why=$(say "$answer" | sed -n '/transport is closing/d; s/\\//g; s/.*connection error: desc = "\(.*\)".*/\1/p
    s/^Error: //p' | head -n 1 | tr -c ' -~\n' '?')
  ! say "$debug $why" | grep -qE '^--debug (open |.*(x509:|tls:|authentication failed|permission denied|user name is empty))' ||
    fail "cannot use etcd: $why"
  why="${members##*,}: ${why:-no answer in $seconds s}"
  [ "$troubled" = "$kind" ] || say "trouble etcd cannot be asked: $why"
  troubled=$kind && return 1
}
# learn: reads an answer. The state is leader (the term), holder (a lease), shown (the address), verdict, kept (a lease).
learn() {
  while read -r name _ value; do
    case $name in
      '"ID"') id=$value ;;
      '"Key"') key=$value ;;
      '"CreateRevision"') created=$value ;;
      '"Value"') word=${value#?} word=${word%?} ;;
      '"Lease"')
        case $word in '' | *[!A-Za-z0-9._%-]*) word='%?' ;; esac # another program's
        case $key in
          "\"$keys/leader\"") leader=$created holder=$value shown=$word ;;
          "\"$keys/verdict\"") verdict=$word kept=$value ;;
        esac ;;
    esac
  done <<EOF
$answer
EOF
  case $troubled,$kind in ,* | write,read) return ;; esac
  say "trouble etcd answers again" && troubled=''
}
forget() { leader='' holder='' shown='' verdict='' kept=''; } && forget
hex() { printf %x "$1"; }
put() { say "put --lease=$(hex "$3") -- $keys/$1 $2"; }
revoke() { ask '' lease revoke "$(hex "$1")"; }
give_up() {
  given=$lease lease='' term=''
  [ -z "$given" ] || revoke "$given"
  [ "$holder" != "$given" ] || leader=''
}
# settle: what was read decides whether this machine leads. An own lease without a key may be of a request on its way.
settle() {
  if [ -n "$leader" ] && [ "$holder" = "$lease" ]; then term=$leader; elif [ -n "$leader$term" ]; then give_up; fi
}
look() { forget; ask '' get --prefix "$keys/" && settle; }
report() {
  case $verdict in '') ;; '%?') say "trouble $keys/verdict in etcd is another program's" ;; *) say "verdict $verdict" ;; esac
  if [ -z "$leader" ]; then echo none; elif [ -z "$term" ]; then say "leader $leader ${shown%\?}"; fi
  [ "$shown" != '%?' ] || say "trouble $keys/leader in etcd is another program's"
}
# transact TERM PUTS: in one step, PUTS if the leader's key is of TERM (0: none) and there is no verdict; reads the state.
transact() {
  forget
  ask "create(\"$keys/leader\") = \"$1\"${nl}create(\"$keys/verdict\") = \"0\"$nl$nl$2$nl$all$nl$all" txn && settle
}
acquire() {
  [ -n "$lease" ] || { ask '' lease grant "$ttl" && lease=$id; } || return
  transact 0 "$(put leader "$address" "$lease")" || case $answer in *'lease not found'*) lease='' ;; esac
}
publish() { [ "$shown" = "$address" ] || transact "$term" "$(put leader "$address" "$lease")"; }
renew() { if ask '' lease keep-alive --once "$(hex "$lease")"; then say "mine $term $tick"; else leader=''; fi; }
check() {
  tick=$1 mute=$((mute + 1))
  [ $((mute % 3)) -gt 0 ] || end_watch
  # Without a sign of life since the last tick the watch may have missed a change.
  if [ "$mute" -gt 1 ] || [ -z "$leader" ] || [ -n "$verdict" ]; then
    look || return
    [ -n "$leader$verdict" ] || [ -z "$address" ] || acquire
    report
  fi
  [ -z "$term" ] || publish
  [ -z "$term" ] || renew
}
record() {
  if [ -n "$term" ] && ask '' lease grant 86400; then
    day=$id # the second put is for the others' watches
    transact "$term" "$(put verdict "$1" "$day")$nl$(put leader "$address" "$lease")" && [ "$kept" != "$day" ] && revoke "$day"
  fi
  if [ -n "$1" ] && [ "$verdict" = "$1" ]; then echo recorded; else [ -z "$verdict" ] || report; say "refused ${troubled:+$why, or }no lease, or another verdict"; fi
}
main() {
  while read -r what a _; do
    case $what in
      watching) watcher=$a synced='' mute=1 ;;
      progress) mute=0; [ -n "$synced" ] || { synced=1 && look && report; } ;;
      '"Type"') look && report ;; # first line of an event
      campaign) address=$a; [ -z "$term" ] || publish ;;
      tick) check "$a"; say "done $a"; [ -n "$troubled" ] || debug='' ;;
      depose) [ "$a" != "$leader" ] || [ "$holder" = 0 ] || [ -n "$term" ] || { leader='' && revoke "$holder"; } ;;
      resign) address='' && give_up; echo resigned ;;
      part) long=$long$a ;;
      verdict) record "$long$a"; long='' ;; # whole if the watch has read it
      end) break ;;
    esac
  done
  give_up; finish
}
# In the background, so that fail ends the wait.
exec 4<&0
watch <&4 3>&1 4<&- 2>/dev/null | main 4<&- &
wait
