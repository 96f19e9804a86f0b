#include <filesystem>
#include <random>

#include "ddrun/test/catch.hpp"
#include "ddrun/test/files.hpp"
#include "ddrun/worker_env/program_path.hpp"
#include "elf_builder.hpp"

using namespace ddrun;
using test::elf_file;
using test::TemporaryDirectory;
using worker_env::find_libpmix;

namespace {

#if defined(__x86_64__)
constexpr test::ElfLayout own_library{.machine = EM_X86_64};
#elif defined(__aarch64__)
constexpr test::ElfLayout own_library{.machine = EM_AARCH64};
#elif defined(__riscv)
constexpr test::ElfLayout own_library{.machine = EM_RISCV};
#else
constexpr test::ElfLayout own_library{.machine = EM_PPC64};
#endif

/// A folder with programs and libraries, its /opt/system being the only folder that the loader knows.
struct Machine {
  TemporaryDirectory dir;

  /// Writes a library; returns its path.
  std::string library(const std::string& name, const std::string& runpath = "") const {
    return dir.file(name, runpath.empty() ? elf_file({}, own_library) : elf_file({{DT_RUNPATH, runpath}}, own_library));
  }

  /// Writes bin/program with these dynamic entries and finds its libraries: paths in this folder.
  [[nodiscard]] worker_env::MpiLibraries find(const std::vector<std::pair<Elf64_Sxword, std::string>>& entries,
                                              const std::string& library_path = "",
                                              const std::string& venv = "") const {
    const std::string program = dir.file("bin/program", elf_file(entries, own_library), 0755);
    const std::string variable = "LD_LIBRARY_PATH=" + library_path;
    const char* const environment[] = {"PATH=/bin", library_path.empty() ? nullptr : variable.c_str(), nullptr};
    auto found =
        find_libpmix(program, Environment(environment), venv.empty() ? "" : dir.file(venv), {dir.file("opt/system")});
    for (std::string* path : {&found.mpi, &found.pmix}) {
      if (path->starts_with(dir.path())) path->erase(0, dir.path().size() + 1);
    }
    return found;
  }
};

}  // namespace

TEST_CASE("no libmpi and no libpmix are found where there are none") {
  const Machine machine;
  CHECK(machine.find({}).mpi.empty());
  CHECK(machine.find({}).pmix.empty());
  CHECK(machine.find({{DT_RUNPATH, "$ORIGIN"}}, ":/none:", "venv").pmix.empty());
  CHECK(find_libpmix(machine.dir.file("none"), Environment(), "", {}).pmix.empty());
  CHECK(find_libpmix("", Environment(), "", {}).mpi.empty());
}

TEST_CASE("RUNPATH names folders with $ORIGIN, and the libpmix beside the libmpi is taken") {
  const Machine machine;
  machine.library("opt/system/libmpi.so.40");
  machine.library("opt/system/libpmix.so.2");
  machine.library("lib/libmpi.so.40");
  const std::string runpath = GENERATE("$ORIGIN/../lib", "/none:${ORIGIN}/../lib", "none::../lib");
  const auto found = machine.find({{DT_NEEDED, "libc.so.6"}, {DT_RUNPATH, runpath}});
  if (runpath == "none::../lib") {  // relative: to a directory that is not known here
    CHECK(found.mpi == "opt/system/libmpi.so.40");
    return;
  }
  CHECK(std::filesystem::equivalent(machine.dir.file(found.mpi), machine.dir.file("lib/libmpi.so.40")));
  CHECK(found.pmix == "opt/system/libpmix.so.2");

  machine.library("lib/openmpi/libpmix.so.2");
  CHECK(machine.find({{DT_RUNPATH, runpath}}).pmix.ends_with("lib/openmpi/libpmix.so.2"));
  machine.library("lib/libpmix.so.2");
  CHECK(machine.find({{DT_RUNPATH, runpath}}).pmix.ends_with("lib/libpmix.so.2"));
}

