#!/usr/bin/env bash
# N "hosts" on one machine, each with its own network, host name, processes, /dev/shm, /etc/hosts, home and clock.
#
#   hosts.sh run [N]          make h1 … hN (default 3), all joined by one switch, until it is killed
#   hosts.sh cut HOST         its wire is pulled: packets are dropped without an error
#   hosts.sh heal HOST        the wire is back
#   hosts.sh deaf HOST        it can send but hears nothing (mute: it hears but what it sends vanishes)
#   hosts.sh loss HOST PCT    so many packets in a hundred to it and from it are lost; 0 none
#   hosts.sh rate HOST RATE   it sends no faster, e.g. 1mbit; 0 as fast as it can
#   hosts.sh delay HOST MS    what it sends arrives later; 0 at once
#   hosts.sh block HOST PORT  connections to this port of it vanish (a firewall); "but PORT…": all but to these; "to PORT":
#                             those of it to this port of others
#   hosts.sh reset HOST       its connections are reset, as a box on the way does that has forgotten them; needs
#                             CONFIG_INET_DIAG_DESTROY in the kernel
#   hosts.sh open HOST        undo deaf, mute, loss, block
#   hosts.sh crash HOST       power cut: first the wire, then every process of it
#   hosts.sh boot HOST        it is back, with nothing on it
#
# hX is 10.77.0.X and fd77::X (by name hX-6), head is 10.77.0.254 and fd77::fe. All of it lives in namespaces of one
# process, so that two of these never collide, nothing is added to this machine's own network, and when that process dies,
# however that comes, nothing is left but the folder. Files are common to all hosts, but for /dev/shm and what lies in HOME
# and TMPDIR.
#
# DDRUN_NET_DIR    where its files are (default /tmp/ddrun-net)
# DDRUN_NET_CLOCKS 1: CLOCK_MONOTONIC of hX is X hours ahead of this machine's, as no two machines' are alike (default 0)
#
# Needs root, iproute2, iptables and util-linux; openssh-server for ssh.
set -euo pipefail
self=$(readlink -f "$0")
dir=${DDRUN_NET_DIR:-/tmp/ddrun-net}
net=10.77.0 net6=fd77:

die() {
  echo "hosts.sh: $1" >&2
  exit 1
}

usage() { sed -n '2,/^# Needs/s/^# \{0,1\}//p' "$self"; }

# The processes of a host are those in its pid namespace; its first one is number 1 there. Prints that one's number here.
init_of() {
  local space status
  [ -s "$dir/$1.space" ] || die "there is no host $1 in $dir"
  space=$(<"$dir/$1.space")
  if [ -s "$dir/$1.init" ] && [ "$(readlink "/proc/$(<"$dir/$1.init")/ns/pid" 2>/dev/null)" = "$space" ]; then
    cat "$dir/$1.init"
    return
  fi
  for status in /proc/[0-9]*/status; do
    if [ "$(readlink "${status%/status}/ns/pid" 2>/dev/null)" = "$space" ] &&
      [ "$(sed -n 's/^NSpid:.*[[:space:]]//p' "$status" 2>/dev/null)" = 1 ]; then
      sed -n 's/^Pid:[[:space:]]*//p' "$status" | tee "$dir/$1.init.new"
      mv "$dir/$1.init.new" "$dir/$1.init"
      return
    fi
  done
  die "the host $1 is not running"
}

enter() { # HOST CMD…
  local init
  init=$(init_of "$1")
  shift
  nsenter -t "$init" -a -- "$@"
}

switch() { nsenter -t "$(init_of head)" -n -- "$@"; }

number() { echo "${1#h}"; }

# What of a host is plugged into the switch: its wire, or what comes behind a wire that is late.
plug() { if switch ip link show "s$1" &>/dev/null; then echo "s$1"; else echo "v$1"; fi; }

wait_for() { # WHAT CMD…
  local what=$1 i
  shift
  for ((i = 0; i < 3000; i++)); do
    "$@" && return
    sleep 0.01
  done
  die "$what did not come"
}

is_apart() { local now; now=$(readlink "/proc/$1/ns/net" 2>/dev/null) && [ "$now" != "$(readlink /proc/self/ns/net)" ]; }
exists() { [ -e "$1" ]; }

# --- inside

