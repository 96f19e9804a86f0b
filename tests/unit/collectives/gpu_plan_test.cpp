#include "ddrun/base/text.hpp"
#include "ddrun/test/catch.hpp"
#include "gpu/survey.hpp"

using namespace ddrun::collectives;

namespace {

GpuSurvey with(std::vector<std::string> devices, int nccl = 22809, bool may_share = false) {
  GpuSurvey survey;
  survey.probed = true;
  survey.driver = 13000;
  survey.driver_info = "libcuda.so.1";
  survey.devices = std::move(devices);
  survey.nccl = nccl;
  survey.nccl_info = nccl != 0 ? "libnccl.so.2" : "no NCCL: not found";
  survey.may_share = may_share;
  return survey;
}

std::vector<HostIdentity> on(const std::vector<std::string>& machines) {
  std::vector<HostIdentity> all;
  for (const auto& machine : machines) all.push_back({machine, machine, "1", 1});
  return all;
}

}  // namespace

TEST_CASE("a rank's GPU index is its index on its machine") {
  const auto two = with({"a", "b"});
  const auto plan = plan_gpus({two, two, two, two}, on({"x", "y", "x", "y"}));
  CHECK(plan.devices == std::vector<int>{0, 0, 1, 1});
  CHECK(plan.problem.empty());
}

TEST_CASE("a rank that sees a single GPU uses it") {
  const auto plan = plan_gpus({with({"a"}), with({"b"})}, on({"x", "x"}));
  CHECK(plan.devices == std::vector<int>{0, 0});
  CHECK_FALSE(plan.shared());
  CHECK(plan.ranks_on_device == std::vector<int>{1, 1});
}

TEST_CASE("two ranks share a GPU only if NCCL allows it") {
  const auto refused = plan_gpus({with({"a"}), with({"a"})}, on({"x", "x"}));
  CHECK(refused.possible());
  CHECK(refused.shared());
  CHECK(refused.problem.find("ranks 0 and 1 are on one GPU of x, which NCCL 2.28.9 refuses") == 0);
  const auto not_enabled = plan_gpus({with({"a"}, 23007), with({"a"}, 23007)}, on({"x", "x"}));
  CHECK(not_enabled.problem.find("allows only with NCCL_MULTI_RANK_GPU_ENABLE=1") != std::string::npos);
  const auto shared = with({"a", "b"}, 23007, true);
  const auto plan = plan_gpus({shared, shared, shared}, on({"x", "x", "x"}));
  CHECK(plan.devices == std::vector<int>{0, 1, 0});
  CHECK(plan.ranks_on_device == std::vector<int>{2, 1, 2});
  CHECK(plan.problem.empty());
}

TEST_CASE("the reason against nccl names the rank") {
  CHECK(plan_gpus({with({"a"}), with({})}, on({"x", "y"})).problem ==
        "rank 1 on y: driver for CUDA 13.0 (libcuda.so.1), 0 GPUs; NCCL 2.28.9 (libnccl.so.2)");
  CHECK(plan_gpus({with({"a"}), with({"a"}, 22703)}, on({"x", "y"})).problem ==
        "rank 1 on y: NCCL 2.27.3, rank 0 has 2.28.9");
  const auto two = with({"a", "b"});
  CHECK(plan_gpus({two, two, two}, on({"x", "x", "x"})).problem ==
        "rank 2 on x: the machine has at least 3 ranks and only 2 GPUs");
}

TEST_CASE("a survey is serialised and parsed") {
  const auto sent = with({"a", "b"}, 23007, true);
  const auto came = GpuSurvey::parse(sent.line());
  REQUIRE(came);
  CHECK(came->line() == sent.line());
  CHECK(came->devices == sent.devices);
  CHECK_FALSE(GpuSurvey::parse("nonsense"));
}
