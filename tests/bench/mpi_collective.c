/* One rank of an MPI program that makes the calls of ddrun-allreduce, for benchmarks. Sums of floats; private memory.
   Takes these options of ddrun-allreduce with the same meaning: --collective -b -e -f -n -w -J, each with its value
   as the next word. Rank 0 writes a report with the keys that ddrun-allreduce's has. Compiled by each MPI's mpicc. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum collective { ALL_REDUCE, BROADCAST, REDUCE, ALL_GATHER, REDUCE_SCATTER, GATHER, SCATTER, ALL_TO_ALL, KINDS };
static const char *const kNames[KINDS] = {"all_reduce",     "broadcast", "reduce",  "all_gather",
                                          "reduce_scatter", "gather",    "scatter", "all_to_all"};

static int rank, ranks;
static enum collective what;

static void fail(const char *why, const char *about) {
  fprintf(stderr, "mpi_collective: %s%s\n", why, about);
  MPI_Abort(MPI_COMM_WORLD, 2);
  exit(2);
}

static size_t blocks_in(void) { return what == REDUCE_SCATTER || what == SCATTER || what == ALL_TO_ALL ? ranks : 1; }
static size_t blocks_out(void) { return what == ALL_GATHER || what == GATHER || what == ALL_TO_ALL ? ranks : 1; }

/* Whole numbers, so that sums of some thousand ranks are exact; other ones for each rank, place and round. */
static float value(int of, size_t at, int round) {
  return (float)(((size_t)of * 7919 + at * 31 + (size_t)round * 127) % 1021);
}
static float sum(size_t at, int round) {
  float all = 0;
  for (int r = 0; r < ranks; ++r) all += value(r, at, round);
  return all;
}

static float *allocate(size_t bytes) {
  void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) fail("no memory", "");
  madvise(memory, bytes, MADV_HUGEPAGE); /* as ddrun-allreduce does */
  return memory;
}

/* Where a call's input begins. Of what is in place it is where MPI_IN_PLACE has it, in the output. */
static float *input_of(float *in, float *out, size_t count, int in_place) {
  if (!in_place && what != BROADCAST) return in;
  return what == ALL_GATHER || what == GATHER ? out + (size_t)rank * count : out;
}

static void call(float *in, float *out, size_t count, int in_place) {
  const int n = (int)count;
  const int at_root = in_place && rank == 0;
  void *const from = in_place ? MPI_IN_PLACE : (void *)in;
  switch (what) {
    case ALL_REDUCE: MPI_Allreduce(from, out, n, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD); break;
    case BROADCAST: MPI_Bcast(out, n, MPI_FLOAT, 0, MPI_COMM_WORLD); break; /* MPI has no other */
    case REDUCE:
      MPI_Reduce(at_root ? MPI_IN_PLACE : in_place ? out : in, out, n, MPI_FLOAT, MPI_SUM, 0, MPI_COMM_WORLD);
      break;
    case ALL_GATHER: MPI_Allgather(from, n, MPI_FLOAT, out, n, MPI_FLOAT, MPI_COMM_WORLD); break;
    case REDUCE_SCATTER: MPI_Reduce_scatter_block(from, out, n, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD); break;
    case GATHER:
      MPI_Gather(at_root ? MPI_IN_PLACE : input_of(in, out, count, in_place), n, MPI_FLOAT, out, n, MPI_FLOAT, 0,
                 MPI_COMM_WORLD);
      break;
    case SCATTER:
      MPI_Scatter(in_place ? out : in, n, MPI_FLOAT, at_root ? MPI_IN_PLACE : out, n, MPI_FLOAT, 0, MPI_COMM_WORLD);
      break;
    case ALL_TO_ALL: MPI_Alltoall(from, n, MPI_FLOAT, out, n, MPI_FLOAT, MPI_COMM_WORLD); break;
    case KINDS: break;
  }
}

static void fill(float *in, float *out, size_t count, int in_place, int round) {
  float *const input = input_of(in, out, count, in_place);
  if (input == in) memset(out, 0xa5, blocks_out() * count * sizeof(float));
  for (size_t i = 0; i < blocks_in() * count; ++i) input[i] = value(rank, i, round);
}