TEST_CASE("$ORIGIN is the folder of the program that a link leads to") {
  const Machine machine;
  machine.library("lib/libmpi.so.40");
  (void)machine.find({{DT_RUNPATH, "$ORIGIN/../lib"}});
  std::filesystem::create_directories(machine.dir.file("home/venv/bin"));
  const std::string link = machine.dir.file("home/venv/bin/program");
  std::filesystem::create_symlink(machine.dir.file("bin/program"), link);
  CHECK(find_libpmix(link, Environment(), "", {}).mpi == machine.dir.file("bin/../lib/libmpi.so.40"));
}

TEST_CASE("LD_LIBRARY_PATH is searched before RUNPATH and after an RPATH that has no RUNPATH beside it") {
  const Machine machine;
  for (const std::string folder : {"a", "b", "c", "opt/system"}) machine.library(folder + "/libmpi.so.40");
  const std::string a = machine.dir.file("a");
  const std::string b = machine.dir.file("b");
  const std::string c = machine.dir.file("c");
  CHECK(machine.find({}).mpi == "opt/system/libmpi.so.40");
  CHECK(machine.find({{DT_RUNPATH, b}}).mpi == "b/libmpi.so.40");
  CHECK(machine.find({{DT_RUNPATH, b}}, a).mpi == "a/libmpi.so.40");
  CHECK(machine.find({{DT_RUNPATH, b}}, "/none;" + c + ":" + a).mpi == "c/libmpi.so.40");
  CHECK(machine.find({{DT_RPATH, b}}, a).mpi == "b/libmpi.so.40");
  CHECK(machine.find({{DT_RPATH, b}, {DT_RUNPATH, c}}, a).mpi == "a/libmpi.so.40");
  CHECK(machine.find({{DT_RPATH, b}, {DT_RUNPATH, c}}).mpi == "c/libmpi.so.40");
  CHECK(machine.find({{DT_RUNPATH, b}, {DT_RUNPATH, c}}).mpi == "c/libmpi.so.40");
}

TEST_CASE("a virtual environment's libmpi is the one that mpi4py loads") {
  const Machine machine;
  machine.library("opt/system/libmpi.so.40");
  machine.library("opt/system/libpmix.so.2");
  const std::string other = machine.dir.file("other");
  machine.library("other/libmpi.so.40");
  CHECK(machine.find({}, "", "venv").mpi == "opt/system/libmpi.so.40");
  machine.library("venv/lib/libmpi.so.40");
  machine.library("venv/lib/openmpi/libpmix.so.2");
  CHECK(machine.find({}, other, "venv").mpi == "venv/lib/libmpi.so.40");
  CHECK(machine.find({}, other, "venv").pmix == "venv/lib/openmpi/libpmix.so.2");
  CHECK(machine.find({}, "", "").pmix == "opt/system/libpmix.so.2");
}

TEST_CASE("libpmix is also searched where links lead to, in what libmpi names, and in the loader's folders") {
  const Machine machine;
  machine.library("opt/system/libpmix.so.2");
  CHECK(machine.find({}).mpi.empty());
  CHECK(machine.find({}).pmix == "opt/system/libpmix.so.2");

  machine.library("opt/pmix/libpmix.so.2");
  const std::string real = machine.library("real/libmpi.so.40.30.4", machine.dir.file("opt/pmix"));
  std::filesystem::create_symlink(real, machine.dir.file("opt/system/libmpi.so.40"));
  CHECK(machine.find({}).mpi == "opt/system/libmpi.so.40");
  CHECK(machine.find({}).pmix == "opt/system/libpmix.so.2");
  std::filesystem::remove(machine.dir.file("opt/system/libpmix.so.2"));
  CHECK(machine.find({}).pmix == "opt/pmix/libpmix.so.2");
  machine.library("preferred/libpmix.so.2");
  CHECK(machine.find({}, machine.dir.file("preferred")).pmix == "preferred/libpmix.so.2");
  machine.library("real/openmpi/libpmix.so.2");
  CHECK(machine.find({}, machine.dir.file("preferred")).pmix == "real/openmpi/libpmix.so.2");
}

