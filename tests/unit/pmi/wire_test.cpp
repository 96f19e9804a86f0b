// Lines, the mapping of ranks to nodes, batches of puts and the bounds of the key space.

#include <string>

#include "ddrun/base/text.hpp"
#include "ddrun/test/catch.hpp"
#include "key_space.hpp"
#include "pmi_line.hpp"
#include "process_mapping.hpp"

using namespace ddrun;
using namespace ddrun::pmi;

TEST_CASE("a PMI line is words with values that are kept byte for byte") {
  const auto put = PmiLine::parse("cmd=put kvsname=k_1 key=-bcast-1-0 value=a\\ b\\\\=\xff");
  REQUIRE(put);
  CHECK(put->command() == "put");
  CHECK(put->find("key") == "-bcast-1-0");
  CHECK(put->find("value") == "a\\ b\\\\=\xff");
  CHECK_FALSE(put->find("tag"));

  const auto abort = PmiLine::parse("cmd=abort exitcode=37 message=called MPI_Abort(w, 37) exitcode=5");
  REQUIRE(abort);
  CHECK(abort->find("exitcode") == "37");
  CHECK(abort->find("message") == "called MPI_Abort(w, 37) exitcode=5");

  const auto odd = PmiLine::parse("cmd=get  key= flag value=x\\");
  REQUIRE(odd);
  CHECK(odd->find("key") == "");
  CHECK(odd->find("flag") == "");
  CHECK(odd->find("value") == "x\\");
}

TEST_CASE("what does not begin with a PMI command or has control characters is no line") {
  for (const std::string text : {"", " cmd=get", "GET / HTTP/1.1", "mcmd=spawn", "cmd=get\r", "cmd=get key=a\x1b"}) {
    CAPTURE(text);
    CHECK_FALSE(PmiLine::parse(text));
  }
  CHECK_FALSE(PmiLine::parse(std::string_view("cmd=get\0", 8)));
}

namespace {

std::string mapping(const Placement& placement) { return process_mapping(number_nodes(placement)).value_or("none"); }

/// The node of each rank, as a reader of the mapping finds it: it begins again at the first part while ranks are left.
std::vector<int> nodes_by(const std::string& mapping, std::size_t size) {
  std::vector<int> nodes;
  while (nodes.size() < size) {
    for (std::size_t at = 0; (at = mapping.find(",(", at)) != std::string::npos; ++at) {
      int first = 0, count = 0, ranks = 0;
      REQUIRE(std::sscanf(mapping.c_str() + at, ",(%d,%d,%d)", &first, &count, &ranks) == 3);
      for (int i = 0; i < count * ranks && nodes.size() < size; ++i) nodes.push_back(first + i / ranks);
    }
  }
  return nodes;
}

void check_mapping(const Placement& placement) {
  const Placement numbered = number_nodes(placement);
  std::vector<int> expected;
  for (const auto& [node, ranks] : numbered) expected.insert(expected.end(), static_cast<std::size_t>(ranks), node);
  const auto text = process_mapping(numbered);
  REQUIRE(text);
  CAPTURE(*text);
  CHECK(nodes_by(*text, expected.size()) == expected);
  for (std::size_t rank = 0; rank < expected.size(); ++rank) {
    CHECK(node_of_rank(numbered, static_cast<int>(rank)) == expected[rank]);
  }
}

}  // namespace

