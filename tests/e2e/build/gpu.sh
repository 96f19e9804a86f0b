#!/usr/bin/env bash
# gpu.sh SOURCE_DIR BIN_DIR FAKE_GPU: what scripts/test --gpu runs, with a driver, an NCCL and a compute-sanitizer that
# need no GPU.
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

mkdir "$dir/path" "$dir/shared"
# The tool's options, then the program.
cat >"$dir/path/compute-sanitizer" <<'END'
#!/bin/sh
[ "$2" != "$BROKEN_TOOL" ] || { echo "========= ERROR SUMMARY: 1 error"; exit 9; }
shift 4
exec "$@"
END
printf '#!/bin/sh\necho "GPU 0: Fake GPU"\n' >"$dir/path/nvidia-smi"
chmod +x "$dir"/path/*
# shellcheck disable=SC2016 # the inner shell expands them
run() {
  status=0
  output=$(env DDRUN_CUDA_LIBRARY="$fake" DDRUN_NCCL_LIBRARY="$fake" FAKE_GPU="$1 memory=1048576 dir=$dir/shared" \
    DDRUN_SCRIPT_LOGS="$dir/logs" PATH="$dir/path:$PATH" BROKEN_TOOL="$2" bash -c '
      set -euo pipefail
      . "$1/scripts/lib/common.sh"
      . "$1/scripts/lib/ctest.sh"
      . "$1/scripts/lib/gpu.sh"
      gpu_tests "$2" 1000
      print_totals' "$source_dir/scripts/test" "$source_dir" "$bin" 2>&1) || status=$?
}
run nccl=23007 none
[ "$status" -eq 0 ] || fail "$output"
says '^skipped: GPU: every collective of a rank per GPU: there are not several GPUs$'
says '^7 passed, 0 failed, 1 skipped$'

run nccl=22809 racecheck
[ "$status" -eq 1 ] || fail "it ends with $status where a tool finds something: $output"
says '^failed: GPU: compute-sanitizer racecheck: ========= ERROR SUMMARY: 1 error \(see '
says '^skipped: GPU: every collective of 2 ranks on one GPU: that needs NCCL 2.30'
says '^5 passed, 1 failed, 2 skipped$'

run devices=0 none
[ "$status" -eq 0 ] || fail "$output"
says '^skipped: GPU: .*nccl cannot run here: .*0 GPUs'
says '^0 passed, 0 failed, 1 skipped$'
