#include "ddrun/worker_env/program_path.hpp"

#include <elf.h>

#include <cstring>
#include <filesystem>

#include "ddrun/test/catch.hpp"
#include "ddrun/test/files.hpp"

using namespace ddrun;
using test::TemporaryDirectory;
using worker_env::find_program;
using worker_env::find_script;

namespace {

const std::string script = "#!/bin/sh\nexit 0\n";

/// The message for the user, without the directory's random name.
std::string failure(const Result<std::string>& result, Errc code, const std::string& directory = "") {
  if (result) return "found " + *result;
  CHECK(result.error().code == code);
  std::string message = result.error().message;
  for (std::size_t at; !directory.empty() && (at = message.find(directory)) != std::string::npos;) {
    message.replace(at, directory.size(), "DIR");
  }
  return message;
}

std::string elf(unsigned type, unsigned machine) {
  Elf64_Ehdr header{};
  std::memcpy(header.e_ident, ELFMAG, SELFMAG);
  header.e_ident[EI_CLASS] = ELFCLASS64;
  header.e_ident[EI_DATA] = ELFDATA2LSB;
  header.e_type = static_cast<Elf64_Half>(type);
  header.e_machine = static_cast<Elf64_Half>(machine);
  return {reinterpret_cast<const char*>(&header), sizeof header};
}

}  // namespace

TEST_CASE("a path is taken from the working directory and becomes absolute") {
  const TemporaryDirectory dir;
  const std::string file = dir.file("sub/train", script, 0755);
  CHECK(find_program("./sub/train", "/bin", dir.path()).value() == file);
  CHECK(find_program("sub/train", "/bin", dir.path()).value() == file);
  CHECK(find_program(file, "/bin", "/").value() == file);
  CHECK(find_program("./train", "/bin", dir.path() + "/sub/").value() == file);
}

TEST_CASE("a plain name is searched in PATH and what is no program there is passed over") {
  const TemporaryDirectory dir;
  dir.file("a/tool/x", "");
  dir.file("b/tool", script, 0644);
  const std::string file = dir.file("c/tool", script, 0755);
  const std::string path = dir.path() + "/a:" + dir.path() + "/none:" + dir.path() + "/b:" + dir.path() + "/c";
  CHECK(find_program("tool", path, "/").value() == file);
  CHECK(find_program("tool", "/bin:", dir.path() + "/c").value() == file);
  CHECK(failure(find_program("tool", dir.path() + "/b", "/"), Errc::not_executable, dir.path()) ==
        "DIR/b/tool: not executable; try: chmod +x DIR/b/tool");
}

TEST_CASE("a missing program is reported as by a shell, with a suggestion") {
  const TemporaryDirectory dir;
  dir.file("train", script, 0755);
  dir.file("trial.txt", "", 0644);
  dir.file("bin/ddtrain", script, 0755);
  CHECK(failure(find_program("./trian", "/bin", dir.path()), Errc::not_found) ==
        "./trian: no such file (did you mean ./train?)");
  CHECK(failure(find_program("./quite-different", "/bin", dir.path()), Errc::not_found) ==
        "./quite-different: no such file");
  CHECK(failure(find_program("nodir/train", "/bin", dir.path()), Errc::not_found) == "nodir/train: no such file");
  CHECK(failure(find_program("train/x", "/bin", dir.path()), Errc::not_found) == "train/x: Not a directory");
  const std::string path = dir.path() + "/bin";
  CHECK(failure(find_program("train", path, dir.path()), Errc::not_found) ==
        "train: not found in PATH (did you mean ./train?)");
  CHECK(failure(find_program("ddtrian", path, "/"), Errc::not_found) ==
        "ddtrian: not found in PATH (did you mean ddtrain?)");
  CHECK(failure(find_program("foo", path, "/"), Errc::not_found) == "foo: not found in PATH");
  CHECK(failure(find_program("", path, "/"), Errc::not_found) == "the name of the program is empty");
}