TEST_CASE("the mapping of ranks to nodes is as short as its form allows") {
  CHECK(mapping({{0, 4}}) == "(vector,(0,1,4))");
  CHECK(mapping({{0, 8}, {1, 8}, {2, 4}}) == "(vector,(0,2,8),(2,1,4))");
  CHECK(mapping({{0, 1}, {1, 1}, {2, 1}}) == "(vector,(0,3,1))");
  // By turns, which wraps; the last turn may be cut off.
  CHECK(mapping({{0, 1}, {1, 1}, {0, 1}, {1, 1}}) == "(vector,(0,2,1))");
  CHECK(mapping({{0, 2}, {1, 2}, {0, 2}, {1, 1}}) == "(vector,(0,2,2))");
  CHECK(mapping({{0, 2}, {1, 1}, {0, 2}, {1, 2}}) == "(vector,(0,1,2),(1,1,1),(0,2,2))");
  // Two programs, the second the other way round.
  CHECK(mapping({{0, 2}, {1, 2}, {1, 4}, {0, 4}}) == "(vector,(0,1,2),(1,1,6),(0,1,4))");
  // Numbered as they come: node ranks may have gaps.
  CHECK(mapping({{7, 2}, {3, 2}, {7, 0}}) == "(vector,(0,2,2))");
  CHECK(mapping({}) == "none");
}

TEST_CASE("each rank finds its node in the mapping") {
  // All lists of up to 5 parts on 3 nodes with 1 or 2 ranks.
  for (int parts = 1; parts <= 5; ++parts) {
    int lists = 1;
    for (int i = 0; i < parts; ++i) lists *= 6;
    for (int list = 0; list < lists; ++list) {
      Placement placement;
      for (int i = 0, rest = list; i < parts; ++i, rest /= 6) placement.emplace_back(rest % 3, rest % 6 / 3 + 1);
      check_mapping(placement);
    }
  }
}

TEST_CASE("a mapping that MPICH 4.0 would cut off is none") {
  Placement placement;
  std::string longest, text;
  // No two parts can be one.
  for (int node = 0; (text = mapping(placement)) != "none" || node == 0; ++node) {
    longest = text;
    placement.emplace_back(node, 1000 + node % 7);
  }
  CHECK(longest.size() < 674);
  CHECK(longest.size() > 674 - 12);
  CHECK(placement.size() > 50);
}

TEST_CASE("a batch of puts is decoded as it was made, and refused if it is malformed") {
  std::string batch;
  append_put(batch, "a", "1");
  append_put(batch, "-bcast-1-0", "");
  const auto puts = decode_puts(batch);
  REQUIRE(puts);
  REQUIRE(puts->size() == 2);
  CHECK((*puts)[1].first == "-bcast-1-0");
  CHECK(decode_puts("")->empty());
  for (std::size_t size = 1; size < batch.size(); ++size) {
    CAPTURE(size);
    CHECK(decode_puts(std::string_view(batch).substr(0, size)).has_value() == (size == 10));
  }

  const auto refused = [](std::string_view key, std::string_view value) {
    std::string one;
    append_put(one, key, value);
    return !decode_puts(one).has_value();
  };
  CHECK_FALSE(refused(std::string(64, 'k'), std::string(1024, 'v')));
  CHECK(refused(std::string(65, 'k'), "v"));
  CHECK(refused("k", std::string(1025, 'v')));
  CHECK(refused("", "v"));
  CHECK(refused("PMI_process_mapping", "v"));
  CHECK(refused("k", "v\ncmd=barrier_out"));
}

TEST_CASE("a key space is bounded, and collects what other nodes need") {
  KeySpace alone(false);
  CHECK(alone.put("a", "1"));
  CHECK(alone.put("a", "2"));
  CHECK(alone.find("a") == "2");
  CHECK_FALSE(alone.find("b"));
  CHECK_FALSE(alone.put("PMI_x", "1"));
  CHECK(alone.take_batch().empty());

  KeySpace shared(true);
  CHECK(shared.put("a", "1"));
  KeySpace other(true);
  CHECK(other.merge(shared.take_batch()));
  CHECK(other.find("a") == "1");
  CHECK(shared.take_batch().empty());
  CHECK(other.take_batch().empty());
  CHECK_FALSE(other.merge("x"));

  const std::string value(1024, 'v');
  int stored = 0;
  while (alone.put(concat("key", 100'000 + stored), value)) ++stored;
  CHECK(stored == 64 * 1024 * 1024 / (1024 + 9));
  CHECK(alone.put("key100000", value));
  CHECK_FALSE(alone.put("key100000x", value));
}
