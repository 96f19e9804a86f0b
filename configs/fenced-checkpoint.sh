#!/bin/sh
# A checkpoint in a directory that all machines share, safe from workers of an earlier round: those of a machine that was
# taken for lost may go on for a while, or wake up later, and must not write over what the others have done since.
#
#   ddrun --nnodes=2:4 --max-restarts=9 --no-restart-on=3 --rdzv-id=night1 --rdzv-endpoint=node0:29400 \
#     configs/fenced-checkpoint.sh /shared/night1 1000 1
#
# goes to step 1000. The last number is that of the run: started once more, to go on where it was, it has to be a greater
# one, 2 and so on, the same on all machines. Where one command starts them all, as srun and --hosts do, $(date +%s) does.
#
# DDRUN_ROUND rises with each round and never falls, but begins at 1 each time that ddrun is started, and nothing else that
# a worker is given tells two runs apart. So what counts is the run and then the round. Beside the checkpoint lies a note of
# the newest. Rank 0 writes the note before it reads the checkpoint, which only a newer round may, and looks at it each
# time before it writes one, both under a lock: from the first on, a process of an earlier run or round finds another note,
# and ends with status 3. So does a run whose number is not greater than that of the last: --no-restart-on=3 ends it there.
#
# The lock has to hold on all machines: flock does on NFS (4, or 3 with lockd), GPFS and CephFS, on Lustre if it is mounted
# with -o flock. What stands still just while it writes loses the lock after a time (90 s with NFS 4), and may write when it
# wakes up. An object store's conditional write or a database does the same without that.
set -eu

directory=$1
steps=${2:-10}
run=${3:-1}
case $run in
*[!0-9]* | ??????????????????*)
    echo "the number of the run is to be one like 2, not $run" >&2
    exit 2
    ;;
esac
mine="$run ${DDRUN_ROUND:?start this with ddrun} ${TORCHELASTIC_RUN_ID:?}"

# put FILE TEXT: all of it or nothing, also if this machine ends meanwhile
put() {
    printf '%s\n' "$2" > "$directory/$1.new.$$"
    mv "$directory/$1.new.$$" "$directory/$1"
}

look() { read -r its_run its_round its_job < "$directory/round"; }

replaced() {
    echo "another round writes to $directory: run $its_run, round $its_round of $its_job;" \
        "this one (run $run, round $DDRUN_ROUND of $TORCHELASTIC_RUN_ID) is over${1:-}" >&2
    exit 3
}

# Is this round newer than the one of the note? None is newer than a note that cannot be understood.
newer() {
    [ "$run" -gt "$its_run" ] && return
    [ "$run" -eq "$its_run" ] && [ "$TORCHELASTIC_RUN_ID" = "$its_job" ] && [ "$DDRUN_ROUND" -gt "$its_round" ]
}

# From here on no earlier round can write.
take_over() {
    if [ -e "$directory/round" ]; then
        look
        newer || replaced "; to go on in a new run give it a number greater than $its_run"
    fi
    put round "$mine"
}

save() {
    look
    if [ "$its_run $its_round $its_job" != "$mine" ]; then replaced; fi
    put checkpoint "$1"
}

# locked COMMAND…: one at a time, on all machines
locked() {
    (
        flock 9
        "$@"
    ) 9> "$directory/lock"
}

step=0
if [ "$RANK" = 0 ]; then
    mkdir -p "$directory"
    locked take_over
    if [ -e "$directory/checkpoint" ]; then read -r step < "$directory/checkpoint"; fi
fi
while [ "$step" -lt "$steps" ]; do
    step=$((step + 1))
    ${WORK:-sleep 1}
    if [ "$RANK" = 0 ]; then locked save "$step"; fi
done