TEST_CASE("short names are suggested for a single typo only") {
  const TemporaryDirectory dir;
  for (const char* name : {"sort", "run", "cat"}) dir.file(name, script, 0755);
  const auto tried = [&](const char* name) { return failure(find_program(name, "/bin", dir.path()), Errc::not_found); };
  CHECK(tried("./srot") == "./srot: no such file (did you mean ./sort?)");
  CHECK(tried("./rn") == "./rn: no such file (did you mean ./run?)");
  CHECK(tried("./runn") == "./runn: no such file (did you mean ./run?)");
  CHECK(tried("./cut") == "./cut: no such file (did you mean ./cat?)");
  CHECK(tried("./c") == "./c: no such file");
  CHECK(tried("./foo") == "./foo: no such file");
}

TEST_CASE("a dangling link is named as one") {
  const TemporaryDirectory dir;
  REQUIRE(::symlink("/gone/train", (dir.path() + "/link").c_str()) == 0);
  CHECK(failure(find_program("./link", "", dir.path()), Errc::not_found) ==
        "./link: a symbolic link to /gone/train, which does not exist");
}

TEST_CASE("what cannot be executed says why and what to do") {
  const TemporaryDirectory dir;
  const auto tried = [&](const std::string& name, const std::string& content, mode_t mode = 0755) {
    dir.file(name, content, mode);
    return failure(find_program("./" + name, "/bin", dir.path()), Errc::not_executable);
  };
  CHECK(tried("sub/file", script) == "found " + dir.path() + "/sub/file");
  CHECK(failure(find_program("./sub", "/bin", dir.path()), Errc::not_executable) ==
        "./sub: is a directory, and no __main__.py is in it");
  CHECK(failure(find_program("/dev/null", "/bin", "/"), Errc::not_executable) == "/dev/null: is not a regular file");
  CHECK(tried("plain", script, 0644) == "./plain: not executable; try: chmod +x ./plain");
  CHECK(tried("a.py", script, 0644) == "./a.py: not executable; try: chmod +x ./a.py, or leave out --no-python");
  CHECK(tried("empty", "") == "./empty: the file is empty");
  CHECK(
      tried("bare", "echo hello\n") ==
      "./bare: exec format error: a script without a '#!' line; make '#!/bin/sh', or what runs it, its first line; for "
      "a Python program give --run-path");
  CHECK(tried("unmarked", "import torch\n", 0644) ==
        "./unmarked: not executable, and has no '#!' line; for a Python program try: ddrun --run-path ./unmarked, for "
        "another script make '#!/bin/sh', or what runs it, its first line, and chmod +x");
  CHECK(tried("bare.py", "print(1)\n") ==
        "./bare.py: exec format error: a script without a '#!' line; leave out --no-python, or make "
        "'#!/usr/bin/env python3' its first line");
}

TEST_CASE("a Python program with another name is recognised by its content") {
  const TemporaryDirectory dir;
  const auto is = [&](const std::string& name, const std::string& content, mode_t mode = 0644) {
    dir.file(name, content, mode);
    return worker_env::is_python_program(name, dir.path()) && worker_env::is_python_program("./" + name, dir.path());
  };
  dir.file("app/__main__.py", "");
  CHECK(worker_env::is_python_program("app", dir.path()));
  CHECK(worker_env::is_python_program(dir.path() + "/app/", "/"));
  CHECK(is("zip", std::string("PK\3\4\24\0", 6)));
  CHECK(is("zip", "PK\3\4", 0755));
  CHECK(is("compiled", std::string("\xa7\r\r\n\0\0\0\0\1\2\3\4\5\6\7\10\11", 17)));
  CHECK(is("script", "#!/usr/bin/env python3\nprint(1)\n"));
  CHECK(is("script", "#!/opt/python3.11/bin/python3.11 -u\n"));
  // Executable, with a '#!' line for Python; a shell script; no '#!' line.
  CHECK_FALSE(is("executable", "#!/nowhere/python3\n", 0755));
  CHECK_FALSE(is("shell", "#!/bin/sh\npython3 x\n"));
  CHECK_FALSE(is("text", "import os\n"));
  CHECK_FALSE(is("windows", "ab\r\ncdefghijklmnopqrstuvwxyz\r\n"));
  CHECK_FALSE(is("empty", ""));
  dir.file("folder/main.py", "");
  CHECK_FALSE(worker_env::is_python_program("folder", dir.path()));
  CHECK_FALSE(worker_env::is_python_program("missing", dir.path()));
  CHECK_FALSE(worker_env::is_python_program("", dir.path()));
}

