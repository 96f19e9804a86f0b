// The real program with fake GPUs (tests/helpers/fake_gpu).

#include <csignal>
#include <cstdlib>

#include "ddrun/test/files.hpp"
#include "ranks.hpp"

using namespace ddrun;
using namespace ddrun::test;

namespace {

/// Makes programs use the fake driver and NCCL, with these settings, during its lifetime.
class FakeGpus {
 public:
  explicit FakeGpus(const std::string& wanted, const std::string& library = DDRUN_TEST_FAKE_GPU) {
    if (std::string(DDRUN_TEST_LINK) == "static") skip("a static program opens no libraries");
    setenv("DDRUN_CUDA_LIBRARY", library.c_str(), 1);
    setenv("DDRUN_NCCL_LIBRARY", library.c_str(), 1);
    setenv("FAKE_GPU", concat(wanted, " dir=", dir_.path(), " log=", dir_.file("log")).c_str(), 1);
  }
  FakeGpus(const FakeGpus&) = delete;
  FakeGpus& operator=(const FakeGpus&) = delete;
  ~FakeGpus() {
    for (const char* name : {"DDRUN_CUDA_LIBRARY", "DDRUN_NCCL_LIBRARY", "FAKE_GPU"}) unsetenv(name);
  }

  /// How often this stands in the log.
  [[nodiscard]] int noted(const std::string& event) const {
    const std::string log = read_file(dir_.file("log"));
    int times = 0;
    for (auto at = log.find(event); at != std::string::npos; at = log.find(event, at + 1)) ++times;
    return times;
  }

 private:
  TemporaryDirectory dir_;
};

bool has_error(const Outcome& outcome, const std::string& words) {
  return outcome.err.find(words) != std::string::npos;
}

}  // namespace

TEST_CASE("nccl runs every collective, and is chosen with a GPU for each rank") {
  const FakeGpus gpus("devices=4");
  Ranks ranks(3, {"--collective", "all", "-b", "1000", "-e", "4000", "-f", "4"});
  const auto outcomes = ranks.wait();
  for (const Outcome& outcome : outcomes) CHECK(outcome.code() == 0);
  INFO(outcomes[0].out << outcomes[0].err);
  CHECK(outcomes[0].out.find("backend: nccl") != std::string::npos);
  CHECK(outcomes[0].out.find("there is a GPU for each rank") != std::string::npos);
  CHECK(outcomes[0].out.find("nccl has no all_to_all in place") != std::string::npos);
}

TEST_CASE("no collective of nccl starts a thread") {
  const std::string library = GENERATE(std::string(DDRUN_TEST_FAKE_GPU), std::string(DDRUN_TEST_FAKE_GPU_2_14));
  const FakeGpus gpus("devices=2", library);
  Ranks ranks(2, {"--collective", "all", "-b", "4000", "-e", "4000"});
  for (const Outcome& outcome : ranks.wait()) {
    INFO(outcome.out << outcome.err);
    CHECK(outcome.code() == 0);
  }
  CHECK(gpus.noted("a thread for") == 0);
  CHECK(gpus.noted("communicator ends") == gpus.noted("communicator begins"));
}

TEST_CASE("nccl supports all types and operations, blocking calls and graphs") {
  const FakeGpus gpus("devices=2");
  std::vector<std::string> args{"-b", "4000", "-e", "4000", "-n", "5"};
  const auto more = GENERATE(std::vector<std::string>{"-d", "all", "-o", "all"},
                             std::vector<std::string>{"-d", "half,int32", "--blocking=1"},
                             std::vector<std::string>{"-d", "half,int32", "--cudagraph=3"});
  args.insert(args.end(), more.begin(), more.end());
  Ranks ranks(2, args);
  for (const Outcome& outcome : ranks.wait()) CHECK(outcome.code() == 0);
}

