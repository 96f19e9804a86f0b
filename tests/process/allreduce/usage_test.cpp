#include "ranks.hpp"

using namespace ddrun;
using namespace ddrun::test;

namespace {

using Environment = std::vector<std::pair<std::string, std::string>>;

void check_refused(const std::vector<std::string>& args, const Environment& env, const std::string& words) {
  std::vector<std::string> argv{DDRUN_TEST_ALLREDUCE};
  argv.insert(argv.end(), args.begin(), args.end());
  RunOptions options;
  options.env = env;
  Run run(argv, options);
  const Outcome outcome = run.wait();
  CAPTURE(words, outcome.err, outcome.out);
  CHECK(outcome.code() == 2);
  CHECK(outcome.out.empty());
  CHECK(lines_of(outcome.err).size() == 1);
  CHECK(outcome.err.find("ddrun-allreduce: error: ") == 0);
  CHECK(outcome.err.find(words) != std::string::npos);
}

}  // namespace

TEST_CASE("invalid options are refused in one line with status 2") {
  check_refused({"--no-such-option"}, {}, "--no-such-option");
  check_refused({"-g", "2"}, {}, "--ngpus: each rank has one; for 2 write: ddrun -n 2 ddrun-allreduce");
  check_refused({"-g", "x"}, {}, "--ngpus: ");
  check_refused({"-b", "2"}, {}, "--minbytes: must be at least 4, not 2");
  check_refused({"-b", "lots"}, {}, "--minbytes: ");
  check_refused({"-b", "1M", "-e", "1K"}, {}, "--maxbytes: 1024 is less than --minbytes, 1048576");
  check_refused({"-f", "1"}, {}, "--stepfactor: must be at least 2");
  check_refused({"-n", "0"}, {}, "--iters: ");
  check_refused({"-c", "-1"}, {}, "--check: ");
  check_refused({"--backend=mpi"}, {}, "--backend: must be auto, nccl, shm, tcp or gloo, not 'mpi'");
  check_refused({"--collective=all_reduce,alltoall,gossip"}, {},
                "--collective: must be barrier, all_reduce, broadcast, reduce, all_gather, reduce_scatter, gather, "
                "scatter, all_to_all, send_recv or all, not 'gossip'");
  check_refused({"--root=-2"}, {}, "--root: ");
  check_refused({"--op-timeout=0"}, {}, "--op-timeout: must be more than 0");
  check_refused({"--timeout=0"}, {}, "--timeout: must be more than 0");
  check_refused({"-d", "fp8"}, {},
                "--datatype: must be int8, uint8, int32, uint32, int64, uint64, half, float, double, bfloat16 or all, "
                "not 'fp8'");
  check_refused({"--op=xor"}, {}, "--op: must be sum, prod, max, min, avg or all, not 'xor'");
  check_refused({"-d", "double", "-b", "4"}, {}, "--minbytes: must be at least 8, not 4");
  check_refused({"-d", "all", "-i", "4"}, {}, "--stepbytes: must be at least 8, not 4");
  check_refused({"-J", "/no/such/directory/x.json"}, {}, "--output_file: cannot write /no/such/directory/x.json");
  check_refused({"--buffers=mine"}, {}, "--buffers: must be shared or private, not 'mine'");
  check_refused({"-T", "soon"}, {}, "--timeout: ");
  check_refused({"-e", "1000000G"}, {}, "of memory that are free");
}

TEST_CASE("options that do not apply to the back end are refused") {
  check_refused({"--backend=shm", "--blocking=1"}, {}, "--blocking: is for nccl; calls of shm always block");
  check_refused({"--backend=shm", "--streams=2"}, {}, "--streams: is for tcp; shm makes no connections");
  check_refused({"--streams=65"}, {}, "--streams: ");
  check_refused({"--backend=tcp", "-G", "2"}, {},
                "--cudagraph: is for nccl; tcp runs on processors, which have no graphs");
}

TEST_CASE("an incomplete environment is refused with an example") {
  const std::string example = "start it with a launcher, for example: ddrun --nproc-per-node=4 ddrun-allreduce";
  check_refused({}, {{"RANK", "0"}}, "WORLD_SIZE, MASTER_ADDR, MASTER_PORT are not set: " + example);
  check_refused({}, {{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "127.0.0.1"}},
                "MASTER_PORT is not set: " + example);
  check_refused({}, {{"WORLD_SIZE", "1"}}, "RANK is not set: " + example);
  const Environment rest{{"MASTER_ADDR", "127.0.0.1"}, {"MASTER_PORT", "1"}};
  Environment outside = rest;
  outside.insert(outside.end(), {{"RANK", "2"}, {"WORLD_SIZE", "2"}});
  check_refused({}, outside, "RANK=2: ");
}

TEST_CASE("options have the names of nccl-tests, with dashes and with underscores") {
  const TemporaryDirectory directory;
  for (const char* file : {"--output_file", "--output-file", "--json", "-J"}) {
    const std::string path = directory.file("report.json");
    Run run({DDRUN_TEST_ALLREDUCE,
             "--minbytes=8",
             "--maxbytes",
             "64",
             "--stepfactor=2",
             "--iters=2",
             "--warmup_iters=1",
             "--warmup-iters=1",
             "--check=1",
             "--op=max",
             "--datatype=half",
             "-T",
             "30",
             "--timeout=30s",
             "--root=0",
             "--op_timeout=5s",
             "-z",
             "0",
             "--cudagraph=0",
             "-g",
             "1",
             "--nthreads=1",
             "--collective",
             "all-reduce",
             file,
             path});
    const Outcome outcome = run.wait();
    CAPTURE(file, outcome.err);
    CHECK(outcome.code() == 0);
    CHECK(read_file(path).find("\"redop\": \"max\"") != std::string::npos);
    write_file(path, "");
  }
}

TEST_CASE("lists of types and operations are run in their order") {
  Run run({DDRUN_TEST_ALLREDUCE, "-d", "half,int8", "-o", "max,sum,max", "-e", "8", "-n", "1"});
  const Outcome outcome = run.wait();
  CAPTURE(outcome.err);
  CHECK(outcome.code() == 0);
  std::vector<std::string> seen;
  for (const auto& row : rows_of(outcome.out)) seen.push_back(row[2] + " " + row[3]);
  CHECK(seen == std::vector<std::string>{"half max", "half sum", "int8 max", "int8 sum"});
}

TEST_CASE("help fits the screen and ends with examples") {
  Run run({DDRUN_TEST_ALLREDUCE, "--help"});
  const Outcome outcome = run.wait();
  CHECK(outcome.code() == 0);
  CHECK(outcome.out.find("ddrun --nproc-per-node=4 ddrun-allreduce\n") != std::string::npos);
  CHECK(outcome.out.find("-J, --output_file=FILE") != std::string::npos);
  for (const std::string& line : lines_of(outcome.out)) {
    CAPTURE(line);
    CHECK(line.size() <= 80);
  }
}