static long count_wrong(const float *out, size_t count, int round) {
  const int has_result = rank == 0 || (what != REDUCE && what != GATHER);
  const size_t here = (size_t)rank * count;
  long wrong = 0;
  for (size_t i = 0; has_result && i < blocks_out() * count; ++i) {
    const int block = (int)(i / count);
    float right = 0;
    switch (what) {
      case ALL_REDUCE:
      case REDUCE: right = sum(i, round); break;
      case BROADCAST: right = value(0, i, round); break;
      case ALL_GATHER:
      case GATHER: right = value(block, i % count, round); break;
      case REDUCE_SCATTER: right = sum(here + i, round); break;
      case SCATTER: right = value(0, here + i, round); break;
      case ALL_TO_ALL: right = value(block, here + i % count, round); break;
      case KINDS: break;
    }
    wrong += out[i] != right;
  }
  MPI_Allreduce(MPI_IN_PLACE, &wrong, 1, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
  return wrong;
}

/* Microseconds of each of `times` calls, of the slowest rank. */
static double time_calls(float *in, float *out, size_t count, int in_place, int times) {
  MPI_Barrier(MPI_COMM_WORLD);
  const double began = MPI_Wtime();
  for (int i = 0; i < times; ++i) call(in, out, count, in_place);
  double mean = (MPI_Wtime() - began) / times * 1e6;
  MPI_Allreduce(MPI_IN_PLACE, &mean, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
  return mean;
}

int main(int argc, char **argv) {
  size_t first = 8, last = 1 << 20, factor = 2;
  int times = 20, warmup = 2, round = 0;
  const char *report = NULL, *comma = "";
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  for (int i = 1; i + 1 < argc; i += 2) {
    const char *const name = argv[i], *const text = argv[i + 1];
    if (strcmp(name, "-b") == 0) first = strtoull(text, NULL, 10);
    else if (strcmp(name, "-e") == 0) last = strtoull(text, NULL, 10);
    else if (strcmp(name, "-f") == 0) factor = strtoull(text, NULL, 10);
    else if (strcmp(name, "-n") == 0) times = atoi(text);
    else if (strcmp(name, "-w") == 0) warmup = atoi(text);
    else if (strcmp(name, "-J") == 0) report = text;
    else if (strcmp(name, "--collective") == 0) {
      for (what = 0; what < KINDS && strcmp(text, kNames[what]) != 0; ++what) {}
      if (what == KINDS) fail("unknown collective ", text);
    } else fail("unknown option ", name);
  }
  if (factor < 2 || times < 1 || last / sizeof(float) > 0x7fffffff) fail("wrong sizes or numbers", "");
  float *const in = allocate(last), *const out = allocate(last);
  FILE *const file = rank != 0 ? NULL : report != NULL ? fopen(report, "w") : stdout;
  if (rank == 0 && file == NULL) fail("cannot write ", report);
  if (file) fprintf(file, "{\"world_size\": %d, \"results\": [", ranks);
  const size_t blocks = blocks_in() > blocks_out() ? blocks_in() : blocks_out();
  for (size_t size = first; size <= last; size *= factor) {
    const size_t count = size / sizeof(float) / blocks;
    if (count == 0) continue;
    if (file) fprintf(file, "%s{\"size\": %zu", comma, count * blocks * sizeof(float));
    for (int in_place = 0; in_place < 2; ++in_place) {
      fill(in, out, count, in_place, ++round);
      if (warmup > 0) time_calls(in, out, count, in_place, warmup);
      const double mean = time_calls(in, out, count, in_place, times);
      fill(in, out, count, in_place, ++round);
      call(in, out, count, in_place);
      const long wrong = count_wrong(out, count, round);
      if (file) {
        fprintf(file, ", \"%s\": {\"time_us\": %.4f, \"iterations\": %d, \"wrong\": %ld}",
                in_place ? "in_place" : "out_of_place", mean, times, wrong);
      }
    }
    if (file) fprintf(file, "}");
    comma = ", ";
  }
  if (file) fprintf(file, "], \"ok\": true}\n");
  if (file && file != stdout && fclose(file) != 0) fail("cannot write ", report);
  MPI_Finalize();
  return 0;
}
