# shellcheck shell=bash
# The small programs that tests/bench measures with. Needs common.sh.

# bench_helpers DIR [NAME…]   into DIR; of those named, or all
bench_helpers() {
  local dir=$1 sources=$root/tests/bench name flags
  shift
  [ $# -gt 0 ] || set -- timed worker bare store_load agents_load pmi_rank roofline
  mkdir -p "$dir"
  for name in "$@"; do
    local files=("$sources/$name.cpp") libraries=()
    case $name in
      timed | pmi_rank) flags=-O2 ;;
      worker)
        flags="-O2 -nostdlib -static -ffreestanding -fno-builtin -fno-exceptions -fno-stack-protector -fno-pie -no-pie"
        ;;
      bare | store_load) flags="-O2 -static" ;;
      agents_load)
        flags="-O2 -I$root/lib/base/include -I$root/lib/spec/include -I$root/lib/rendezvous/include -I$root/lib/rendezvous/src/wire -I$root/lib/inspect/include"
        files+=("$root"/lib/rendezvous/src/wire/{codec,frames,handshake,hmac}.cpp
          "$root"/lib/inspect/src/{peers,stack_groups,stack_share,stack_text,verdict}.cpp "$root"/lib/base/src/{bytes,duration,text}.cpp)
        libraries=(-lcrypto)
        ;;
      roofline) flags="-O3 -march=native" ;;
      *) die "there is no helper $name of the benchmarks" ;;
    esac
    # shellcheck disable=SC2086 # CXX may hold options, and flags do
    ${CXX:-c++} -std=c++20 $flags -Wall -Wextra "${files[@]}" -o "$dir/bench_$name" "${libraries[@]}" || return
  done
}

# One program for each MPI that is there with what is needed to compile for it; the others are left out.
bench_mpi_workers() {
  local dir=$1 mpi
  mkdir -p "$dir"
  for mpi in openmpi mpich; do
    rm -f "$dir/bench_mpi_$mpi" "$dir/bench_hello_$mpi"
    command -v "mpicc.$mpi" >/dev/null || continue
    # A file and not its input: Open MPI's compiler adds its flags only where a file is named.
    "mpicc.$mpi" -E "$root/tests/bench/mpi_collective.c" >/dev/null 2>&1 || continue
    "mpicc.$mpi" -std=c11 -D_GNU_SOURCE -O3 -Wall -Wextra "$root/tests/bench/mpi_collective.c" \
      -o "$dir/bench_mpi_$mpi" || return
    "mpicc.$mpi" -O2 "$root/tests/torch/scripts/mpi_hello.c" -o "$dir/bench_hello_$mpi" || return
  done
}

# ddrun-allreduce with Debian's Gloo, which a static program cannot have.
bench_gloo_worker() {
  local dir=$1 folder=$root/build/bench/with-gloo
  (cd "$root" && cmake --preset release -B "$folder" -DDDRUN_LINK=dynamic -DDDRUN_WORKER_LINK=dynamic \
    -DDDRUN_WITH_GLOO=ON -DDDRUN_WITH_CUDA=OFF -DDDRUN_SPLIT_DEBUG=OFF -DDDRUN_BUILD_TESTS=OFF) &&
    cmake --build "$folder" --parallel "$(jobs)" --target ddrun-allreduce &&
    ln -sf "$folder/bin/ddrun-allreduce" "$dir/bench_gloo"
}
