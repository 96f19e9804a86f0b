#include "symbols.hpp"

#include <elf.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "ddrun/base/text.hpp"
#include "ddrun/test/catch.hpp"
#include "ddrun/test/files.hpp"

using namespace ddrun;
using namespace ddrun::inspect;

namespace {

/// What is not demangled, as that could take too long.
std::string explosive(std::string symbol) {
  for (int i = 0; i < 30; ++i) symbol += "S1_";
  return symbol;
}

}  // namespace

TEST_CASE("a function's name is without parameters, result type and version") {
  const std::vector<std::pair<std::string, std::string>> names{
      {"main", "main"},
      {"", ""},
      {"pthread_cond_wait@@GLIBC_2.3.2", "pthread_cond_wait"},
      {"work.isra.0", "work.isra.0"},
      {"StartTraining", "StartTraining"},
      {"L2_norm", "L2_norm"},
      {"K1", "K1"},
      {"_3d", "_3d"},
      {"__start", "__start"},
      {"_ZN5train4stepEiRKSs", "train::step"},
      {"_ZN12_GLOBAL__N_14waitEi", "(anonymous namespace)::wait"},
      {"_Z3addIiET_S0_S0_", "add<int>"},
      {"_Z3addIiEDTplfp_fp0_ET_S1_", "add<int>"},
      {"_Z3getIiEPFvcEi", "get<int>"},
      {"_ZZ4mainENKUliE_clEi", "main::{lambda(int)#1}::operator()"},
      {"_ZZN5train4stepEiENKUlvE_clEv", "train::step::{lambda()#1}::operator()"},
      {"_ZNK1AclEv", "A::operator()"},
      {"_ZNK1AcvbEv", "A::operator bool"},
      {"_ZNK1AcvjEv", "A::operator unsigned int"},
      {"_ZNK1AdeEv", "A::operator*"},
      {"_ZNK1AptEv", "A::operator->"},
      {"_ZN1AixEi", "A::operator[]"},
      {"_ZltRK1AS1_", "operator<"},
      {"_ZlsRK1Ai", "operator<<"},
      {"_ZmiIiE1AT_S1_", "operator-<int>"},
      {"_ZStlsISt11char_traitsIcEERSt13basic_ostreamIcT_ES5_PKc", "std::operator<<<std::char_traits<char> >"},
      {"_Znwm", "operator new"},
      {"_ZN10cooperatorIiE3runEi", "cooperator<int>::run"},
      {"_ZNKSt8functionIFviEEclEi", "std::function<void (int)>::operator()"},
      {"_ZN4core3ptr4drop17h0123456789abcdefE", "core::ptr::drop::h0123456789abcdef"},
      {"_RNvC7mycrate3foo", "_RNvC7mycrate3foo"},
      {"_Znot_a_name", "_Znot_a_name"},
      {explosive("_ZZN8pybind1112cpp_function10initializeIZNS0_C4IbN4c10d4WorkEJEEUl"),
       "pybind11::cpp_function::initialize<…>"},
      {explosive("_ZNSt17_Function_handlerIFvvE"), "std::_Function_handler<…>"},
      {explosive("_Z99x"), explosive("_Z99x")},
      {explosive("_Z0"), explosive("_Z0")},
  };
  for (const auto& [symbol, name] : names) {
    CAPTURE(symbol);
    CHECK(function_name(symbol) == name);
  }
}

TEST_CASE("long template arguments are left out of a function's name") {
  const std::string argument(120, 'a');
  const std::string symbol = concat("_ZN12_GLOBAL__N_11AI120", argument, "EclEi");
  CHECK(function_name(symbol) == "(anonymous namespace)::A<…>::operator()");
}

namespace {

/// A file with two symbols, alpha at 0x100 and beta inside of it, that tests damage.
struct SmallElf {
  Elf64_Ehdr header{};
  Elf64_Shdr sections[3]{};  ///< none, symbols, names
  Elf64_Sym symbols[3]{};
  char names[16] = "\0alpha\0beta\0";