TEST_CASE("the interpreter of a script has to be there") {
  const TemporaryDirectory dir;
  const auto tried = [&](const std::string& first_line, Errc code = Errc::not_executable) {
    dir.file("s", first_line + "\necho\n", 0755);
    return failure(find_program("./s", "/bin:/usr/bin", dir.path()), code);
  };
  const std::string found = "found " + dir.path() + "/s";
  CHECK(tried("#!/usr/bin/pyhton3 -u") == "./s: its first line asks for /usr/bin/pyhton3, which does not exist");
  CHECK(tried("#!/etc/passwd") == "./s: its first line asks for /etc/passwd, which is not executable");
  CHECK(tried("#!") == "./s: its first line, '#!', names no interpreter");
  CHECK(tried("#!/bin/sh\r") ==
        "./s: its first line ends as on Windows, so its interpreter cannot be found; convert the file with dos2unix "
        "or sed -i 's/\\r$//'");
  CHECK(tried("#!/usr/bin/env pyhton3", Errc::not_found) ==
        "./s: its first line asks for pyhton3, which is not in PATH");
  CHECK(tried("#! /bin/sh -e") == found);
  CHECK(tried("#!/usr/bin/env sh") == found);
  CHECK(tried("#!/usr/bin/env -S sh -e") == found);
}

TEST_CASE("an ELF file has to be a program for this machine") {
  const TemporaryDirectory dir;
  const auto tried = [&](const std::string& content) {
    dir.file("prog", content, 0755);
    return failure(find_program("./prog", "/bin", dir.path()), Errc::not_executable);
  };
#if defined(__x86_64__)
  const bool foreign_handled = std::filesystem::exists("/proc/sys/fs/binfmt_misc/status");
  if (!foreign_handled) {
    CHECK(tried(elf(ET_EXEC, EM_AARCH64)) == "./prog: built for arm64, but this machine is x86-64");
  }
  CHECK(tried(elf(ET_EXEC, EM_X86_64)) == "found " + dir.path() + "/prog");
  CHECK(tried(elf(ET_REL, EM_X86_64)) == "./prog: an object file, not a program: link it first");

  std::string foreign = elf(ET_DYN, EM_X86_64);
  auto* header = reinterpret_cast<Elf64_Ehdr*>(foreign.data());
  header->e_phoff = sizeof(Elf64_Ehdr);
  header->e_phentsize = sizeof(Elf64_Phdr);
  header->e_phnum = 1;
  const std::string loader("/lib/ld-musl-none.so.1\0", 23);
  Elf64_Phdr part{};
  part.p_type = PT_INTERP;
  part.p_offset = sizeof(Elf64_Ehdr) + sizeof(Elf64_Phdr);
  part.p_filesz = loader.size();
  foreign.append(reinterpret_cast<const char*>(&part), sizeof part).append(loader);
  CHECK(tried(foreign) ==
        "./prog: needs the dynamic loader /lib/ld-musl-none.so.1, which this machine does not have (built for another "
        "distribution?)");
#endif
  CHECK(tried(std::string("\177ELF", 4)) == "./prog: the file is cut off: an ELF header and nothing more");
  CHECK(find_program("/proc/self/exe", "/bin", "/"));
}

TEST_CASE("a script for Python only has to be there and readable") {
  const TemporaryDirectory dir;
  dir.file("train.py", "", 0644);
  CHECK(find_script("train.py", dir.path()).value() == dir.path() + "/train.py");
  CHECK(failure(find_script("trian.py", dir.path()), Errc::not_found) ==
        "trian.py: no such file (did you mean train.py?)");
}
