# shellcheck shell=bash
# What only a GPU can show: the real NCCL and our kernels, also under compute-sanitizer. Needs common.sh and ctest.sh.

# Why there is nothing to run here; nothing if there may be. (/dev/dxg: Windows' subsystem for Linux)
gpu_obstacle() {
  if [ -z "${DDRUN_CUDA_LIBRARY:-}" ] && [ ! -e /dev/nvidiactl ] && [ ! -e /dev/dxg ]; then
    echo "no GPU: neither /dev/nvidiactl nor /dev/dxg is there"
  fi
}

# _gpu_check NAME COMMAND…   counts it; the output is in a log
_gpu_check() {
  local name=$1 log status=0
  log=$log_dir/gpu-${name//[^a-z0-9]/-}.log
  shift
  mkdir -p "$log_dir"
  timeout "${DDRUN_GPU_TIMEOUT:-900}" "$@" >"$log" 2>&1 </dev/null || status=$?
  case $status in
    0) count pass "GPU: $name" ;;
    77) count skip "GPU: $name" "$(tail -n 1 "$log")" ;;
    *) count fail "GPU: $name" "$(if [ "$status" -eq 124 ]; then echo "not done in time"; else tail -n 1 "$log"; fi) (see $log)" ;;
  esac
}

# check_programs DIR   stops if what was copied there cannot be started here
check_programs() {
  local program said
  for program in ddrun ddrun-allreduce; do
    said=$(env "$1/$program" --version 2>&1) || die "$1/$program does not start: ${said##*$'\n'}" \
      "DIR is a copy of build/release/bin, built for this processor and for a glibc that is not newer (docs/allreduce.md)"
  done
}

# gpu_tests DIR   with the programs of a build that lie in DIR, up to so many bytes as DDRUN_GPU_BYTES says. It needs no
# commands but those of bash and coreutils: a GPU node may have no others.
gpu_tests() {
  local launcher=("$1/ddrun" --standalone) worker=$1/ddrun-allreduce last=${DDRUN_GPU_BYTES:-64M} said status=0 tool
  local everything=(--backend=nccl --collective all -d all -o all -b 1000 -e "$last" -f 256 -n 3)
  said=$("$worker" --backend=nccl -e 8 -n 1 2>&1) || status=$?
  if [ "$status" -eq 77 ]; then
    count skip "GPU" "${said##*$'\n'}"
    return
  fi
  local without_kernels=$'checked through host memory \\(([^\n]*)\\)'
  [[ ! $said =~ $without_kernels ]] || count skip "GPU: our own kernels" "${BASH_REMATCH[1]}"
  # The programs see only the GPUs of CUDA_VISIBLE_DEVICES, which a scheduler may have set; nvidia-smi counts all.
  local listed='nccl +yes .* ([0-9]+) GPUs?; NCCL ([0-9]+)\.([0-9]+)\.' visible=${CUDA_VISIBLE_DEVICES:-0}
  [[ $("$worker" --list) =~ $listed ]] || die "$worker --list does not say how many GPUs and which NCCL there are"
  local gpus=${BASH_REMATCH[1]} nccl=$((BASH_REMATCH[2] * 100 + BASH_REMATCH[3]))

  say "Testing on the GPU ..."
  _gpu_check "every collective of one rank" "$worker" "${everything[@]}"
  _gpu_check "calls waited for one by one" "$worker" --backend=nccl -e "$last" -z 1
  _gpu_check "graphs" "$worker" --backend=nccl -e "$last" -n 5 -G 3
  for tool in memcheck racecheck synccheck; do
    if command -v compute-sanitizer >/dev/null; then
      _gpu_check "compute-sanitizer $tool" compute-sanitizer --tool "$tool" --error-exitcode 9 \
        "$worker" --backend=nccl -d all -b 1000 -e "$last" -f 256 -n 2
    else
      count skip "GPU: compute-sanitizer $tool" "compute-sanitizer is not in PATH (it comes with the CUDA toolkit)"
    fi
  done
  if [ "$gpus" -gt 1 ]; then
    _gpu_check "every collective of $gpus ranks" "${launcher[@]}" --nproc-per-node="$gpus" "$worker" "${everything[@]}"
  else
    count skip "GPU: every collective of a rank per GPU" "there are not several GPUs"
  fi
  if [ "$nccl" -ge 230 ]; then
    _gpu_check "every collective of 2 ranks on one GPU" env CUDA_VISIBLE_DEVICES="${visible%%,*}" NCCL_MULTI_RANK_GPU_ENABLE=1 \
      "${launcher[@]}" --nproc-per-node=2 "$worker" "${everything[@]}"
  else
    count skip "GPU: every collective of 2 ranks on one GPU" "that needs NCCL 2.30 (docs/allreduce.md)"
  fi
}
