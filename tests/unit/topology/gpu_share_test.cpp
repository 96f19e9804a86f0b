#include "ddrun/topology/nproc.hpp"

#include "ddrun/base/text.hpp"
#include "ddrun/test/catch.hpp"
#include "ddrun/topology/nproc.hpp"

using namespace ddrun;
using namespace ddrun::topology;

namespace {

using Names = std::vector<std::string>;

const Names eight{"0", "1", "2", "3", "4", "5", "6", "7"};
const Names by_uuid{"GPU-8932f937-d72c-4106-c12f-20bd9faed9f6", "MIG-dc2ce8e6-1b3f-5c1a-9c0e-6d0fd4c2a9c1",
                    "MIG-GPU-8932f937-d72c-4106-c12f-20bd9faed9f6/1/0", "5"};

/// Of programs a, b, c and so on with these --gpus.
auto divided(const Names& texts, const Names& visible) {
  std::vector<GpuRequest> requests;
  for (const std::string& text : texts) {
    requests.push_back({text, std::string(1, static_cast<char>('a' + requests.size()))});
  }
  return divide_gpus(requests, visible);
}

/// The list of each program, "unset" for one without.
Names shares(const Names& texts, const Names& visible = eight) {
  const auto all = divided(texts, visible);
  if (!all) return {"error: " + all.error().message};
  Names lists;
  for (const auto& one : *all) lists.push_back(one ? join(*one, ",") : "unset");
  return lists;
}

std::string refusal(const Names& texts, const Names& visible = eight) {
  const auto all = divided(texts, visible);
  REQUIRE_FALSE(all);
  CHECK(all.error().code == Errc::invalid_argument);
  return all.error().message;
}

VisibleDevices devices_of(std::vector<const char*> entries) {
  entries.push_back(nullptr);
  return visible_devices(Environment(entries.data()));
}

}  // namespace

TEST_CASE("programs get their GPUs in order, by number or by list") {
  struct Row {
    Names asked, lists;
  };
  const std::vector<Row> rows = {
      {{"4", "2"}, {"0,1,2,3", "4,5"}},
      {{"8"}, {"0,1,2,3,4,5,6,7"}},
      {{"3", "", "5"}, {"0,1,2", "unset", "3,4,5,6,7"}},
      {{"", ""}, {"unset", "unset"}},
      {{"0", "8"}, {"", "0,1,2,3,4,5,6,7"}},
      {{"0", "0"}, {"", ""}},
      {{"0-3,6"}, {"0,1,2,3,6"}},
      {{"6,0-1"}, {"6,0,1"}},
      {{" 1 , 0 "}, {"1,0"}},
      {{"7-7"}, {"7"}},
      // A number takes what no list names, also one that stands behind it.
      {{"0-3,6", "2"}, {"0,1,2,3,6", "4,5"}},
      {{"2", "0-3,6"}, {"4,5", "0,1,2,3,6"}},
      {{"3", "1", "0,2"}, {"1,3,4", "5", "0,2"}},
      // Lists may share devices.
      {{"0-3", "2-5", "1"}, {"0,1,2,3", "2,3,4,5", "6"}},
      {{"0-7", "0-7", "0"}, {"0,1,2,3,4,5,6,7", "0,1,2,3,4,5,6,7", ""}},
  };
  for (const auto& [asked, lists] : rows) {
    CAPTURE(asked);
    CHECK(shares(asked) == lists);
  }
}

TEST_CASE("GPUs have the names of the visible ones") {
  CHECK(shares({"2", "2"}, {"3", "7", "1", "5"}) == Names{"3,7", "1,5"});
  CHECK(shares({"2-3", "1"}, {"3", "7", "1", "5"}) == Names{"1,5", "3"});
  CHECK(shares({by_uuid[1], "2"}, by_uuid) == Names{by_uuid[1], by_uuid[0] + "," + by_uuid[2]});
  CHECK(shares({by_uuid[2] + "," + by_uuid[0]}, by_uuid) == Names{by_uuid[2] + "," + by_uuid[0]});
  CHECK(shares({by_uuid[0] + ",3"}, by_uuid) == Names{by_uuid[0] + ",5"});
  CHECK(shares({"0-1"}, by_uuid) == Names{by_uuid[0] + "," + by_uuid[1]});
  CHECK(shares({"3-3"}, by_uuid) == Names{"5"});
  CHECK_THAT(refusal({"0,5"}, by_uuid), test::contains("'5' is no device"));
  CHECK_THAT(refusal({"GPU-8932f937"}, by_uuid), test::contains("'GPU-8932f937' is no device"));
}