TEST_CASE("a file that is no library for this machine is skipped") {
  const Machine machine;
  const std::string wrong = machine.dir.file("wrong");
  machine.library("opt/system/libpmix.so.2");
  const auto pmix = [&](const std::string& content) {
    machine.dir.file("wrong/libpmix.so.2", content);
    return machine.find({}, wrong).pmix;
  };
  CHECK(pmix(elf_file({}, own_library)) == "wrong/libpmix.so.2");
  CHECK(pmix("INPUT ( libpmix.so.2.6.2 )\n") == "opt/system/libpmix.so.2");
  CHECK(pmix("") == "opt/system/libpmix.so.2");
  CHECK(pmix(elf_file({}, {.machine = EM_386})) == "opt/system/libpmix.so.2");
  CHECK(pmix(elf_file({}, {.machine = own_library.machine, .type = ET_EXEC})) == "opt/system/libpmix.so.2");
  CHECK(pmix(elf_file({}, own_library).substr(0, 100)) == "opt/system/libpmix.so.2");
  std::string narrow = elf_file({}, own_library);
  narrow[EI_CLASS] = ELFCLASS32;
  CHECK(pmix(narrow) == "opt/system/libpmix.so.2");
  std::filesystem::remove(machine.dir.file("wrong/libpmix.so.2"));
  std::filesystem::create_directory(machine.dir.file("wrong/libpmix.so.2"));
  CHECK(machine.find({}, wrong).pmix == "opt/system/libpmix.so.2");
}

TEST_CASE("any content of the program and of libmpi is read safely") {
  const Machine machine;
  const std::string good = elf_file({{DT_RUNPATH, "$ORIGIN/lib:${ORIGIN"}, {DT_RPATH, "$"}}, own_library);
  std::mt19937 random(40);
  for (int i = 0; i < 1000; ++i) {
    std::string bad = good;
    for (int change = 0; change < 3; ++change) bad[random() % bad.size()] = static_cast<char>(random());
    machine.dir.file("opt/system/libmpi.so.40", bad);
    (void)find_libpmix(machine.dir.file("p", bad), Environment(), "", {machine.dir.file("opt/system")});
  }
  std::string many;
  while (many.size() < 100'000) many += "/$ORIGIN/$ORIGIN:";
  CHECK(machine.find(std::vector(100, std::pair<Elf64_Sxword, std::string>(DT_RUNPATH, many))).pmix.empty());
}

TEST_CASE("the loader's folders are those of its configuration, then its own") {
  const TemporaryDirectory etc;
  etc.file("ld.so.conf", "include ld.so.conf.d/*.conf\n  /first  # comment\n# /not\nrelative\n");
  etc.file("ld.so.conf.d/b.conf", "/b/lib\n\n/b/lib64");
  etc.file("ld.so.conf.d/a.conf", "/a/lib\n");
  etc.file("ld.so.conf.d/a.conf.old", "/old\n");
  auto folders = worker_env::system_library_folders(etc.path());
  REQUIRE(folders.size() > 4);
  CHECK(folders.back() == "/usr/lib");
  folders.resize(4);
  CHECK(folders == std::vector<std::string>{"/first", "/a/lib", "/b/lib", "/b/lib64"});
  CHECK(worker_env::system_library_folders("/none").back() == "/usr/lib");
}

TEST_CASE("an Open MPI before 4.1 is known by libmpi's file name") {
  const TemporaryDirectory dir;
  const std::string link = dir.file("libmpi.so.40");
  const auto [name, is_before] = GENERATE(table<std::string, bool>({
      {"libmpi.so.40.40.11", false},
      {"libmpi.so.40.30.4", false},
      {"libmpi.so.40.20.3", true},
      {"libmpi.so.40.10.4", true},
      {"libmpi.so.40.300.1", false},
      {"libmpi.so.12.20.1", false},
      {"libmpi.so", false},
  }));
  CAPTURE(name);
  std::filesystem::create_symlink(dir.file(name, ""), link);
  CHECK(worker_env::is_before_4_1(link) == is_before);
  CHECK_FALSE(worker_env::is_before_4_1("/none"));
}
