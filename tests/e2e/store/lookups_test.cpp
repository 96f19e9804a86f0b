// Nothing that ddrun does for a job, and nothing that a client of its store does, asks for a name or an address.
#include "../job.hpp"
#include "ddrun/test/files.hpp"

using namespace ddrun::test;

TEST_CASE("A job with a store that all workers use looks up no name") {
  needs_preload();
  const TemporaryDirectory folder;
  const std::string record = folder.file("lookups");
  RunOptions options;
  options.env = {{"LD_PRELOAD", DDRUN_TEST_LOOKUPS}, {"DDRUN_TEST_LOOKUPS_FILE", record}};
  const Words ask{"sh", "-c", "\"$0\" store add n && \"$0\" store wait n && test ! $RANK = 9", DDRUN_TEST_DDRUN};

  Words job = command({"-n4"});
  job.insert(job.end(), ask.begin(), ask.end());
  auto outcome = finish(job, options);
  DDRUN_SHOW(outcome);
  CHECK(outcome.code() == 0);
  CHECK(read_file(record).empty());

  // Nor does the store of whom it cuts off.
  CHECK(finish(ddrun::test::job({"-n2"}, {"cut-off", "2"}), options).code() == 0);
  CHECK(read_file(record).empty());

  // The same with a name for the place to meet; and a name that has to be looked up shows that counting works.
  job = command({"-n1", "--rdzv-endpoint=localhost:0"});
  job.insert(job.end(), ask.begin(), ask.end());
  CHECK(finish(job, options).code() == 0);
  CHECK(read_file(record).empty());
  finish(command({"store", "get", "k", "--server=no-such-host.invalid:1", "--timeout=100ms"}), options);
  CHECK(has(read_file(record), "getaddrinfo no-such-host.invalid"));
}