# The first process of the switch. It must not end, and reaps orphans, as bash does.
head_main() {
  local i names=()
  readlink /proc/self/ns/pid >"$dir/head.space"
  echo head >/proc/sys/kernel/hostname
  mount -t sysfs sysfs /sys
  sysctl -q -w net.ipv6.conf.all.accept_dad=0 net.ipv6.conf.default.accept_dad=0 2>/dev/null || true
  ip link set lo up
  ip link add switch type bridge
  ip addr add "$net.254/24" dev switch
  ip -6 addr add "$net6:fe/64" dev switch nodad 2>/dev/null || true
  ip link set switch up
  {
    echo "127.0.0.1 localhost"
    echo "::1 localhost"
    # torch asks for the names of peers by their v4-mapped addresses, and waits for DNS without these lines.
    echo "::ffff:127.0.0.1 localhost"
    echo "$net.254 head"
    for ((i = 1; i <= $1; i++)); do
      echo "$net.$i h$i"
      echo "::ffff:$net.$i h$i"
      echo "$net6:$i h$i-6"
    done
  } >"$dir/hosts"
  echo "nameserver 127.0.0.1" >"$dir/resolv.conf" # names that are not in /etc/hosts fail at once
  [ "${DDRUN_NET_SSH:-0}" != 1 ] || ssh_keys
  names_here
  for ((i = 1; i <= $1; i++)); do names+=("h$i"); done
  for i in "${names[@]}"; do boot_main "$i" & done
  for i in "${names[@]}"; do wait_for "$i" exists "$dir/$i.up"; done
  touch "$dir/ready"
  forever
}

names_here() {
  mount --bind "$dir/hosts" /etc/hosts
  mount --bind "$dir/resolv.conf" "$(readlink -f /etc/resolv.conf)" 2>/dev/null || true
}

forever() {
  local never
  exec {never}<> <(:)
  while :; do read -r -u "$never" || true; done
}

ssh_keys() {
  local i h
  mkdir -p /run/sshd
  ssh-keygen -q -t ed25519 -N '' -f "$dir/id"
  : >"$dir/known"
  {
    for ((i = 1; i <= 254; i++)); do
      h=h$i
      grep -q " $h\$" "$dir/hosts" || continue
      ssh-keygen -q -t ed25519 -N '' -f "$dir/$h.key"
      echo "$h,$h-6,$net.$i,$net6:$i $(cut -d' ' -f1,2 "$dir/$h.key.pub")" >>"$dir/known"
      printf 'Host %s\n  HostName %s\n' "$h" "$net.$i"
    done
    printf '%s\n' "Host *" "  User root" "  IdentityFile $dir/id" "  IdentitiesOnly yes" \
      "  UserKnownHostsFile $dir/known" "  BatchMode yes" "  ConnectTimeout 5" "  LogLevel ERROR"
  } >"$dir/ssh_config"
}

# In head: starts a host and plugs its wire in.
boot_main() {
  local h=$1 i clock=() wire
  i=$(number "$h")
  rm -f "$dir/$h.up" "$dir/$h.init" "$dir/$h.space"
  if [ "${DDRUN_NET_CLOCKS:-0}" = 1 ] && exists /proc/self/ns/time; then
    clock=(--time --monotonic "$((i * 3600))" --boottime "$((i * 3600))")
  fi
  setsid unshare --net --uts --ipc --pid --mount "${clock[@]}" --fork --kill-child --mount-proc "$self" _host "$h" \
    >"$dir/$h.log" 2>&1 </dev/null &
  wire=$!
  wait_for "$h" is_apart "$wire"
  ip link del "v$h" 2>/dev/null || true
  ip link del "d$h" 2>/dev/null || true # the wire was late
  # Always the same card: the others remember it.
  ip link add "v$h" type veth peer name eth0 address "$(printf '02:00:0a:4d:00:%02x' "$(number "$h")")" netns "$wire"
  ip link set "v$h" master switch up
  wait_for "$h" exists "$dir/$h.up"
}

