#!/bin/sh
# A Kubernetes Lease, for ddrun's lease protocol (lib/lease/PROTOCOL.md): kubernetes.sh NAME, inside a pod. NAME is that
# of a Lease of the pod's namespace, one for each job; it is made if it is not there, and stays until it is deleted, with
# the job's verdict. (One that is deleted in mid-job begins with term 1 again, which agents of a higher term do not obey.)
# Needs curl and sed, and a service account that may get, create and patch `leases` of
# `coordination.k8s.io`:
#   kubectl create role ddrun --verb=get,create,patch --resource=leases
#   kubectl create rolebinding ddrun --role=ddrun --serviceaccount=default:default
set -u
trap '' INT TERM HUP # who ends it closes its stdin
name=${1:?usage: kubernetes.sh NAME, of the Lease}
account=${DDRUN_SERVICE_ACCOUNT:-/var/run/secrets/kubernetes.io/serviceaccount}
host=${KUBERNETES_SERVICE_HOST:-kubernetes.default.svc}
case $host in *:*) host="[$host]" ;; esac
api=${DDRUN_KUBERNETES_API:-https://$host:${KUBERNETES_SERVICE_PORT:-443}}
leases=$api/apis/coordination.k8s.io/v1/namespaces/$(cat "$account/namespace")/leases
me=$(cat /proc/sys/kernel/random/uuid)

# An echo may take a backslash in what others wrote for something of its own.
say() { printf '%s\n' "$1"; }
# Whose answer was not the one that is wanted, in one line that is not too long.
trouble() { say "trouble cannot ask $api: $(printf %.300s "$answer" | tr -c ' -~' '?')"; }
# ask METHOD URL TYPE [BODY]: `code` and `answer`. The token is not on a command line, and may be another each time.
ask() {
  answer=$(printf 'header = "Authorization: Bearer %s"\n' "$(cat "$account/token")" |
    curl -sS -K - --cacert "$account/ca.crt" --max-time "$patience" -X "$1" -H "Content-Type: $3" ${4:+--data "$4"} \
      -w '\n%{http_code}' "$2" 2>&1 | tr -d '\n')
  code=${answer##*[!0-9]}
}
# field NAME: a text or number in the answer. That of a managed field has another name.
field() { printf %s "$answer" | sed -n 's|.*"'"$1"'": *"\{0,1\}\([^",}]*\).*|\1|p'; }
# In hundredths of a second since the machine's start: a clock that cannot be set.
now() {
  read -r up _ </proc/uptime
  echo "${up%.*}${up#*.}"
}
# lease VERSION TERM HOLDER: what is to be in the object, if it is of that version still. The address is a word, and so
# needs no quoting.
lease() {
  printf '{"apiVersion":"coordination.k8s.io/v1","kind":"Lease","metadata":{"name":"%s"%s,"annotations":{"ddrun/address":"%s"%s}},"spec":{"holderIdentity":"%s","leaseDurationSeconds":%s,"leaseTransitions":%s,"renewTime":"%s"}}' \
    "$name" "${1:+,\"resourceVersion\":\"$1\"}" "$address" "${4:+,\"ddrun/verdict\":\"$4\"}" "$3" "$ttl" "$2" \
    "$(date -u +%Y-%m-%dT%H:%M:%S.000000Z)"
}
# change TERM HOLDER [VERDICT]: nothing if another has changed it since it was read.
change() {
  ask PATCH "$leases/$name" application/merge-patch+json "$(lease "$version" "$1" "$2" "${3:-}")"
  case $code in
    200) version=$(field resourceVersion) ;;
    409) return 1 ;; # another was faster
    *)
      trouble
      return 1
      ;;
  esac
}

look() {
  ask GET "$leases/$name" application/json
  case $code in
    200 | 404) ;;
    *)
      trouble
      return 1
      ;;
  esac
  version=$(field resourceVersion) holder=$(field holderIdentity) other=$(field ddrun/address)
  verdict=$(field ddrun/verdict) transitions=$(field leaseTransitions) lasts=$(field leaseDurationSeconds)
  case ${lasts:-0} in
    *[!0-9]* | 0* | ?????????*) lasts='' ;;
  esac
  case ${transitions:-0} in
    *[!0-9]* | 0?*)
      trouble
      return 1
      ;;
  esac
  # Who holds it is believed for its own time to live after we have seen it renew: clocks of other machines do not count.
  if [ "$version" != "$seen" ]; then
    seen=$version
    seen_at=$(now)
  fi
}

tick() {
  look || return
  if [ "$code" = 404 ]; then
    if [ -z "$address" ]; then
      echo none
      return
    fi
    ask POST "$leases" application/json "$(lease '' 1 "$me")"
    case $code in
      201)
        term=1
        echo "mine 1 $1"
        ;;
      409) ;; # another was faster
      *) trouble ;;
    esac
    return
  fi
  [ -z "$verdict" ] || say "verdict $verdict"
  if [ -n "$term" ] && [ "$holder" = "$me" ]; then
    if change "$term" "$me"; then echo "mine $term $1"; fi
  elif [ -n "$holder" ] && [ "$holder" != "$me" ] && [ $(($(now) - seen_at)) -le $((${lasts:-$ttl} * 100)) ]; then
    term=''
    say "leader $transitions $other"
  elif [ -n "$address" ] && [ -z "$verdict" ]; then
    term=''
    if change $((transitions + 1)) "$me"; then
      term=$((transitions + 1))
      echo "mine $term $1"
    fi
  else
    echo none
  fi
}

# Its address stays for those who ask meanwhile.
depose() {
  look && [ "$code" = 200 ] && [ "$transitions" = "$1" ] && [ "$holder" != "$me" ] || return
  own=$address address=$other
  change "$1" '' "$verdict"
  address=$own
}

give_up() {
  if [ -n "$term" ] && look && [ "$code" = 200 ] && [ "$holder" = "$me" ]; then
    address=$other
    change "$term" ''
  fi
  term='' address=''
}

term='' address='' seen='' seen_at=0 patience=1
while read -r what a b _; do
  case $what in
    job)
      ttl=$((b / 1000))
      patience=$((ttl / 3 + 1))
      ;;
    campaign) address=$a ;;
    tick)
      tick "$a"
      echo "done $a"
      ;;
    depose) depose "$a" ;;
    resign)
      give_up
      echo resigned
      ;;
    verdict)
      if [ -z "$term" ] || ! look || [ "$holder" != "$me" ]; then echo "refused the Lease is another's"
      elif [ "$verdict" = "$a" ]; then echo recorded # by a request whose answer was lost
      elif [ -n "$verdict" ]; then echo "refused the job has a verdict already"
      elif change "$term" "$me" "$a"; then echo recorded
      else echo "refused the Lease was changed by another"; fi
      ;;
  esac
done
give_up
