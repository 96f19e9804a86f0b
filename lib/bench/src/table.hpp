#pragma once

#include <string>

#include "ddrun/bench/options.hpp"
#include "results.hpp"

namespace ddrun::bench {

// The table, with the columns of nccl-tests, as whole lines.
[[nodiscard]] std::string header(const Setting& setting, const Options& options);
/// Above the rows of one collective.
[[nodiscard]] std::string heading(collectives::Collective collective);
/// What could not be run, or means nothing, is N/A.
[[nodiscard]] std::string line(const Row& row);
/// Below the rows of a case: why something of it was not run, once for each reason; empty: all was. `no_size`: that
/// no size was as large as an element for each rank.
[[nodiscard]] std::string remarks(const Case& what, const std::vector<Row>& rows, bool no_size);
[[nodiscard]] std::string footer(const Summary& summary);

/// One line.
[[nodiscard]] std::string line_of(const Roofline& roofline);
/// The matrices (of 64 nodes at most) and the worst.
[[nodiscard]] std::string table_of(const Pairs& pairs);

/// To stdout at once and in whole lines, so that a launcher that labels lines shows each as soon as it is known. If
/// nobody takes them (closed, or a full disk), says so and ends the program: what is measured is for nobody.
void print(const std::string& lines);

}  // namespace ddrun::bench
