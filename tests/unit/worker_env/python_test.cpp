#include "ddrun/worker_env/program_path.hpp"

#include "ddrun/test/catch.hpp"
#include "ddrun/test/files.hpp"

using namespace ddrun;
using worker_env::choose_python;

namespace {

Result<std::string> choose(const std::vector<std::string>& entries, const std::string& cwd) {
  std::vector<const char*> pointers;
  for (const auto& entry : entries) pointers.push_back(entry.c_str());
  pointers.push_back(nullptr);
  return choose_python(Environment(pointers.data()), cwd);
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

TEST_CASE("a Python that was asked for but is not there is an error that says who asked") {
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