TEST_CASE("a graph is launched again without waiting for the last launch") {
  const FakeGpus gpus("devices=1");
  Ranks ranks(1, {"-b", "4K", "-e", "4K", "-n", "5", "--cudagraph=3"});
  for (const Outcome& outcome : ranks.wait()) CHECK(outcome.code() == 0);
  const std::string launch = "cuGraphLaunch\n";
  const std::string waited = "an event is waited for\n";
  CHECK(gpus.noted(launch) > 0);
  CHECK(3 * gpus.noted(launch + launch + launch + waited + waited + waited) == gpus.noted(launch));
}

TEST_CASE("a wrong element on a GPU is detected") {
  const FakeGpus gpus("devices=2");
  Ranks ranks(2, {"-e", "4K", "--corrupt-rank", "1"});
  for (const Outcome& outcome : ranks.wait()) CHECK(outcome.code() == 1);
}

TEST_CASE("where the driver refuses the kernels the buffers are checked through host memory") {
  const std::string refusal =
      GENERATE(std::string("kernels=200"), std::string("kernels=209"), std::string("kernels=218"),
               std::string("kernels=222"), std::string("functions=209"));
  const FakeGpus gpus("devices=1 " + refusal);
  const auto args = GENERATE(std::vector<std::string>{"-b", "4K", "-e", "4K", "-n", "5"},
                             std::vector<std::string>{"-b", "4K", "-e", "4K", "-n", "5", "--corrupt-rank", "0"});
  const Outcome outcome = run_alone(args);
  if (gpus.noted("cuModuleLoadData") == 0) skip("a build without kernels");
  INFO(outcome.out << outcome.err);
  CHECK(outcome.code() == (args.back() == "0" ? 1 : 0));
  CHECK(outcome.out.find("checked through host memory (the driver refuses the kernels: ") != std::string::npos);
}

TEST_CASE("kernels that the driver fails to load end the run") {
  const FakeGpus gpus("devices=1 kernels=2");
  const Outcome outcome = run_alone({"--backend=nccl", "-e", "4K"});
  if (gpus.noted("cuModuleLoadData") == 0) skip("a build without kernels");
  check_ends(outcome, 1, "CUDA_ERROR_OUT_OF_MEMORY");
}

TEST_CASE("one rank in place is N/A with nccl") {
  const FakeGpus gpus("devices=1");
  Ranks ranks(1, {"-e", "4K"});
  const auto outcomes = ranks.wait();
  CHECK(outcomes[0].code() == 0);
  CHECK(outcomes[0].out.find("one rank in place: nccl does nothing") != std::string::npos);
}

TEST_CASE("GPU buffers may exceed the machine's memory") {
  const FakeGpus gpus("devices=2 memory=1000000");
  Ranks ranks(2, {"--backend=nccl", "-e", "100T"});
  for (const Outcome& outcome : ranks.wait()) {
    CHECK(outcome.code() == 2);
    CHECK(has_error(outcome, "do not fit into the 0 MiB that are free on Fake GPU"));
  }
}

TEST_CASE("the buffers leave room for NCCL") {
  const FakeGpus gpus("devices=1 memory=8589934592 nccl=22200");
  check_ends(run_alone({"--backend=nccl", "-e", "3073M"}), 2,
             "two buffers of 3073 MiB and 2048 MiB for NCCL do not fit into the 8192 MiB that are free on Fake GPU");
}

TEST_CASE("the buffers leave room for both communicators where NCCL connects them when it makes them") {
  const std::vector<std::string> args{"--backend=nccl", "-e", "2049M"};
  for (const char* version : {"21805", "22105"}) {
    const FakeGpus gpus(std::string("devices=1 memory=8589934592 nccl=") + version);
    check_ends(run_alone(args), 2,
               "two buffers of 2049 MiB and 4096 MiB for NCCL do not fit into the 8192 MiB that are free on Fake GPU");
  }
  // Before 2.18 there is no ncclCommSplit, and so one communicator.
  const FakeGpus gpus("devices=1 memory=8589934592 nccl=21405", DDRUN_TEST_FAKE_GPU_2_14);
  check_ends(run_alone({"--backend=nccl", "-e", "3073M"}), 2, "3073 MiB and 2048 MiB for NCCL do not fit");
}

