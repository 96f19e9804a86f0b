// `ddrun store`: a store by itself, and questions to one.
#include <unistd.h>

#include <csignal>

#include "../job.hpp"
#include "ddrun/test/full_pipe.hpp"

using namespace ddrun::test;

namespace {

/// A store on a free port of the loopback.
class Store {
 public:
  explicit Store(Words options = {}, RunOptions run = {}) : run_(with(std::move(options)), std::move(run)) {
    REQUIRE(run_.wait_for_out("listening on 127.0.0.1:"));
    const std::string out = run_.out();
    const auto at = out.find("127.0.0.1:");
    server_ = out.substr(at, out.find_first_of(" \n", at) - at);
  }

  Outcome ask(Words words, std::string input = {}) const {
    words.insert(words.begin(), "store");
    words.push_back("--server=" + server_);
    RunOptions options;
    options.input = std::move(input);
    return finish(command(words), std::move(options));
  }
  std::string answer(const Words& words) const {
    const auto outcome = ask(words);
    DDRUN_SHOW(outcome);
    CHECK(outcome.code() == 0);
    CHECK(outcome.err.empty());
    return outcome.out;
  }

  Run& run() { return run_; }
  [[nodiscard]] const std::string& server() const { return server_; }

 private:
  static Words with(Words options) {
    options.insert(options.begin(), {"store", "--port=0"});
    return command(options);
  }
  Run run_;
  std::string server_;
};

}  // namespace

TEST_CASE("A store by itself is asked from the command line") {
  Store store;
  CHECK(store.answer({"set", "greeting", "hello"}).empty());
  CHECK(store.answer({"get", "greeting"}) == "hello\n");
  CHECK(store.answer({"add", "n"}) == "1\n");
  CHECK(store.answer({"add", "n", "-5"}) == "-4\n");
  CHECK(store.answer({"wait", "greeting", "n"}).empty());
  CHECK(store.answer({"list"}) == "greeting\nn\n");
  CHECK(store.answer({"set", "k", "v", "--prefix=group/"}).empty());
  CHECK(store.answer({"list"}) == "greeting\ngroup/k\nn\n");
  CHECK(store.answer({"list", "--prefix=group"}) == "k\n");
  CHECK(store.answer({"del", "greeting", "n"}).empty());
  CHECK(store.answer({"list"}) == "group/k\n");
  store.run().signal(SIGTERM);
  CHECK(store.run().wait().code() == 0);
}

TEST_CASE("Any bytes are set and shown, as they are or in a way that a terminal can show") {
  Store store;
  const std::string bytes("a\0\xff\\\n", 5);
  CHECK(store.ask({"set", "k", "-"}, bytes).code() == 0);
  CHECK(store.answer({"get", "k"}) == "a\\x00\\xff\\\\\\x0a\n");
  CHECK(store.answer({"get", "k", "--raw"}) == bytes);
}

TEST_CASE("What is not there, and who is not there, are told apart") {
  Store store;
  const auto missing = store.ask({"get", "nope", "--timeout=50ms"});
  CHECK(missing.code() == 1);
  CHECK(missing.err == "ddrun: error: timed out waiting for store key nope\n");
  const auto none = store.ask({"del", "nope"});
  CHECK(none.code() == 1);
  CHECK(has(none.err, "there is no key nope"));
  const auto nobody = finish(command({"store", "get", "k", "--server=127.0.0.1:1", "--timeout=50ms"}));
  CHECK(nobody.code() == 125);
  CHECK(has(nobody.err, "could not reach the store at 127.0.0.1:1"));
}

TEST_CASE("A worker's store is asked without saying where it is") {
  const auto outcome = finish(command({"-n2", "--label=none", "sh", "-c",
                                       "\"$0\" store set from-$RANK x && \"$0\" store wait from-0 from-1 && "
                                       "test $RANK = 1 || \"$0\" store list",
                                       DDRUN_TEST_DDRUN}));
  DDRUN_SHOW(outcome);
  CHECK(outcome.code() == 0);
  CHECK(outcome.out == "from-0\nfrom-1\n");
}

TEST_CASE("Figures are shown on request and at the end") {
  Store store({"--stats"});
  store.answer({"set", "k", "v"});
  store.run().signal(SIGUSR1);
  REQUIRE(store.run().wait_for_out("requests.SET 1\n"));
  store.answer({"add", "n"});
  store.run().signal(SIGINT);
  const auto outcome = store.run().wait();
  DDRUN_SHOW(outcome);
  CHECK(outcome.code() == 0);
  CHECK(has(outcome.out, "requests.ADD 1\n"));
  CHECK(has(outcome.out, "keys 2\n"));
  CHECK(count(outcome.out, "accepted ") == 2);
}

TEST_CASE("A client that wants more than the store may take is cut off and named") {
  Store store({"--max-memory=1M"});
  const auto big = store.ask({"set", "big", "-"}, std::string(2'000'000, 'v'));
  CHECK(big.code() == 125);
  CHECK(has(big.err, "lost the store"));
  CHECK(store.answer({"add", "n"}) == "1\n");
  REQUIRE(store.run().wait_for_err("for which there is no room"));
  CHECK(has(store.run().err(), "has cut off its client 127.0.0.1:"));
}

TEST_CASE("A stderr that takes nothing does not keep a store from its clients") {
  FullPipe full;
  RunOptions options;
  options.in_child = [&full] { ::dup2(full.write_end(), STDERR_FILENO); };
  Store store({"--max-memory=1M"}, options);
  CHECK(store.ask({"set", "big", "-"}, std::string(2'000'000, 'v')).code() == 125);
  CHECK(store.answer({"add", "n"}) == "1\n");
  CHECK(full.wait_for("for which there is no room"));
  store.run().signal(SIGTERM);
  CHECK(store.run().wait().code() == 0);
}

TEST_CASE("A port in use and a full disk end a store with their reason") {
  Store store;
  const auto port = store.server().substr(store.server().rfind(':') + 1);
  const auto second = finish(command({"store", "--port=" + port}));
  CHECK(second.code() == 125);
  CHECK(has(second.err, "is in use by another program"));
  const auto full = finish({"/bin/sh", "-c", "exec \"$0\" store --port=0 >/dev/full", DDRUN_TEST_DDRUN});
  CHECK(full.code() == 125);
  CHECK(has(full.err, "cannot write to the standard output"));
}
