#include "reports.hpp"

#include "ddrun/base/text.hpp"
#include "ddrun/test/catch.hpp"

using namespace ddrun;
using namespace ddrun::bench;

namespace {

std::vector<std::string> words_of(const std::string& line) {
  std::vector<std::string> words = split(line.substr(0, line.size() - 1), ' ');
  std::erase(words, "");
  return words;
}

Row row_of(collectives::Collective collective) {
  Row row;
  row.spec.collective = collective;
  row.spec.root = 3;
  row.bytes = 4096;
  row.count = 1024;
  for (Measurement* one : {&row.out_of_place, &row.in_place}) {
    one->microseconds = 12.345;
    one->algbw = 0.5;
    one->busbw = 0.25;
    one->wrong = 7;
  }
  return row;
}

}  // namespace

TEST_CASE("a row has the columns of nccl-tests in order") {
  using Words = std::vector<std::string>;
  CHECK(words_of(line(row_of(collectives::Collective::all_reduce))) ==
        Words{"4096", "1024", "float", "sum", "-1", "12.35", "0.50", "0.25", "7", "12.35", "0.50", "0.25", "7"});
  const Words broadcast = words_of(line(row_of(collectives::Collective::broadcast)));
  CHECK(broadcast[3] == "none");
  CHECK(broadcast[4] == "3");
  const Words reduce = words_of(line(row_of(collectives::Collective::reduce)));
  CHECK(reduce[3] == "sum");
  CHECK(reduce[4] == "3");
}

TEST_CASE("unsupported calls are N/A, with the reason in one line") {
  Row row = row_of(collectives::Collective::all_to_all);
  row.in_place = {};
  row.in_place.unsupported_reason = "nccl has no all_to_all in place";
  const auto words = words_of(line(row));
  REQUIRE(words.size() == 13);
  CHECK(words[8] == "7");
  for (std::size_t i = 9; i < 13; ++i) CHECK(words[i] == "N/A");
  CHECK(remarks(row.spec, {row, row}, false) == "# N/A: nccl has no all_to_all in place\n");
  CHECK(remarks(row_of(collectives::Collective::gather).spec, {row, row}, false).empty());
  CHECK(remarks(row.spec, {}, true) == "# no size has an element of float for each rank\n");
}

TEST_CASE("a bandwidth of no data is a number, and N/A only where nothing ran") {
  Row row = row_of(collectives::Collective::all_reduce);
  for (Measurement* one : {&row.out_of_place, &row.in_place}) one->busbw = 0;
  row.in_place.algbw = 0;
  const auto words = words_of(line(row));
  CHECK(std::vector(words.begin() + 5, words.end()) ==
        std::vector<std::string>{"12.35", "0.50", "0.00", "7", "12.35", "0.00", "0.00", "7"});
  const auto average = [](const std::vector<Row>& rows) { return split(footer(summarize(rows, "")), '\n')[1]; };
  CHECK(average({row}) == "# Avg bus bandwidth    : 0");
  CHECK(average({row_of(collectives::Collective::all_reduce)}) == "# Avg bus bandwidth    : 0.25");
  CHECK(average({}) == "# Avg bus bandwidth    : N/A");
  row.out_of_place.unsupported_reason = row.in_place.unsupported_reason = "no";
  CHECK(average({row}) == "# Avg bus bandwidth    : N/A");
}

TEST_CASE("the columns of heading and rows are aligned") {
  const auto lines = split(heading(collectives::Collective::all_reduce), '\n');
  const std::string row = line(row_of(collectives::Collective::all_reduce));
  std::string titles;
  for (const std::string& one : lines) {
    if (one.find("#wrong") != std::string::npos) titles = one;
  }
  REQUIRE(titles.size() + 1 == row.size());
  for (const char* title : {"count", "type", "redop", "root"}) {
    CAPTURE(title);
    const std::size_t end = titles.find(title) + std::string(title).size();
    CHECK(row[end - 1] != ' ');
    CHECK(row[end] == ' ');
  }
}