TEST_CASE("ranks that share a GPU share its memory") {
  const FakeGpus gpus("devices=1 nccl=23007 memory=134217728");
  const std::vector<std::string> args{"--backend=nccl", "-b", "20M", "-e", "20M", "-n", "1", "-w", "0", "-c", "0"};
  CHECK(run_alone(args).code() == 0);
  setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1", 1);
  const auto outcomes = Ranks(2, args).wait();
  unsetenv("NCCL_MULTI_RANK_GPU_ENABLE");
  for (const Outcome& outcome : outcomes) {
    CHECK(outcome.code() == 2);
    CHECK(has_error(outcome, "do not fit into the 128 MiB that are free on Fake GPU for 2 ranks"));
  }
}

TEST_CASE("buffers are called registered only if NCCL has registered them") {
  const std::vector<std::string> args{"--backend=nccl", "-b", "4K", "-e", "4K", "-n", "1"};
  {
    const FakeGpus gpus("devices=1");
    CHECK(run_alone(args).out.find("registered") != std::string::npos);
  }
  const FakeGpus gpus("devices=1 register=none");
  const Outcome outcome = run_alone(args);
  CHECK(outcome.code() == 0);
  CHECK(outcome.out.find("registered") == std::string::npos);
}

TEST_CASE("NCCL_COMM_BLOCKING takes away neither deadlines nor calls that block") {
  const std::string blocking = GENERATE(std::string("0"), std::string("1"));
  setenv("NCCL_COMM_BLOCKING", blocking.c_str(), 1);
  std::vector<Outcome> hung;
  int threads = 0;
  {
    const FakeGpus gpus("devices=2 init=hang");
    hung = Ranks(2, {"--backend=nccl", "-e", "4K", "-T", "2s"}).wait();
  }
  {
    const FakeGpus gpus("devices=2");
    for (const Outcome& outcome : Ranks(2, {"-b", "4K", "-e", "4K", "-n", "5"}).wait()) CHECK(outcome.code() == 0);
    threads = gpus.noted("a thread for");
  }
  unsetenv("NCCL_COMM_BLOCKING");
  for (const Outcome& outcome : hung) CHECK(outcome.code() > 0);
  CHECK(threads == 0);
}

TEST_CASE("an NCCL that does not start is given up") {
  const std::string library = GENERATE(std::string(DDRUN_TEST_FAKE_GPU), std::string(DDRUN_TEST_FAKE_GPU_2_14));
  const FakeGpus gpus("devices=2 init=hang", library);
  Ranks ranks(2, {"--backend=nccl", "-e", "4K", "-T", "3s"});
  const char* const late = "ncclCommInitRankConfig did not end in time";
  const auto outcomes = ranks.wait();
  for (const Outcome& outcome : outcomes) {
    INFO(outcome.err);
    CHECK(outcome.code() > 0);
    // The rank that gives up first is lost for the other.
    CHECK((has_error(outcome, late) || has_error(outcome, "is gone")));
  }
  CHECK((has_error(outcomes[0], late) || has_error(outcomes[1], late)));
}

TEST_CASE("a call of NCCL that hangs is aborted at its deadline") {
  const FakeGpus gpus("devices=2 hang=ncclAllReduce:5");
  Ranks ranks(2, {"-e", "4K", "--op-timeout", "2s"});
  for (const Outcome& outcome : ranks.wait(std::chrono::seconds(40))) {
    INFO(outcome.err);
    CHECK(outcome.code() > 0);
    // The rank that gives up first is lost for the other.
    CHECK((has_error(outcome, "did not end in time") || has_error(outcome, "timeout in") ||
           has_error(outcome, "is gone")));
  }
}