# The first process of a host.
host_main() {
  local h=$1 i
  i=$(number "$h")
  echo "$h" >/proc/sys/kernel/hostname
  mount -t sysfs sysfs /sys
  mount -t tmpfs tmpfs /dev/shm
  mkdir -p "$dir/$h/home" "$dir/$h/tmp" "$dir/$h/small"
  chmod 700 "$dir/$h/home"
  chmod 1777 "$dir/$h/tmp"
  ip link set lo up
  wait_for "the wire" exists /sys/class/net/eth0
  ip addr add "$net.$i/24" dev eth0
  ip -6 addr add "$net6:$i/64" dev eth0 nodad 2>/dev/null || true
  ip link set eth0 up
  ip route add default via "$net.254"
  if [ -e "$dir/ssh_config" ]; then
    printf '%s\n' "Port 22" "ListenAddress $net.$i" "ListenAddress [$net6:$i]" "HostKey $dir/$h.key" "AuthorizedKeysFile $dir/id.pub" \
      "PidFile none" "UsePAM no" "StrictModes no" "PermitRootLogin yes" "PasswordAuthentication no" \
      "AcceptEnv DDRUN_* MASTER_* RANK WORLD_SIZE" "MaxStartups 200:30:400" "MaxSessions 200" "UseDNS no" \
      "PrintMotd no" "SetEnv HOME=$dir/$h/home TMPDIR=$dir/$h/tmp" >"$dir/$h.sshd"
    /usr/sbin/sshd -D -e -f "$dir/$h.sshd" &
    wait_for "sshd" listens "$net.$i" 22
  fi
  readlink /proc/self/ns/pid >"$dir/$h.space"
  touch "$dir/$h.up"
  forever
}

listens() { (: <"/dev/tcp/$1/$2") 2>/dev/null; }

# --- from outside

run() {
  [ "$(id -u)" -eq 0 ] || die "making hosts needs root"
  mkdir -p "$dir"
  chmod 755 "$dir"
  rm -f "$dir/ready"
  exec unshare --net --uts --ipc --pid --mount --fork --kill-child --mount-proc "$self" _head "${1:-3}" </dev/null
}

tables() { # HOST ARG…
  local h=$1
  shift
  enter "$h" iptables -w "$@"
}

cmd=${1:-}
[ $# -eq 0 ] || shift
case "$cmd" in
  run) run "$@" ;;
  cut) switch ip link set "$(plug "$1")" nomaster ;;
  heal) switch ip link set "$(plug "$1")" master switch ;;
  deaf) tables "$1" -I INPUT 1 ! -i lo -j DROP ;;
  mute) tables "$1" -I OUTPUT 1 ! -o lo -j DROP ;;
  loss)
    enter "$1" iptables -w -F
    if [ "$2" != 0 ]; then
      for way in "INPUT ! -i" "OUTPUT ! -o"; do
        # shellcheck disable=SC2086 # two words
        tables "$1" -A $way lo -m statistic --mode random --probability "$(awk "BEGIN{print $2 / 100}")" -j DROP
      done
    fi
    ;;
  rate)
    enter "$1" tc qdisc del dev eth0 root 2>/dev/null || true
    [ "$2" = 0 ] || enter "$1" tc qdisc add dev eth0 root tbf rate "$2" burst 16kb latency 400ms
    ;;
  delay)
    switch ip link del "d$1" 2>/dev/null || true
    if [ "$2" = 0 ]; then
      switch ip link set "v$1" master switch
    else
      switch ip link add "d$1" type veth peer name "s$1"
      switch ip link set "v$1" nomaster
      switch ip link set "d$1" up
      enter head setsid "${self%/*}/late_wire.py" "v$1" "d$1" "$2" >"$dir/$1.wire" 2>&1 </dev/null &
      wait_for "the late wire" grep -q carries "$dir/$1.wire"
      switch ip link set "s$1" master switch up
    fi
    ;;
  block)
    if [ "$2" = but ]; then
      for port in "${@:3}"; do tables "$1" -A INPUT -p tcp --dport "$port" -j ACCEPT; done
      tables "$1" -A INPUT ! -i lo -p tcp --syn -j DROP
    elif [ "$2" = to ]; then
      tables "$1" -A OUTPUT ! -o lo -p tcp --dport "$3" -j DROP
    else
      tables "$1" -A INPUT ! -i lo -p tcp --dport "$2" -j DROP
    fi
    ;;
  reset) [ -n "$(enter "$1" ss -H -K -tn state established)" ] || die "no connection of $1 could be reset" ;;
  open) tables "$1" -F ;;
  crash)
    first=$(init_of "$1")
    switch ip link set "$(plug "$1")" nomaster
    rm -f "$dir/$1.space" "$dir/$1.init" # another host may get the same namespace number
    kill -KILL "$first"
    ;;
  boot) enter head env DDRUN_NET_DIR="$dir" DDRUN_NET_CLOCKS="${DDRUN_NET_CLOCKS:-0}" "$self" _boot "$1" ;;
  _head) head_main "$@" ;;
  _host) host_main "$@" ;;
  _boot) boot_main "$@" ;;
  -h | --help) usage ;;
  *)
    usage >&2
    exit 2
    ;;
esac
