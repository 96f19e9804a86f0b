#!/bin/sh
# A checkpoint in a directory that all machines share, safe from workers of an earlier round: those of a machine that was
# taken for lost may go on for a while, or wake up later, and must not write over what the others have done since.
#
#   ddrun --nnodes=2:4 --rdzv-id=night1 --rdzv-endpoint=node0:29400 configs/fenced-checkpoint.sh /shared/night1 1000
#
# DDRUN_ROUND rises with each round of a job and never falls. Beside the checkpoint lies a note of the job and its newest
# round. Rank 0 writes the note before it reads the checkpoint, and looks at it each time before it writes one, both under
# a lock: from the first on, whoever is of an earlier round finds another note, and ends with status 3.
#
# The lock has to hold on all machines: flock does on NFS (4, or 3 with lockd), GPFS and CephFS, on Lustre if it is mounted
# with -o flock. Where nothing like it is at hand, an object store's conditional write or a database does the same.
set -eu

directory=$1
steps=${2:-10}
mine="${TORCHELASTIC_RUN_ID:?start this with ddrun} ${DDRUN_ROUND:?}"

# put FILE TEXT: all of it or nothing, also if this machine ends meanwhile
put() {
    printf '%s\n' "$2" > "$directory/$1.new.$$"
    mv "$directory/$1.new.$$" "$directory/$1"
}

replaced() {
    echo "another round writes to $directory: ${1:-?}; this one ($mine) is over" >&2
    exit 3
}

# From here on no earlier round of this job can write. A job with another name takes the directory over.
take_over() {
    read -r job round 2> /dev/null < "$directory/round" || job=
    if [ "$job" = "$TORCHELASTIC_RUN_ID" ] && [ "$round" -gt "$DDRUN_ROUND" ]; then replaced "$job $round"; fi
    put round "$mine"
}

save() {
    read -r newest < "$directory/round"
    if [ "$newest" != "$mine" ]; then replaced "$newest"; fi
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
