#include "ddrun/base/proc.hpp"

#include "ddrun/test/catch.hpp"
#include "ddrun/test/files.hpp"

using namespace ddrun;
using ddrun::test::TemporaryDirectory;

TEST_CASE("a small file is read without its trailing blanks") {
  const TemporaryDirectory dir;
  CHECK(read_small_file(dir.file("a", "one\ntwo \n")) == "one\ntwo");
  CHECK(read_small_file(dir.file("b", "")) == "");
  CHECK_FALSE(read_small_file(dir.file("none")));
}

TEST_CASE("no more is read of a file than was allowed, by a page") {
  const TemporaryDirectory dir;
  CHECK(read_small_file(dir.file("long", std::string(100'000, 'x')), 5000)->size() == 8192);
}

TEST_CASE("numbers are read from files that hold one") {
  const TemporaryDirectory dir;
  CHECK(read_number(dir.file("a", "-42\n")) == -42);
  CHECK_FALSE(read_number(dir.file("b", "max\n")));
  CHECK_FALSE(read_number(dir.file("c", "1 2\n")));
  CHECK_FALSE(read_number(dir.file("none")));
}

TEST_CASE("numbers are found by their key") {
  const TemporaryDirectory dir;
  const std::string file = dir.file("memory.events", "low 0\noom 3\noom_kill 2\noom_group_kill 1\n");
  CHECK(read_keyed_number(file, "oom_kill") == 2);
  CHECK(read_keyed_number(file, "oom") == 3);
  CHECK_FALSE(read_keyed_number(file, "oom_k"));
  CHECK_FALSE(read_keyed_number(dir.file("none"), "oom"));
}
