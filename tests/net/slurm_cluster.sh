#!/usr/bin/env bash
# A Slurm cluster of N nodes, n1 … nN, on one machine: a slurmctld, N slurmd and a munged of its own.
#
#   slurm_cluster.sh run DIR [N]      make it (default 4 nodes), say "ready", keep it until standard input ends
#   slurm_cluster.sh exec DIR CMD…    run CMD there, with the environment as it is here
#   slurm_cluster.sh list DIR         its processes but for its own daemons
#
# It lives in namespaces of one process, so that two of them never collide, no configuration of this machine is read or
# changed, and nothing is left when that process dies. The nodes have loopback addresses, 127.0.0.11 and so on; each has
# 4 CPUs and 2 GPUs that are none. Needs root, util-linux, and Debian's slurmctld, slurmd, slurm-client and munge.
set -euo pipefail
self=$(readlink -f "$0")

die() {
  echo "slurm_cluster.sh: $1" >&2
  exit 1
}

write_configuration() {
  local i
  cat >"$dir/slurm.conf" <<END
ClusterName=test
SlurmctldHost=head(127.0.0.1)
SlurmctldPort=16817
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket=$dir/munge/socket
CredType=cred/munge
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=0,sched_interval=1,bf_interval=1
SwitchType=switch/none
SlurmdParameters=config_overrides
GresTypes=gpu
JobRequeue=1
KillWait=30
MinJobAge=300
InactiveLimit=0
SlurmctldTimeout=30
SlurmdTimeout=30
ReturnToService=2
SlurmctldPidFile=$dir/slurmctld.pid
SlurmdPidFile=$dir/slurmd-%n.pid
StateSaveLocation=$dir/state
SlurmdSpoolDir=$dir/spool-%n
SlurmctldLogFile=$dir/slurmctld.log
SlurmdLogFile=$dir/slurmd-%n.log
END
  for ((i = 1; i <= count; i++)); do
    echo "NodeName=n$i NodeHostname=head NodeAddr=127.0.0.$((10 + i)) Port=$((16817 + i)) CPUs=4 Boards=1" \
      "SocketsPerBoard=1 CoresPerSocket=4 ThreadsPerCore=1 RealMemory=1000 Gres=gpu:2 State=UNKNOWN"
  done >>"$dir/slurm.conf"
  echo "PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP OverSubscribe=YES" >>"$dir/slurm.conf"
  echo "CgroupAutomount=no" >"$dir/cgroup.conf"
  for i in 0 1; do mknod "$dir/gpu$i" c 1 3; done
  echo "Name=gpu File=$dir/gpu[0-1]" >"$dir/gres.conf"
}

# As process 1 of the namespaces.
init() {
  local i
  exec 3<&0 </dev/null
  hostname head
  ip link set lo up
  # Slurm asks for the kinds of addresses that the machine has, and the loopback does not count.
  ip link add eth0 type veth peer name eth1
  ip address add 10.88.0.1/24 dev eth0
  ip link set eth0 up
  {
    echo "127.0.0.1 localhost head"
    echo "::1 localhost"
    for ((i = 1; i <= count; i++)); do echo "127.0.0.$((10 + i)) n$i"; done
  } >"$dir/hosts"
  mount --bind "$dir/hosts" /etc/hosts
  mkdir -p "$dir/state" "$dir/munge"
  chmod 755 "$dir" "$dir/munge"
  write_configuration
  export SLURM_CONF=$dir/slurm.conf
  (umask 077 && dd if=/dev/urandom of="$dir/munge/key" bs=32 count=32 status=none)
  munged --force --socket="$dir/munge/socket" --key-file="$dir/munge/key" --pid-file="$dir/munge/pid" \
    --log-file="$dir/munge/log" --seed-file="$dir/munge/seed" --num-threads=2
  slurmctld -c
  for ((i = 1; i <= count; i++)); do
    mkdir -p "$dir/spool-n$i"
    slurmd -N "n$i"
  done
  for _ in $(seq 300); do
    if [ "$(sinfo -h -N -t idle -o %N 2>/dev/null | wc -l)" = "$count" ]; then
      echo ready
      cat <&3 >/dev/null || true
      exit 0
    fi
    sleep 0.1
  done
  tail -n 5 "$dir"/*.log >&2
  die "the nodes did not become idle"
}

# Where process 1 of the namespaces is, as seen from here.
init_pid() {
  [ -s "$dir/init" ] || die "there is no cluster in $dir"
  cat "$dir/init"
}

verb=${1:-} dir=${2:-}
if [ -z "$dir" ]; then
  sed -n '2,/^# 4 CPUs/s/^# \{0,1\}//p' "$self"
  exit 2
fi
shift 2
case $verb in
  run)
    count=${1:-4}
    mkdir -p "$dir"
    dir=$(cd "$dir" && pwd -P)
    rm -f "$dir/init"
    # Private mounts: nothing of it shows outside.
    unshare --mount --uts --ipc --net --pid --fork --kill-child --mount-proc "$self" init "$dir" "$count" <&0 &
    outside=$!
    for _ in $(seq 100); do
      pgrep --parent "$outside" >"$dir/init.new" && break
      sleep 0.02
    done
    mv "$dir/init.new" "$dir/init"
    trap 'kill -KILL "$outside" 2>/dev/null' EXIT
    trap 'exit 1' TERM INT HUP
    wait "$outside"
    ;;
  init)
    count=$1
    init
    ;;
  exec)
    target=$(init_pid)
    export SLURM_CONF=$dir/slurm.conf
    exec nsenter --target "$target" --mount --uts --ipc --net --pid --wd="$PWD" "$@"
    ;;
  list)
    target=$(init_pid)
    nsenter --target "$target" --mount --pid ps -eo pid=,ppid=,stat=,comm=,args= |
      awk '$4 !~ /^(slurmctld|slurmd|slurmscriptd|munged|ps|awk|cat|nsenter)$/ && $1 != 1'
    ;;
  *) die "unknown verb $verb" ;;
esac
