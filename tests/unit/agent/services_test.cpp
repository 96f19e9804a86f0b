#include <sys/socket.h>
#include <unistd.h>

#include "ddrun/base/address.hpp"
#include "ddrun/base/messages.hpp"
#include "ddrun/base/text.hpp"
#include "ddrun/base/unique_fd.hpp"
#include "ddrun/inspect/port_user.hpp"
#include "ddrun/process/process_tree.hpp"
#include "ddrun/test/catch.hpp"
#include "ddrun/test/ports.hpp"
#include "ddrun/topology/cpus.hpp"
#include "preparation.hpp"
#include "readiness.hpp"

// What is prepared for services and for the programs that use them.

using namespace ddrun;
using namespace ddrun::agent;

namespace {

using Kind = NprocSpec::Kind;
using Pairs = std::vector<std::pair<std::string, std::string>>;

/// A job on a machine with eight GPUs.
struct Planned {
  LaunchSpec spec;
  std::vector<const char*> environment = {"PATH=/bin:/usr/bin", "CUDA_VISIBLE_DEVICES=0,1,2,3,4,5,6,7"};

  Planned() {
    spec.programs.clear();
    spec.programs.reserve(8);  // add() returns references
  }

  ProgramSpec& add(const std::string& role, bool is_service, NprocSpec nproc = {}) {
    ProgramSpec& program = spec.programs.emplace_back();
    program.name = "true";
    program.role = role;
    program.is_service = is_service;
    program.nproc = nproc;
    return program;
  }
  [[nodiscard]] Result<Preparation> given() const {
    std::vector<const char*> entries = environment;
    entries.push_back(nullptr);
    return prepare(spec, entries.data());
  }
  [[nodiscard]] Preparation prepared() const {
    auto all = given();
    INFO((all ? "" : all.error().message));
    REQUIRE(all);
    return std::move(*all);
  }
  [[nodiscard]] std::string error() const {
    const auto all = given();
    REQUIRE_FALSE(all);
    CHECK(all.error().code == Errc::invalid_argument);
    return all.error().message;
  }
};

UniqueFd socket_at(const SocketAddress& at, bool reuses_address) {
  UniqueFd fd(::socket(at.family(), SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int on = 1;
  if (reuses_address) ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (!fd || ::bind(fd.get(), at.get(), at.size) != 0 || ::listen(fd.get(), 1) != 0) fd.reset();
  return fd;
}

UniqueFd connection_to(const SocketAddress& server) {
  UniqueFd fd(::socket(server.family(), SOCK_STREAM | SOCK_CLOEXEC, 0));
  REQUIRE(::connect(fd.get(), server.get(), server.size) == 0);
  return fd;
}

}  // namespace

TEST_CASE("the first main program is the job's first") {
  Planned job;
  job.add("store", true, {Kind::count, 2});
  job.add("router", true);
  job.add("trainer", false, {Kind::count, 3});
  job.add("eval", false);
  const Preparation prepared = job.prepared();
  CHECK(prepared.first().command.role == "trainer");
  CHECK(prepared.services() == std::set<int>{0, 1, 2});
  CHECK(prepared.workers() == 7);
  CHECK_FALSE(prepared.programs[0].world);
  CHECK(prepared.first().world == 0);
  CHECK(prepared.worlds == 2);

  job.spec.stdin_.rank = 2;
  CHECK(job.given());
  job.spec.stdin_.rank = 3;
  CHECK(job.error() == "--stdin=3: there is no such rank; ranks go from 0 to 2");
}

TEST_CASE("the number of workers follows the program's GPUs") {
  struct Row {
    NprocSpec nproc;
    std::string gpus;
    int workers;
    std::string devices;
  };
  const int cpus = topology::allowed_cpus().value().count();
  const std::vector<Row> rows = {
      {{Kind::gpu, 1}, "3", 3, "0,1,2"},       {{Kind::automatic, 1}, "3", 3, "0,1,2"},
      {{Kind::gpu, 1}, "1,4-6", 4, "1,4,5,6"}, {{Kind::automatic, 1}, "1,4-6", 4, "1,4,5,6"},
      {{Kind::automatic, 1}, "0", cpus, ""},   {{Kind::cpu, 1}, "3", cpus, "0,1,2"},
      {{Kind::count, 5}, "3", 5, "0,1,2"},     {{Kind::count, 5}, "0", 5, ""},
  };
  for (const auto& [nproc, gpus, workers, devices] : rows) {
    CAPTURE(nproc_text(nproc), gpus);
    for (const bool is_only : {true, false}) {
      Planned job;
      job.add("a", false, nproc).gpus = gpus;
      if (!is_only) job.add("b", false).gpus = "0";
      const Preparation prepared = job.prepared();
      CHECK(prepared.first().workers == workers);
      CHECK(prepared.first().command.env == Pairs{{"CUDA_VISIBLE_DEVICES", devices}});
      // Its workers share them.
      CHECK_FALSE(prepared.first().command.virtual_local_rank);
      CHECK(prepared.first().command.gpus_per_worker == 0);
    }
  }
  Planned job;
  job.add("a", false, {Kind::gpu, 1}).gpus = "0";
  CHECK_THAT(job.error(), test::contains("--nproc-per-node=gpu, but there is no GPU: --gpus=0"));
}

TEST_CASE("programs get different GPUs, and services a share for each worker") {
  Planned job;
  job.add("vllm", true, {Kind::count, 2}).gpus = "4";
  job.add("judge", true, {Kind::automatic, 1}).gpus = "2";
  job.add("trainer", false, {Kind::gpu, 1}).gpus = "1";
  job.add("redis", true).gpus = "0";
  const Preparation prepared = job.prepared();
  const auto devices = [&](std::size_t index) { return prepared.programs[index].command.env; };
  CHECK(devices(0) == Pairs{{"CUDA_VISIBLE_DEVICES", "0,1,2,3"}});
  CHECK(devices(1) == Pairs{{"CUDA_VISIBLE_DEVICES", "4,5"}});
  CHECK(devices(2) == Pairs{{"CUDA_VISIBLE_DEVICES", "6"}});
  CHECK(devices(3) == Pairs{{"CUDA_VISIBLE_DEVICES", ""}});
  const auto share = [&](std::size_t index) {
    const ProgramSpec& command = prepared.programs[index].command;
    return command.virtual_local_rank ? command.gpus_per_worker : -1;
  };
  CHECK(share(0) == 2);
  CHECK(share(1) == 1);
  CHECK(share(2) == -1);
  CHECK(share(3) == -1);
  CHECK(prepared.programs[1].workers == 2);

  job.add("more", false).gpus = "2";
  CHECK(job.error() ==
        "--gpus=4 of vllm, --gpus=2 of judge, --gpus=1 of trainer, --gpus=0 of redis, --gpus=2 of more: this machine "
        "has 8 visible devices (0,1,2,3,4,5,6,7)");
}

TEST_CASE("GPUs that cannot be divided among the workers are refused") {
  const auto indivisible = [](const std::string& gpus, const std::string& what) {
    return concat("--gpus=", gpus, ": ", what, ", which get a share each; give a multiple");
  };
  Planned job;
  job.add("a", false).gpus = "0";
  ProgramSpec& service = job.add("b", true, {Kind::count, 3});
  service.gpus = "4";
  CHECK(job.error() == indivisible("4", "4 devices cannot be divided among 3 workers"));
  service.nproc.count = 8;
  CHECK(job.error() == indivisible("4", "4 devices cannot be divided among 8 workers"));
  service.nproc.count = 2;
  service.gpus = "7";
  CHECK(job.error() == indivisible("7", "7 devices cannot be divided among 2 workers"));
  service.gpus = "3-3";
  CHECK(job.error() == indivisible("3-3", "1 device cannot be divided among 2 workers"));
  service.gpus = "0";
  CHECK(job.given());

  Planned only;
  ProgramSpec& program = only.add("default", false, {Kind::count, 3});
  program.gpus = "4";
  CHECK(only.given());
  program.virtual_local_rank = true;
  CHECK(only.error() == indivisible("4", "4 devices cannot be divided among 3 workers"));
  program.gpus = "6";
  CHECK(only.prepared().first().command.gpus_per_worker == 2);
}

TEST_CASE("devices are chosen by --gpus or by --env") {
  for (const std::string name : {"CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"}) {
    Planned job;
    ProgramSpec& program = job.add("a", false);
    program.gpus = "1";
    program.env = {{"X", "1"}, {name, "3"}};
    CHECK(job.error() == concat("--gpus and --env ", name, " both choose devices; leave one out"));
    program.gpus = "0";
    CHECK_THAT(job.error(), test::contains("both choose devices"));
    program.gpus.clear();
    CHECK(job.given());
  }
}

TEST_CASE("where HIP's list counts, both variables have a program's GPUs") {
  Planned job;
  job.environment.push_back("HIP_VISIBLE_DEVICES=6,4,2");
  job.add("a", false).gpus = "2";
  job.add("b", false).gpus = "0";
  const Preparation prepared = job.prepared();
  CHECK(prepared.programs[0].command.env == Pairs{{"CUDA_VISIBLE_DEVICES", "6,4"}, {"HIP_VISIBLE_DEVICES", "6,4"}});
  CHECK(prepared.programs[1].command.env == Pairs{{"CUDA_VISIBLE_DEVICES", ""}, {"HIP_VISIBLE_DEVICES", "-1"}});
}

TEST_CASE("a main program that sees the GPUs of others is named") {
  const auto said_by = [](const Planned& job) {
    std::string said;
    set_message_sink([&](std::string_view text) { said += text; });
    const bool is_prepared = job.given().has_value();
    set_message_sink({});
    CHECK(is_prepared);
    return said;
  };
  Planned job;
  job.add("trainer", false);
  job.add("vllm", true).gpus = "1";
  job.add("redis", true);
  CHECK(said_by(job) ==
        "ddrun: warning: trainer sees all 8 devices, also those of vllm; give --gpus=N too, or --gpus=0\n");
  job.add("eval", false);
  job.add("judge", true).gpus = "2";
  CHECK(said_by(job) ==
        "ddrun: warning: trainer, eval see all 8 devices, also those of vllm, judge; give --gpus=N too, or --gpus=0\n");
  for (const std::size_t main : {0, 3}) job.spec.programs[main].gpus = "0";
  CHECK(said_by(job).empty());
  Planned none;
  none.add("trainer", false);
  none.add("redis", true).gpus = "0";
  CHECK(said_by(none).empty());
}

TEST_CASE("programs know where the others listen") {
  Planned job;
  ProgramSpec& trainer = job.add("trainer", false);
  trainer.args = {"--server=${endpoint:v-llm}", "${each:v-llm}", "${port}"};
  trainer.env = {{"ALL", "${endpoints:v-llm}"}, {"STORE", "${host:redis}"}};
  job.add("v-llm", true, {Kind::count, 2}).port = 8000;
  job.add("redis", true);
  const Preparation prepared = job.prepared();
  CHECK(prepared.first().command.args ==
        std::vector<std::string>{"--server=127.0.0.1:8000", "127.0.0.1:8000", "127.0.0.1:8001", "${port}"});
  CHECK(prepared.first().command.env == Pairs{{"ALL", "127.0.0.1:8000,127.0.0.1:8001"}, {"STORE", "127.0.0.1"}});
  CHECK(prepared.addresses == Pairs{{"DDRUN_HOSTS_TRAINER", "127.0.0.1"},
                                    {"DDRUN_HOSTS_V_LLM", "127.0.0.1,127.0.0.1"},
                                    {"DDRUN_ENDPOINTS_V_LLM", "127.0.0.1:8000,127.0.0.1:8001"},
                                    {"DDRUN_HOSTS_REDIS", "127.0.0.1"}});
  job.spec.programs[2].args = {"${endpoint:redis}"};
  CHECK(job.error() == "${endpoint:redis}: redis has no --port; give it one");

  // A job of one program has no others.
  Planned only;
  only.add("default", false).args = {"${host:default}"};
  CHECK(only.prepared().first().command.args == std::vector<std::string>{"${host:default}"});
  CHECK(only.prepared().addresses.empty());
}

TEST_CASE("each worker of all programs has a port of its own, 65535 at most") {
  Planned job;
  ProgramSpec& a = job.add("a", false, {Kind::count, 4});
  ProgramSpec& b = job.add("b", true, {Kind::count, 3});
  struct Row {
    int a, b;
    std::string error;
  };
  const std::vector<Row> rows = {
      {8000, 8000, "--port=8000: each of 3 workers has a port, and 8000 is that of a"},
      {8000, 8001, "--port=8001: each of 3 workers has a port, and 8001 is that of a"},
      {8000, 8003, "--port=8003: each of 3 workers has a port, and 8003 is that of a"},
      {8000, 7999, "--port=7999: each of 3 workers has a port, and 8000 is that of a"},
      {8000, 7998, "--port=7998: each of 3 workers has a port, and 8000 is that of a"},
      {8000, 8004, ""},
      {8000, 7997, ""},
      {0, 8000, ""},
      {8000, 0, ""},
      {0, 0, ""},
      {1, 65533, ""},
      {65532, 1, ""},
      {0, 65534, "--port=65534: each of 3 workers has a port, and 65536 is no port"},
      {65533, 1, "--port=65533: each of 4 workers has a port, and 65536 is no port"},
  };
  for (const auto& [of_a, of_b, error] : rows) {
    CAPTURE(of_a, of_b);
    a.port = of_a;
    b.port = of_b;
    if (error.empty()) CHECK(job.given());
    else CHECK(job.error() == error);
  }

  Planned only;
  ProgramSpec& program = only.add("default", false, {Kind::count, 2});
  program.port = 65534;
  CHECK(only.given());
  program.port = 65535;
  CHECK(only.error() == "--port=65535: each of 2 workers has a port, and 65536 is no port");
  // Without ports there may be more workers than ports.
  program.port = 0;
  program.nproc.count = 70'000;
  CHECK(only.prepared().workers() == 70'000);
}

TEST_CASE("MPI needs a world") {
  Planned job;
  job.add("a", false);
  ProgramSpec& service = job.add("b", true);
  service.mpi = Mpi::pmi;
  CHECK(job.error() == "b has --mpi and no world; give it --world=NAME");
  service.mpi = Mpi::none;
  CHECK(job.given());
}

TEST_CASE("a port that a process listens on is refused and free when it ends") {
  const std::string address = GENERATE("127.0.0.1", "0.0.0.0", "::1", "::");
  const int port = test::free_port();
  const auto at = SocketAddress::parse(address, static_cast<std::uint16_t>(port));
  CAPTURE(address);
  Planned job;
  job.add("a", false);
  job.add("b", true).port = port;
  const Preparation prepared = job.prepared();
  CHECK(check_ports(prepared));

  UniqueFd listener = socket_at(*at, true);
  if (!listener) test::skip("this machine has no " + address);
  const auto sockets = inspect::sockets_at(port, true);
  CHECK(sockets.size() == 1);
  CHECK(inspect::find_holder(sockets) == ::getpid());
  CHECK(inspect::find_holder(sockets, {::getppid(), ::getpid()}) == ::getpid());
  CHECK(inspect::find_holder(sockets, {::getppid()}) == 0);
  const std::string by = concat(" is in use by pid ", ::getpid(), " (", process::process_name(::getpid()),
                                "); end that process, or give another --port");
  const auto taken = check_ports(prepared);
  REQUIRE_FALSE(taken);
  CHECK(taken.error().code == Errc::unavailable);
  CHECK(taken.error().message == concat("port ", port, " (b)", by));

  // The port of the second worker, of an only program.
  Planned only;
  ProgramSpec& program = only.add("default", false, {Kind::count, 2});
  program.port = port - 1;
  const auto second = check_ports(only.prepared());
  REQUIRE_FALSE(second);
  CHECK_THAT(second.error().message, test::contains("is in use"));
  program.port = 0;
  CHECK(check_ports(only.prepared()));

  listener.reset();
  CHECK(check_ports(prepared));
  CHECK(inspect::sockets_at(port, false).empty());
}

TEST_CASE("a port whose connections only wait for their end is free") {
  const std::string address = GENERATE("127.0.0.1", "::1");
  const bool reuses_address = GENERATE(true, false);
  CAPTURE(address, reuses_address);
  const int port = test::free_port();
  const auto at = SocketAddress::parse(address, static_cast<std::uint16_t>(port));
  UniqueFd listener = socket_at(*at, reuses_address);
  if (!listener) test::skip("this machine has no " + address);
  Planned job;
  job.add("a", false).port = port;
  const Preparation prepared = job.prepared();

  // The side that closes first keeps the connection in TIME_WAIT.
  UniqueFd client = connection_to(*at);
  UniqueFd accepted(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
  REQUIRE(accepted);
  CHECK_FALSE(check_ports(prepared));
  listener.reset();
  accepted.reset();
  char byte = 0;
  REQUIRE(::read(client.get(), &byte, 1) == 0);
  client.reset();
  CHECK(inspect::sockets_at(port, false).empty());
  CHECK(check_ports(prepared));
}
