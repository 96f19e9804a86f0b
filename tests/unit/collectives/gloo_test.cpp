#include "ddrun/collectives/communicator.hpp"
#include "ddrun/test/catch.hpp"
#include "ranks.hpp"

using namespace ddrun;
using namespace ddrun::collectives;
using namespace std::chrono_literals;
using ddrun::test::in_time;
using ddrun::test::run_ranks;

namespace {

void need_gloo() {
  if (const auto there = probe(Backend::gloo); !there) ddrun::test::skip(there.error().message);
}

CommunicatorOptions gloo() {
  CommunicatorOptions options;
  options.backend = Backend::gloo;
  options.buffer_bytes = 4096;
  return options;
}

}  // namespace

TEST_CASE("gloo is built in, or the error says how to build with it") {
  const auto there = probe(Backend::gloo);
  if (there) CHECK(there->starts_with("gloo "));
  else CHECK(there.error().message.find("libgloo-dev") != std::string::npos);
  if (there) return;
  const auto messages = run_ranks(2, [](const Group& group) -> std::string {
    const auto connected = connect(group, gloo(), in_time());
    return connected ? "connected" : connected.error().message;
  });
  CHECK(messages == std::vector<std::string>(2, there.error().message));
}

TEST_CASE("gloo reports unsupported calls, and has another back end as control") {
  need_gloo();
  const auto messages = run_ranks(2, [](const Group& group) -> std::string {
    const auto connected = connect(group, gloo(), in_time());
    if (!connected) return connected.error().message;
    Communicator& all = *connected->communicator;
    const auto is_unsupported = [&](Collective collective, DataType type, ReduceOp op, bool in_place) {
      return !all.unsupported_reason(collective, type, op, in_place).empty();
    };
    const bool right = !is_unsupported(Collective::all_reduce, DataType::float32, ReduceOp::sum, true) &&
                       is_unsupported(Collective::all_reduce, DataType::float32, ReduceOp::avg, true) &&
                       is_unsupported(Collective::reduce, DataType::bfloat16, ReduceOp::sum, false) &&
                       !is_unsupported(Collective::broadcast, DataType::bfloat16, ReduceOp::sum, false) &&
                       is_unsupported(Collective::reduce_scatter, DataType::float32, ReduceOp::sum, false) &&
                       is_unsupported(Collective::all_to_all, DataType::float32, ReduceOp::sum, true);
    if (!right) return "wrong unsupported_reason()";
    return concat(all.name(), ' ', connected->control->name());
  });
  CHECK(messages == std::vector<std::string>(2, "gloo shm"));
}

TEST_CASE("a rank that leaves gloo is named by the others") {
  need_gloo();
  const auto messages = run_ranks(3, [](const Group& group) -> std::string {
    auto connected = connect(group, gloo(), in_time());
    if (!connected) return connected.error().message;
    Communicator& all = *connected->communicator;
    if (auto synced = all.barrier(in_time()); !synced) return synced.error().message;
    if (group.rank == 1) return "rank 1 is gone";
    const auto synced = all.barrier(in_time());
    return synced ? "fine" : synced.error().message;
  });
  CHECK(messages == std::vector<std::string>(3, "rank 1 is gone"));
}

TEST_CASE("a call of gloo times out at the deadline") {
  need_gloo();
  const auto messages = run_ranks(2, [](const Group& group) -> std::string {
    auto connected = connect(group, gloo(), in_time());
    if (!connected) return connected.error().message;
    Communicator& all = *connected->communicator;
    if (auto synced = all.barrier(in_time()); !synced) return synced.error().message;
    if (group.rank == 1) {
      // Keeps its connections open until rank 0 has timed out.
      static_cast<void>(group.store->get(group.prefix + "given up", in_time()));
      return "late";
    }
    const auto deadline = Clock::now() + 200ms;
    const auto synced = all.barrier(deadline);
    static_cast<void>(group.store->set(group.prefix + "given up", "", in_time()));
    if (synced || synced.error().code != Errc::timeout) return "no timeout";
    return Clock::now() < deadline ? "too early" : "late";
  });
  CHECK(messages == std::vector<std::string>(2, "late"));
}
