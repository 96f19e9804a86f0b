#include "report/report.hpp"

#include "ddrun/base/text.hpp"
#include "report/units.hpp"

namespace ddrun::allreduce {

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

}  // namespace ddrun::allreduce
