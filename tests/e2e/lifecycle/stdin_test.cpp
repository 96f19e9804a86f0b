#include <fcntl.h>
#include <unistd.h>

#include "../job.hpp"

using namespace ddrun::test;

namespace {

std::string large_text() {
  std::string text;
  for (int i = 0; i < 60'000; ++i) text += "input line " + std::to_string(i) + "\n";
  return text;
}

std::string labelled(const std::string& rank, const std::string& text) {
  std::string out;
  std::size_t at = 0;
  while (at < text.size()) {
    const std::size_t end = text.find('\n', at) + 1;
    out += "[" + rank + "] " + text.substr(at, end - at);
    at = end;
  }
  return out;
}

/// The lines of one rank.
std::string of_rank(const std::string& rank, const std::string& out) {
  std::string lines;
  std::size_t at = 0;
  while (at < out.size()) {
    const std::size_t end = out.find('\n', at) + 1;
    if (out.compare(at, rank.size() + 1, "[" + rank) == 0) lines += out.substr(at, end - at);
    at = end;
  }
  return lines;
}

}  // namespace

TEST_CASE("Rank 0 has stdin and the others read end of file") {
  RunOptions options;
  options.input = large_text();
  const auto outcome = finish(job({"-n", "3"}, {"stdin"}), options);
  INFO(outcome.err);
  CHECK(outcome.code() == 0);
  CHECK((outcome.out == labelled("0", options.input)));
}

TEST_CASE("Another rank can have stdin, or nobody") {
  RunOptions options;
  options.input = "one\ntwo\n";
  const auto another = finish(job({"-n", "3", "--stdin=2"}, {"stdin"}), options);
  CHECK(another.code() == 0);
  CHECK(another.out == labelled("2", options.input));
  const auto nobody = finish(job({"-n", "3", "--stdin=none"}, {"stdin"}), options);
  CHECK(nobody.code() == 0);
  CHECK(nobody.out.empty());
}

TEST_CASE("All can have all of stdin, from a pipe and from a file") {
  const bool file = GENERATE(false, true);
  const TemporaryDirectory dir;
  const std::string text = large_text();
  RunOptions options;
  if (file) {
    options.in_child = [path = dir.file("input", text)] { ::dup2(::open(path.c_str(), O_RDONLY), 0); };
  } else {
    options.input = text;
  }
  const auto outcome = finish(job({"-n", "3", "--stdin=all"}, {"stdin"}), options);
  INFO(outcome.err);
  CHECK(outcome.code() == 0);
  for (const std::string rank : {"0", "1", "2"}) CHECK((of_rank(rank, outcome.out) == labelled(rank, text)));
}

TEST_CASE("A worker that does not read keeps nobody from it and does not keep the job") {
  RunOptions options;
  options.input = large_text();
  const auto outcome = finish(job({"-n", "2", "--stdin=all"}, {"rank", "0", "exit", "0", ";", "stdin"}), options);
  INFO(outcome.err);
  CHECK(outcome.code() == 0);
  CHECK((outcome.out == labelled("1", options.input)));

  const auto nobody = finish(job({"-n", "2", "--stdin=all"}, {"exit", "0"}), options);
  DDRUN_SHOW(nobody);
  CHECK(nobody.code() == 0);
}

TEST_CASE("A worker that keeps the others from stdin is named, and they get the rest when it is gone") {
  const TemporaryDirectory dir;
  // More than is kept for the slowest.
  const std::string worker =
      "test $RANK = 0 || { while [ ! -e " + dir.file("go") + " ]; do sleep 0.02; done; exit 0; }; wc -c";
  Run run(
      {"/bin/sh", "-c", "head -c 20000000 /dev/zero | " DDRUN_TEST_DDRUN " -n 2 --stdin=all sh -c '" + worker + "'"});
  CHECK(run.wait_for_err(
      "rank 1 does not read standard input, and the others get no more of it until then (--stdin=all)\n"));
  CHECK(run.out().empty());
  write_file(dir.file("go"), "");
  const auto outcome = run.wait();
  CHECK(run.all_gone());
  DDRUN_SHOW(outcome);
  CHECK(outcome.code() == 0);
  CHECK(outcome.out == "[0] 20000000\n");
}

TEST_CASE("Devices as stdin do no harm") {
  RunOptions options;
  options.in_child = [] { ::dup2(::open("/dev/null", O_RDONLY), 0); };
  for (const char* who : {"all", "0", "none"}) {
    const auto outcome = finish(job({"-n", "2", std::string("--stdin=") + who}, {"stdin", "print", "end"}), options);
    DDRUN_SHOW(outcome);
    CHECK(outcome.code() == 0);
    CHECK(count(outcome.out, "end\n") == 2);
  }
}