TEST_CASE("too few GPUs for all are refused with every program's number") {
  CHECK(refusal({"4", "5"}) == "--gpus=4 of a, --gpus=5 of b: this machine has 8 visible devices (0,1,2,3,4,5,6,7)");
  CHECK(refusal({"0-3", "", "5"}) ==
        "--gpus=0-3 of a, --gpus=5 of c: this machine has 8 visible devices (0,1,2,3,4,5,6,7)");
  CHECK(refusal({"2", "0"}, {"GPU-1"}) == "--gpus=2 of a, --gpus=0 of b: this machine has 1 visible device (GPU-1)");
  const auto only = divide_gpus({{"9", ""}}, eight);
  REQUIRE_FALSE(only);
  CHECK(only.error().message == "--gpus=9: this machine has 8 visible devices (0,1,2,3,4,5,6,7)");
}

TEST_CASE("an item of --gpus that names no device is refused") {
  CHECK(refusal({"2", "0-8"}) ==
        "--gpus=0-8 of b: '0-8' is no device; this machine has 8 visible devices (0,1,2,3,4,5,6,7)");
  for (const char* text : {"8-8", "3-1", "1-", "-1", "0-1-2", "x", "GPU-1", "0x1", "1.5", "+1", "100001", ","}) {
    CAPTURE(text);
    CHECK_THAT(refusal({text}), test::contains("is no device; this machine has 8 visible devices"));
  }
  for (const char* list : {"0,8", "0,", "8,0", "0,,1", "0,x,1"}) {
    CAPTURE(list);
    CHECK_THAT(refusal({list}), test::contains("is no device"));
  }
}

TEST_CASE("on a machine without GPUs programs can have none") {
  CHECK(shares({"0", ""}, {}) == Names{"", "unset"});
  CHECK(refusal({"1", ""}, {}) == "--gpus=1 of a: this machine has 0 visible devices");
  CHECK(refusal({"0-0"}, {}) == "--gpus=0-0 of a: '0-0' is no device; this machine has 0 visible devices");
}

TEST_CASE("the visible devices are those of HIP's list, else of CUDA's, else all") {
  CHECK(devices_of({"CUDA_VISIBLE_DEVICES=3,GPU-1a-2b, 5 "}).names == Names{"3", "GPU-1a-2b", "5"});
  CHECK_FALSE(devices_of({"CUDA_VISIBLE_DEVICES=3"}).by_hip);
  for (const char* none : {"CUDA_VISIBLE_DEVICES=", "CUDA_VISIBLE_DEVICES= ", "CUDA_VISIBLE_DEVICES=,"}) {
    CAPTURE(none);
    CHECK(devices_of({none}).names.empty());
  }

  const VisibleDevices both = devices_of({"CUDA_VISIBLE_DEVICES=0,1,2,3", "HIP_VISIBLE_DEVICES=7, 5"});
  CHECK(both.names == Names{"7", "5"});
  CHECK(both.by_hip);
  CHECK(devices_of({"HIP_VISIBLE_DEVICES=2"}).by_hip);
  // HIP takes an empty list for none given.
  const VisibleDevices empty = devices_of({"CUDA_VISIBLE_DEVICES=0,1", "HIP_VISIBLE_DEVICES="});
  CHECK(empty.names == Names{"0", "1"});
  CHECK_FALSE(empty.by_hip);

  const VisibleDevices all = devices_of({"PATH=/bin"});
  CHECK(static_cast<int>(all.names.size()) == count_gpus(GpuVariables::from_environment()));
  for (std::size_t i = 0; i < all.names.size(); ++i) CHECK(all.names[i] == std::to_string(i));
  CHECK_FALSE(all.by_hip);
}
