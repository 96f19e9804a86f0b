#!/usr/bin/env bash
# gpu.sh SOURCE_DIR BIN_DIR FAKE_GPU: what scripts/test --gpu runs, with a driver, an NCCL and a compute-sanitizer that
# need no GPU; with copies of the scripts and programs, as on a node that has neither compiler nor packages.
set -euo pipefail
source_dir=$1 bin=$2 fake=$3
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
fail() { echo "FAILED: $*"; exit 1; }
says() { grep -qE "$1" <<<"$output" || fail "there is no line '$1' in: $output"; }

if [ ! -e /dev/nvidiactl ] && [ ! -e /dev/dxg ]; then
  output=$(env -u DDRUN_CUDA_LIBRARY "$source_dir/scripts/test" --gpu --no-install) || fail "it fails without a GPU"
  says '^skipped: GPU: no GPU: neither /dev/nvidiactl nor /dev/dxg is there$'
  says '^0 passed, 0 failed, 1 skipped$'
fi

mkdir -p "$dir/path" "$dir/shared" "$dir/node/bin"
cp -r "$source_dir/scripts" "$dir/node/"
cp "$bin/ddrun-allreduce" "$dir/node/bin/"
cp "$bin/ddrun" "$dir/node/"
cat >"$dir/node/bin/ddrun" <<'END'
#!/bin/sh
echo "visible GPUs: $CUDA_VISIBLE_DEVICES"
exec "${0%/bin/*}/ddrun" "$@"
END
chmod +x "$dir/node/bin/ddrun"
for command in bash basename dirname env mkdir sort tail timeout; do ln -s "$(command -v "$command")" "$dir/path/"; done

# run FAKE_GPU [BROKEN_TOOL]   in an allocation of two nodes, the other one of which takes no part
run() {
  status=0
  output=$(cd "$dir" && env -u HOME PATH="$dir/path" FAKE_GPU="$1 memory=1048576 dir=$dir/shared" BROKEN_TOOL="${2:-none}" \
    DDRUN_CUDA_LIBRARY="$fake" DDRUN_NCCL_LIBRARY="$fake" DDRUN_GPU_BYTES=1000 DDRUN_SCRIPT_LOGS="$dir/logs" \
    CUDA_VISIBLE_DEVICES=3,5 SLURM_JOB_ID=7 SLURM_JOB_NODELIST=node1,node2 SLURM_JOB_NUM_NODES=2 SLURM_NNODES=2 \
    node/scripts/test --gpu --programs node/bin 2>&1) || status=$?
}
run 'nccl=23007 devices=2'
[ "$status" -eq 0 ] || fail "$output"
says '^skipped: GPU: compute-sanitizer racecheck: compute-sanitizer is not in PATH'
says '^5 passed, 0 failed, [34] skipped$'  # a build without nvcc has no kernels
grep -qx 'visible GPUs: 3' "$dir"/logs/gpu-every-collective-of-2-ranks-on-one----.log || fail "ranks share another GPU than the first"
grep -qx 'visible GPUs: 3,5' "$dir"/logs/gpu-every-collective-of-2-ranks.log || fail "not each rank has a GPU"

# The tool's options, then the program.
cat >"$dir/path/compute-sanitizer" <<'END'
#!/bin/sh
[ "$2" != "$BROKEN_TOOL" ] || { echo "========= ERROR SUMMARY: 1 error"; exit 9; }
shift 4
exec "$@"
END
chmod +x "$dir/path/compute-sanitizer"
run nccl=23007
[ "$status" -eq 0 ] || fail "$output"
says '^skipped: GPU: every collective of a rank per GPU: there are not several GPUs$'
says '^7 passed, 0 failed, [12] skipped$'

run nccl=22809 racecheck
[ "$status" -eq 1 ] || fail "it ends with $status where a tool finds something: $output"
says '^failed: GPU: compute-sanitizer racecheck: ========= ERROR SUMMARY: 1 error \(see '
says '^skipped: GPU: every collective of 2 ranks on one GPU: that needs NCCL 2.30'
says '^5 passed, 1 failed, [23] skipped$'

run 'nccl=23007 kernels=209'
[ "$status" -eq 0 ] || fail "$output"
says '^skipped: GPU: our own kernels: '

run devices=0
[ "$status" -eq 0 ] || fail "$output"
says '^skipped: GPU: .*nccl cannot run here: .*0 GPUs'
says '^0 passed, 0 failed, 1 skipped$'

cat >"$dir/node/bin/ddrun-allreduce" <<'END'
#!/bin/sh
echo "libc.so.6: version \`GLIBC_9.99' not found"
exit 1
END
run nccl=23007
[ "$status" -eq 1 ] || fail "it ends with $status where a program does not start: $output"
says "^scripts/test: error: node/bin/ddrun-allreduce does not start: .*GLIBC_9.99' not found$"
says '^0 passed, 1 failed, 0 skipped$'

output=$("$source_dir/scripts/test" --programs "$bin" 2>&1) && fail "it tests a copy's programs without --gpu"
says '^scripts/test: error: --programs goes with --gpu only$'