TEST_CASE("a call from which NCCL does not return is aborted at its deadline") {
  const FakeGpus gpus("devices=2 block=ncclAllReduce:5");
  Ranks ranks(2, {"-e", "4K", "--op-timeout", "2s"});
  const auto outcomes = ranks.wait(std::chrono::seconds(40));
  const char* const late = "did not return in time";
  for (const Outcome& outcome : outcomes) {
    INFO(outcome.err);
    CHECK(outcome.code() > 0);
    CHECK((has_error(outcome, late) || has_error(outcome, "timeout in") || has_error(outcome, "is gone")));
  }
  CHECK((has_error(outcomes[0], late) || has_error(outcomes[1], late)));
  CHECK(gpus.noted("communicator ends") == gpus.noted("communicator begins"));
}

TEST_CASE("a call from which NCCL does not return is aborted when a rank is killed") {
  const FakeGpus gpus("devices=2 block=ncclAllReduce:5");
  Ranks ranks(2, {"-e", "4K"});
  REQUIRE(wait_until([&] { return gpus.noted("ncclAllReduce blocks") == 2; }));
  ranks[1].signal(SIGKILL);
  const Outcome outcome = ranks[0].wait(std::chrono::seconds(20));
  CHECK(outcome.code() == 1);
  CHECK(has_error(outcome, "rank 1 is gone"));
}

TEST_CASE("a rank ends though neither NCCL's abort nor the driver's exit handlers return") {
  const FakeGpus gpus("devices=2 init=hang abort=hang");
  Ranks ranks(2, {"--backend=nccl", "-e", "4K", "-T", "1s"});
  // NCCL has ten seconds to abort.
  for (const Outcome& outcome : ranks.wait(std::chrono::seconds(40))) {
    INFO(outcome.err);
    CHECK(outcome.code() == 1);
    CHECK((has_error(outcome, "ncclCommInitRankConfig did not end in time") || has_error(outcome, "is gone")));
  }
}

TEST_CASE("an error of NCCL ends all ranks with its message") {
  const FakeGpus gpus("devices=2 fail=ncclAllReduce:4");
  Ranks ranks(2, {"-e", "4K"});
  for (const Outcome& outcome : ranks.wait()) {
    CHECK(outcome.code() == 1);
    CHECK(has_error(outcome, "a failure that the test wants (as scripted)"));
  }
}

TEST_CASE("a communicator ends where NCCL fails to connect it") {
  const std::string library = GENERATE(std::string(DDRUN_TEST_FAKE_GPU), std::string(DDRUN_TEST_FAKE_GPU_2_14));
  const FakeGpus gpus("devices=1 fail=ncclCommInitRankConfig:1", library);
  const Outcome outcome = run_alone({"--backend=nccl", "-e", "4K"});
  check_ends(outcome, 1, "ncclCommInitRankConfig: a failure that the test wants");
  CHECK(gpus.noted("communicator begins") == 1);
  CHECK(gpus.noted("communicator ends") == 1);
}

TEST_CASE("a graph that cannot be launched does not keep NCCL from ending") {
  const FakeGpus gpus("devices=1 fail=cuGraphLaunch:2");
  const Outcome outcome = run_alone({"--backend=nccl", "-e", "4K", "--cudagraph=3"});
  CHECK(outcome.code() == 1);
  CHECK(has_error(outcome, "cuGraphLaunch"));
  CHECK(gpus.noted("communicator begins") > 0);
  CHECK(gpus.noted("communicator ends") == gpus.noted("communicator begins"));
}

TEST_CASE("with nccl a killed rank ends the others at once") {
  const FakeGpus gpus("devices=2");
  Ranks ranks(2, {"-e", "64K", "--kill-rank", "1", "--kill-at", "1K"});
  const auto outcomes = ranks.wait(std::chrono::seconds(20));
  CHECK(outcomes[0].code() == 1);
  CHECK(has_error(outcomes[0], "rank 1 is gone"));
}
