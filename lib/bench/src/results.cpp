#include "results.hpp"

#include <utility>

#include "ddrun/base/text.hpp"
#include "units.hpp"

namespace ddrun::bench {

using collectives::Collective;

bool same_case(const Case& one, const Case& other) {
  if (one.collective != other.collective) return false;
  if (one.collective == Collective::barrier) return true;
  return one.type == other.type && (!reduces(one.collective) || one.op == other.op) &&
         (!has_root(one.collective) || one.root == other.root);
}

namespace {

std::string words_of(const Case& what, const std::string& size) {
  if (what.collective == Collective::barrier) return "barrier";
  std::string words = concat(name_of(what.collective), " of ", size, name_of(what.type));
  if (reduces(what.collective)) words += concat(' ', name_of(what.op));
  if (has_root(what.collective)) {
    const bool gathers = what.collective == Collective::reduce || what.collective == Collective::gather;
    words += concat(gathers ? " to rank " : " from rank ", what.root);
  }
  return words;
}

}  // namespace

std::string in_words(const Case& what) { return words_of(what, ""); }

std::string in_words(const Row& row) { return words_of(row.what, size_in_words(row.bytes) + " "); }

Summary summarize(std::vector<Row> rows, std::string error) {
  Summary summary;
  int travelled = 0;
  for (const Row& row : rows) {
    for (const Measurement* one : {&row.out_of_place, &row.in_place}) {
      summary.wrong += one->wrong.value_or(0);
      summary.mean_busbw += one->busbw;
      travelled += one->busbw > 0 ? 1 : 0;
    }
  }
  if (travelled != 0) summary.mean_busbw /= travelled;
  summary.rows = std::move(rows);
  summary.error = std::move(error);
  return summary;
}

}  // namespace ddrun::bench
