#include "ddrun/worker_env/program_path.hpp"

#include <random>

#include "ddrun/test/catch.hpp"
#include "ddrun/test/files.hpp"
#include "elf_builder.hpp"

using namespace ddrun;
using test::TemporaryDirectory;
using worker_env::imports_mpi4py;
using worker_env::linked_mpi;

namespace {

/// An ELF file with these DT_NEEDED entries.
std::string program(const std::vector<std::string>& libraries, const test::ElfLayout& layout = {}) {
  std::vector<std::pair<Elf64_Sxword, std::string>> needed;
  for (const std::string& library : libraries) needed.emplace_back(DT_NEEDED, library);
  return test::elf_file(needed, layout);
}

}  // namespace

TEST_CASE("a program linked with MPI is recognised by its DT_NEEDED entry") {
  const TemporaryDirectory dir;
  const auto needed = [&](const std::string& content) { return linked_mpi(dir.file("p", content, 0755)); };
  CHECK(needed(program({"libm.so.6", "libmpi.so.40", "libc.so.6"})) == "libmpi.so.40");
  CHECK(needed(program({"libmpich.so.12"})) == "libmpich.so.12");
  CHECK(needed(program({"libmpi_cxx.so.40", "libmpi.so.40"})) == "libmpi_cxx.so.40");
  CHECK(needed(program({"libmpi_gnu_112.so.12"})) == "libmpi_gnu_112.so.12");
  CHECK(needed(program({"libc.so.6", "libmpir.so.1", "libmpfr.so.6"})).empty());
  CHECK(needed(program({})).empty());
  CHECK(linked_mpi("/proc/self/exe").empty());
}

TEST_CASE("an invalid ELF file needs no MPI and is read safely") {
  const TemporaryDirectory dir;
  const auto needed = [&](const std::string& content) { return linked_mpi(dir.file("p", content, 0755)); };
  CHECK(needed("").empty());
  CHECK(needed("#!/bin/sh\n").empty());
  CHECK(linked_mpi(dir.path()).empty());
  CHECK(linked_mpi(dir.path() + "/none").empty());
  const std::string good = program({"libmpi.so.40"});
  for (std::size_t size = 0; size < good.size(); ++size) {
    CAPTURE(size);
    CHECK(needed(good.substr(0, size)).empty());
  }
  for (const std::uint64_t far : {0xffffffffffffffffULL, 0x7fffffffffffffffULL, 0x400000ULL + 0xfffff, 1ULL}) {
    CAPTURE(far);
    CHECK(needed(program({"libmpi.so.40"}, {.names_address = far})).empty());
    if (far > 1) CHECK(needed(program({"libmpi.so.40"}, {.first_name = far})).empty());
    needed(program({"libmpi.so.40"}, {.names_size = far}));
  }
  CHECK(needed(program({"libmpi.so.40"}, {.headers = 0xffff})).empty());
  // Every byte is varied; the call only has to return.
  std::mt19937 random(20);
  for (int i = 0; i < 2000; ++i) {
    std::string bad = good;
    for (int change = 0; change < 3; ++change) bad[random() % bad.size()] = static_cast<char>(random());
    needed(bad);
  }
}

TEST_CASE("a Python script that imports mpi4py is recognised by its lines") {
  const TemporaryDirectory dir;
  const auto imports = [&](const std::string& text) {
    dir.file("t.py", text);
    return imports_mpi4py("./t.py", dir.path());
  };
  const std::string cut(16UL * 1024, '\n');
  const auto [text, expected] = GENERATE_COPY(table<std::string, bool>({
      {"import mpi4py", true},
      {"import mpi4py.MPI as mpi\n", true},
      {"from mpi4py import MPI\n", true},
      {"from\tmpi4py.util  import pkl5  # fast\n", true},
      {"import sys,  mpi4py\r\nx()\r\n", true},
      {"import mpi4py; mpi4py.rc.initialize = False\n", true},
      {"\"\"\"Trains.\"\"\"\ntry:\n\tfrom mpi4py import MPI\nexcept ImportError:\n\tpass\n", true},
      {"'''\nimport os\n'''\nif rank:\n    import mpi4py\n", true},
      {cut.substr(14) + "import mpi4py\n", true},
      {cut + "import mpi4py\n", false},
      {"", false},
      {"import os\n# import mpi4py\n", false},
      {"import os  # and not mpi4py\n", false},
      {"print('import mpi4py')\n", false},
      {"from mine import a, mpi4py\n", false},
      {"import mpi4pyx, mine.mpi4py\n", false},
      {"mpi4py = None\nimport_mpi4py()\nfrom\nimport\n", false},
      {"\"\"\"Usage:\nfrom mpi4py import MPI\n\"\"\"\nimport os\n", false},
      {"x = '''\nimport mpi4py\n'''\n", false},
      {"'''\nimport mpi4py\n", false},
  }));
  CAPTURE(text);
  CHECK(imports(text) == expected);
  CHECK_FALSE(imports_mpi4py("none.py", dir.path()));
  CHECK_FALSE(imports_mpi4py(dir.path(), "/"));
}
