#!/bin/sh
# A lease in etcd, for ddrun's lease protocol (lib/lease/PROTOCOL.md): etcd.sh URL. Needs curl, base64 and sed. The
# program ddrun-etcd does it better, with several members, TLS and a watch; this one shows how short such a program is, for
# an engine without one.
set -u
trap '' INT TERM HUP # who ends it closes its stdin
url=${1:?usage: etcd.sh URL, such as http://127.0.0.1:2379}

b64() { printf %s "$1" | base64 | tr -d '\n'; }
# An echo may take a backslash in what others wrote for something of its own.
say() { printf '%s\n' "$1"; }
# word BASE64: what was kept, on one line whatever it is.
word() { printf %s "$1" | base64 -d | tr -d '\n'; }
# ask PATH BODY: the answer; fails without one that is etcd's.
ask() {
  answer=$(curl -sS --max-time "$patience" -X POST "$url$1" -d "$2" 2>&1 | tr -d '\n')
  case $answer in
    *'"header":'*) return 0 ;;
    *) return 1 ;;
  esac
}
# field NAME: its value in the answer, with or without quotes.
field() { printf %s "$answer" | sed -n 's/.*"'"$1"'":"\{0,1\}\([^",}]*\).*/\1/p'; }
# granted SECONDS: makes a lease, and says its id.
granted() { ask /v3/lease/grant "{\"TTL\":\"$1\"}" && field ID; }
made_in() { printf '{"key":"%s","target":"CREATE","result":"EQUAL","create_revision":"%s"}' "$1" "$2"; }
put() { printf '{"requestPut":{"key":"%s","value":"%s","lease":"%s"}}' "$1" "$2" "$3"; }

give_up() {
  [ -z "$lease" ] || ask /v3/lease/revoke "{\"ID\":\"$lease\"}"
  lease='' term=''
}

tick() {
  if ! ask /v3/kv/range "{\"key\":\"$verdict_key\"}"; then
    echo "trouble cannot ask $url"
    return
  fi
  verdict=$(field value)
  [ -z "$verdict" ] || say "verdict $(word "$verdict")"
  ask /v3/kv/range "{\"key\":\"$leader_key\"}" || return
  if [ -n "$lease" ] && [ "$(field lease)" = "$lease" ]; then
    term=$(field create_revision)
    if [ "$(field value)" != "$(b64 "$address")" ]; then
      ask /v3/kv/txn "{\"compare\":[$(made_in "$leader_key" "$term")],\"success\":[$(put "$leader_key" "$(b64 "$address")" "$lease")]}"
    fi
    ask /v3/lease/keepalive "{\"ID\":\"$lease\"}" || return
    # One that has run out has no time left.
    if [ -n "$(field TTL)" ]; then echo "mine $term $1"; fi
  elif [ -n "$(field create_revision)" ]; then
    say "leader $(field create_revision) $(word "$(field value)")"
    lease='' term=''
  elif [ -n "$address" ] && [ -z "$verdict" ]; then
    lease=$(granted "$ttl") || return
    ask /v3/kv/txn "{\"compare\":[$(made_in "$leader_key" 0),$(made_in "$verdict_key" 0)],\"success\":[$(put "$leader_key" "$(b64 "$address")" "$lease")]}" || return
    term=$(field revision)
    case $answer in
      *'"succeeded":true'*) echo "mine $term $1" ;;
      *) give_up ;;
    esac
  else
    echo none
  fi
}

depose() {
  ask /v3/kv/range "{\"key\":\"$leader_key\"}" || return
  if [ "$(field create_revision)" = "$1" ] && [ "$(field lease)" != "$lease" ]; then
    ask /v3/lease/revoke "{\"ID\":\"$(field lease)\"}"
  fi
}

record() {
  if [ -z "$term" ] || ! kept=$(granted 86400); then
    echo "refused there is no lease"
    return
  fi
  if ! ask /v3/kv/txn "{\"compare\":[$(made_in "$leader_key" "$term"),$(made_in "$verdict_key" 0)],\"success\":[$(put "$verdict_key" "$(b64 "$1")" "$kept")]}"; then
    echo "refused cannot ask $url" # it may be there all the same, and so may its lease
    return
  fi
  case $answer in
    *'"succeeded":true'*) echo recorded ;;
    *)
      ask /v3/lease/revoke "{\"ID\":\"$kept\"}"
      if ask /v3/kv/range "{\"key\":\"$verdict_key\"}" && [ "$(field value)" = "$(b64 "$1")" ]; then
        echo recorded # by a request whose answer was lost
        return
      fi
      echo "refused etcd has another leader, or a verdict"
      ;;
  esac
}

lease='' term='' address='' patience=1
while read -r what a b c; do
  case $what in
    job) # its version is $a
      ttl=$((b / 1000))
      patience=$((ttl / 3 + 1))
      leader_key=$(b64 "/ddrun/$c/leader")
      verdict_key=$(b64 "/ddrun/$c/verdict")
      ;;
    campaign) address=$a ;;
    tick)
      tick "$a"
      echo "done $a"
      ;;
    depose) depose "$a" ;;
    resign)
      address=''
      give_up
      echo resigned
      ;;
    verdict) record "$a" ;;
  esac
done
give_up
