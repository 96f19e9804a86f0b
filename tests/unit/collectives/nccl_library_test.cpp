#include "gpu/nccl_library.hpp"

#include <cstdlib>
#include <filesystem>
#include <set>

#include "ddrun/base/text.hpp"
#include "ddrun/test/catch.hpp"
#include "ddrun/test/files.hpp"
#include "gpu/cuda.hpp"
#include "gpu/nccl_rendezvous.hpp"
#include "ranks.hpp"

using namespace ddrun;
using namespace ddrun::collectives;

namespace {

class Variable {
 public:
  Variable(const char* name, const std::string& value) : name_(name) { setenv(name, value.c_str(), 1); }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;
  ~Variable() { unsetenv(name_); }

 private:
  const char* name_;
};

void need_libraries() {
  if (!can_open_libraries()) test::skip("linked as a static program: no library can be opened");
}

}  // namespace

TEST_CASE("an NCCL that is too old is reported with its version and the missing function") {
  need_libraries();
  const Variable library("DDRUN_NCCL_LIBRARY", DDRUN_TEST_OLD_NCCL);
  const Variable version("FAKE_GPU", "nccl=21212");
  const auto opened = nccl::Library::open();
  REQUIRE_FALSE(opened);
  CHECK(opened.error().code == Errc::unsupported);
  CHECK(opened.error().message.find(
            "is NCCL 2.12.12 and has no ncclCommInitRankConfig: NCCL 2.14 or later is needed") != std::string::npos);
}

TEST_CASE("a missing library is reported with its path") {
  need_libraries();
  const Variable nccl("DDRUN_NCCL_LIBRARY", "/nowhere/libnccl.so.2");
  const Variable cuda("DDRUN_CUDA_LIBRARY", "/nowhere/libcuda.so.1");
  const auto library = nccl::Library::open();
  REQUIRE_FALSE(library);
  CHECK(library.error().message.find("no NCCL: /nowhere/libnccl.so.2: ") == 0);
  const auto driver = cuda::Driver::open();
  REQUIRE_FALSE(driver);
  CHECK(driver.error().message.find("no NVIDIA driver: /nowhere/libcuda.so.1: ") == 0);
}

TEST_CASE("NCCL is looked for among the packages of the Python that PyTorch would be in") {
  const test::TemporaryDirectory dir;
  const auto prefixes = [](std::vector<std::string> entries) {
    std::vector<const char*> raw;
    for (const std::string& entry : entries) raw.push_back(entry.c_str());
    raw.push_back(nullptr);
    return nccl::python_prefixes(Environment(raw.data()), "/opt/tools/bin/ddrun-allreduce");
  };
  using Prefixes = std::vector<std::string>;
  CHECK(prefixes({"VIRTUAL_ENV=/venv"}) == Prefixes{"/venv", "/opt/tools"});

  const std::string path = concat("PATH=/nowhere:", dir.file("env/bin"), ":/usr/bin");
  dir.file("real/bin/python3.12", "", 0755);
  dir.file("env/bin/other", "");
  std::filesystem::create_symlink("../../real/bin/python3.12", dir.file("env/bin/python3"));
  CHECK(prefixes({path, "HOME=/home/a"}) ==
        Prefixes{"/opt/tools", dir.file("env"), dir.file("real"), "/home/a/.local", "/usr/local"});
  dir.file("env/pyvenv.cfg", "");
  CHECK(prefixes({path, "HOME=/home/a"}) == Prefixes{"/opt/tools", dir.file("env")});
}

TEST_CASE("pip's NCCL is opened if the dynamic linker finds none") {
  need_libraries();
  const test::TemporaryDirectory dir;
  const std::string file = dir.file("b/lib/python3.12/site-packages/nvidia/nccl/lib/libnccl.so.2");
  const std::vector<std::string> prefixes{dir.file("a"), dir.file("b")};
  const auto missing = nccl::open_nccl("libddrun-nowhere.so", prefixes);
  REQUIRE_FALSE(missing);
  CHECK(missing.error().code == Errc::unsupported);
  CHECK(missing.error().message.find(concat("; no nvidia/nccl/lib in the Python packages of ", dir.file("a"), ", ",
                                            dir.file("b"), " (DDRUN_NCCL_LIBRARY can name the file)")) !=
        std::string::npos);
  std::filesystem::create_directories(std::filesystem::path(file).parent_path());
  std::filesystem::create_symlink(DDRUN_TEST_OLD_NCCL, file);
  const auto found = nccl::open_nccl("libddrun-nowhere.so", prefixes);
  REQUIRE(found);
  CHECK(found->path() == file);
}

TEST_CASE("NCCL's version codes of both forms are formatted") {
  CHECK(nccl::format_version(22809) == "2.28.9");
  CHECK(nccl::format_version(2708) == "2.7.8");
}

TEST_CASE("ids of the real NCCL reach all ranks through the store") {
  const auto library = nccl::Library::open();
  if (!library) test::skip(library.error().message);
  const int ranks_per_id = GENERATE(2, 1000);
  std::vector<std::vector<nccl::UniqueId>> all(4);
  const auto problems = test::run_ranks(4, [&](const Group& group) -> std::string {
    auto ids = exchange_nccl_ids(group, *library, ranks_per_id, test::in_time());
    if (!ids) return ids.error().message;
    all[static_cast<std::size_t>(group.rank)] = std::move(*ids);
    return {};
  });
  for (const auto& problem : problems) REQUIRE(problem.empty());
  CHECK(all[0].size() == (ranks_per_id == 2 ? 2U : 1U));
  std::set<std::array<char, 128>> different;
  for (const auto& id : all[0]) different.insert(id.internal);
  CHECK(different.size() == all[0].size());
  for (const auto& ids : all) {
    REQUIRE(ids.size() == all[0].size());
    for (std::size_t i = 0; i < ids.size(); ++i) CHECK(ids[i].internal == all[0][i].internal);
  }
}
