#include "ddrun/worker_env/program_path.hpp"

#include <unistd.h>

#include <filesystem>

#include "ddrun/test/catch.hpp"
#include "ddrun/test/files.hpp"

using namespace ddrun;
using worker_env::choose_python;

namespace {

Result<std::string> choose(const std::vector<std::string>& entries, const std::string& cwd,
                           const std::string& started_as = {}) {
  std::vector<const char*> pointers;
  for (const auto& entry : entries) pointers.push_back(entry.c_str());
  pointers.push_back(nullptr);
  auto python = choose_python(Environment(pointers.data()), cwd, started_as);
  if (!python) return tl::unexpected(python.error());
  return python->path;
}

}  // namespace

TEST_CASE("Python is the chosen one or the venv's or that in PATH") {
  const test::TemporaryDirectory dir;
  const std::string script = "#!/bin/sh\n";
  const std::string chosen = dir.file("my/python", script, 0755);
  const std::string venv = dir.file("venv/bin/python", script, 0755);
  const std::string found = dir.file("bin/python3", script, 0755);
  const std::string path = "PATH=/nowhere:" + dir.path() + "/bin";
  const std::string venv_entry = "VIRTUAL_ENV=" + dir.path() + "/venv";

  CHECK(choose({path, venv_entry, "PYTHON_EXEC=" + chosen}, "/").value() == chosen);
  CHECK(choose({path, venv_entry, "PYTHON_EXEC=my/python"}, dir.path()).value() == chosen);
  CHECK(choose({path, venv_entry, "PYTHON_EXEC=python3"}, "/").value() == found);
  CHECK(choose({path, venv_entry}, "/").value() == venv);
  CHECK(choose({path, venv_entry, "PYTHON_EXEC="}, "/").value() == venv);
  CHECK(choose({path}, "/").value() == found);
}

TEST_CASE("a configured Python that is missing is an error that names the setting") {
  const auto by_variable = choose({"PATH=/bin", "PYTHON_EXEC=/no/python"}, "/");
  REQUIRE_FALSE(by_variable);
  CHECK(by_variable.error().code == Errc::not_found);
  CHECK(by_variable.error().message == "PYTHON_EXEC: /no/python: no such file");

  const auto by_venv = choose({"PATH=/bin", "VIRTUAL_ENV=/no"}, "/");
  REQUIRE_FALSE(by_venv);
  CHECK(by_venv.error().message ==
        "the active virtual environment has no usable Python: /no/bin/python: no such file; deactivate it, or set "
        "PYTHON_EXEC");

  const auto nowhere = choose({"PATH=/nowhere"}, "/");
  REQUIRE_FALSE(nowhere);
  CHECK(nowhere.error().message ==
        "python3: not found in PATH; install Python, or set PYTHON_EXEC to the interpreter to use");
}

TEST_CASE("ddrun in a virtual environment uses its Python, by the way it was started") {
  const test::TemporaryDirectory dir;
  const std::string script = "#!/bin/sh\n";
  const std::string at = dir.path();
  const std::string chosen = dir.file("my/python", script, 0755);
  const std::string own = dir.file("own/bin/python", script, 0755);
  const std::string ddrun = dir.file("own/bin/ddrun", script, 0755);
  const std::string active = dir.file("active/bin/python", script, 0755);
  const std::string found = dir.file("bin/python3", script, 0755);
  const std::string conda = dir.file("conda/bin/python", script, 0755);
  const std::string path = "PATH=" + at + "/bin";
  const std::string venv = "VIRTUAL_ENV=" + at + "/active";
  REQUIRE(::symlink(ddrun.c_str(), (at + "/bin/ddrun").c_str()) == 0);

  CHECK(choose({path, venv}, "/", ddrun).value() == active);  // no pyvenv.cfg
  dir.file("own/pyvenv.cfg/a-directory", "");
  CHECK(choose({path}, "/", ddrun).value() == found);
  std::filesystem::remove_all(at + "/own/pyvenv.cfg");
  dir.file("own/pyvenv.cfg", "");
  CHECK(choose({path, venv}, "/", ddrun).value() == own);
  CHECK(choose({path, venv, "PYTHON_EXEC="}, "/", at + "/own/../own/bin/./ddrun").value() == own);
  CHECK(choose({path, venv, "PYTHON_EXEC=" + chosen}, "/", ddrun).value() == chosen);
  CHECK(choose({path, venv}, "/", at + "/bin/ddrun").value() == active);  // as pipx and uv link to it
  CHECK(choose({path, venv}, "/", at + "/own/bin/none").value() == active);

  // A conda environment activated within a virtual one, and the other way round.
  CHECK(
      choose({"PATH=" + at + "/conda/bin:" + at + "/active/bin", venv, "CONDA_PREFIX=" + at + "/conda"}, "/").value() ==
      conda);
  CHECK(
      choose({"PATH=" + at + "/active/bin:" + at + "/conda/bin", venv, "CONDA_PREFIX=" + at + "/conda"}, "/").value() ==
      active);

  std::filesystem::rename(own, at + "/own/bin/python3");
  CHECK(choose({path, venv}, "/", ddrun).value() == at + "/own/bin/python3");
  REQUIRE(::symlink("/no/python", own.c_str()) == 0);
  const auto dangling = choose({path, venv}, "/", ddrun);
  REQUIRE_FALSE(dangling);
  CHECK(dangling.error().message == "the virtual environment that ddrun was started from has no usable Python: " + own +
                                        ": a symbolic link to /no/python, which does not exist; make it anew, or set "
                                        "PYTHON_EXEC");
  std::filesystem::remove(own);
  std::filesystem::remove(at + "/own/bin/python3");
  CHECK(choose({path, venv}, "/", ddrun).value() == active);

  CHECK(choose({path, "PYTHON_EXEC=" + chosen + " -X dev"}, "/").error().message ==
        "PYTHON_EXEC: " + chosen + " -X dev: not found; it is the path of a program, without arguments");
}