  SmallElf() {
    std::memcpy(header.e_ident, ELFMAG, SELFMAG);
    header.e_ident[EI_CLASS] = ELFCLASS64;
    header.e_shentsize = sizeof(Elf64_Shdr);
    header.e_shnum = 3;
    header.e_shoff = offsetof(SmallElf, sections);
    sections[1].sh_type = SHT_SYMTAB;
    sections[1].sh_offset = offsetof(SmallElf, symbols);
    sections[1].sh_size = sizeof symbols;
    sections[1].sh_link = 2;
    sections[2].sh_type = SHT_STRTAB;
    sections[2].sh_offset = offsetof(SmallElf, names);
    sections[2].sh_size = sizeof names;
    symbols[1] = {1, ELF64_ST_INFO(STB_GLOBAL, STT_FUNC), 0, 1, 0x100, 0x100};
    symbols[2] = {7, ELF64_ST_INFO(STB_GLOBAL, STT_FUNC), 0, 1, 0x140, 0x20};
  }
  [[nodiscard]] std::string bytes() const { return {reinterpret_cast<const char*>(this), sizeof *this}; }
};

/// The name at `address`, as found in what lies at `path`.
std::string name_at(const std::string& path, std::uint64_t address, ino_t other_inode = 0) {
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0) info.st_ino = 1;
  NativeFrame frame{std::make_shared<const Module>(
                        Module{path, ::getpid(), info.st_dev, other_inode != 0 ? other_inode : info.st_ino}),
                    address,
                    {}};
  NameCache names;
  look_up_names({frame}, names, Deadline::max());
  set_name(frame, names);
  return frame.function;
}

std::string name_in(const SmallElf& elf, std::uint64_t address) {
  const test::TemporaryDirectory folder;
  const std::string path = folder.file("module");
  test::write_file(path, elf.bytes());
  return name_at(path, address);
}

}  // namespace

TEST_CASE("a function is the innermost symbol around an address") {
  const SmallElf elf;
  CHECK(name_in(elf, 0x100) == "alpha");
  CHECK(name_in(elf, 0x140) == "beta");
  CHECK(name_in(elf, 0x15f) == "beta");
  CHECK(name_in(elf, 0x160) == "alpha");
  CHECK(name_in(elf, 0x200).empty());
  CHECK(name_in(elf, 0xff).empty());
}

TEST_CASE("a damaged table of symbols gives no name") {
  SmallElf elf;
  SECTION("no sections") { elf.header.e_shnum = 0; }
  SECTION("very many sections") { elf.header.e_shnum = 65535; }
  SECTION("sections beyond the end") { elf.header.e_shoff = 1U << 20U; }
  SECTION("sections at a negative offset") { elf.header.e_shoff = ~std::uint64_t{0}; }
  SECTION("symbols beyond the end") { elf.sections[1].sh_offset = 1U << 20U; }
  SECTION("more symbols than there are") { elf.sections[1].sh_size = ~std::uint64_t{0}; }
  SECTION("names of no section") { elf.sections[1].sh_link = 3; }
  SECTION("names beyond the end") { elf.sections[2].sh_offset = ~std::uint64_t{0} - 3; }
  SECTION("symbols without a size") { elf.symbols[1].st_size = elf.symbols[2].st_size = 0; }
  SECTION("another class of file") { elf.header.e_ident[EI_CLASS] = ELFCLASS32; }
  CHECK(name_in(elf, 0x150).empty());
}

TEST_CASE("a symbol whose end wraps does not hide others") {
  SmallElf elf;
  elf.symbols[1].st_size = ~std::uint64_t{0};
  CHECK(name_in(elf, 0x150) == "beta");
}

TEST_CASE("only the file that is mapped is read for names") {
  const test::TemporaryDirectory folder;
  const std::string path = folder.file("module");
  CHECK(name_at(path, 0x150).empty());
  SECTION("another file has its path") {
    test::write_file(path, SmallElf().bytes());
    CHECK(name_at(path, 0x150) == "beta");
    CHECK(name_at(path, 0x150, 1).empty());
  }
  SECTION("a FIFO, which must not block") {
    REQUIRE(::mkfifo(path.c_str(), 0600) == 0);
    CHECK(name_at(path, 0x150).empty());
  }
  SECTION("a directory") { CHECK(name_at(folder.path(), 0x150).empty()); }
  SECTION("a file that was truncated") {
    for (const std::size_t size : {0UL, 10UL, sizeof(Elf64_Ehdr), sizeof(Elf64_Ehdr) + 70}) {
      test::write_file(path, SmallElf().bytes().substr(0, size));
      CHECK(name_at(path, 0x150).empty());
    }
  }
}
