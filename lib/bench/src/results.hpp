#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ddrun/collectives/communicator.hpp"

namespace ddrun::bench {

/// Result of one placement at one size, over all ranks. Times are those of the slowest rank.
struct Measurement {
  int iterations = 0;
  double microseconds = 0;  ///< per call: the mean over the iterations
  double median = 0;        ///< microseconds; this and the next two: of `samples` calls timed singly
  double p99 = 0;
  double minimum = 0;
  int samples = 0;
  double algbw = 0;                    ///< GB/s: bytes / time; 0: no data is moved
  double busbw = 0;                    ///< GB/s: algbw * bus_bandwidth_factor(); 0: no transfer between ranks
  std::optional<std::uint64_t> wrong;  ///< elements, over all ranks; none: not checked
  std::string unsupported_reason;      ///< why the back end did not run it; empty: measured
};

/// A call that is measured at a series of sizes.
struct Case {
  collectives::Collective collective = collectives::Collective::all_reduce;
  collectives::DataType type = collectives::DataType::float32;
  collectives::ReduceOp op = collectives::ReduceOp::sum;
  int root = 0;
};

struct Row {
  Case spec;
  std::uint64_t bytes = 0;  ///< the larger of a rank's (the root's) input and output
  std::uint64_t count = 0;  ///< elements of a block
  Measurement out_of_place;
  Measurement in_place;
};

/// A property of the run's environment: "machine", "library", "topology", "clock", "date".
struct Fact {
  std::string name;
  std::string value;
};

/// Results of all pairs of nodes (of ranks on a single node). Matrices have nodes.size() rows and columns, row by row;
/// symmetric, 0 on the diagonal.
struct Pairs {
  std::vector<std::string> nodes;  ///< names
  int steps = 0;                   ///< of the schedule; each measures disjoint pairs at the same time
  int ranks_per_node = 1;          ///< taking part: those whose local rank exists on every node
  std::uint64_t bytes = 0;         ///< sent by each rank for the bandwidth
  std::vector<double> gbps;        ///< each way, sum of the ranks of a node
  std::vector<double> median_us;   ///< of 8 bytes both ways at once, of the slower side
  std::vector<double> minimum_us;

  struct Worst {
    int first = -1;  ///< -1: no pair
    int second = -1;
  };
  Worst slowest;            ///< the pair with the least bandwidth
  Worst latest;             ///< the pair with the longest median
  std::uint64_t wrong = 0;  ///< elements, of all ranks
  int worst_node = -1;      ///< whose pairs have the smallest median bandwidth

  [[nodiscard]] std::size_t at(int first, int second) const {
    return static_cast<std::size_t>(first) * nodes.size() + static_cast<std::size_t>(second);
  }
};

/// Properties known before the first call.
struct Setting {
  int size = 1;
  std::string backend;
  std::string note;     ///< why this back end, or another notice; empty: none
  std::string details;  ///< Communicator::details()
  std::string buffers;  ///< "shared" or "private"
  std::vector<collectives::Member> members;
  std::vector<Fact> facts;
  std::uint64_t min_bytes = 0;
  std::uint64_t max_bytes = 0;
  std::string collective;  ///< comma-separated names, or "all"
  std::string type;        ///< the same
  std::string op;
};

struct Summary {
  std::optional<Pairs> pairs;  ///< with --pairs
  std::vector<Row> rows;
  std::uint64_t wrong = 0;
  double mean_busbw = 0;  ///< over all measurements with transfers; 0: none
  std::string error;      ///< why the run ended early; empty: it completed
};

[[nodiscard]] Summary summarize(std::vector<Row> rows, std::string error);

struct Report {
  Setting setting;
  Summary summary;
};

/// The two ways of measuring a row.
struct Placement {
  std::string_view name;
  Measurement Row::*of;
};

inline constexpr std::array placements{Placement{"out of place", &Row::out_of_place},
                                       Placement{"in place", &Row::in_place}};

/// Whether it was run and took measurable time.
[[nodiscard]] inline bool measured(const Measurement& one) {
  return one.unsupported_reason.empty() && one.microseconds > 0;
}

/// Whether both measure the same call: equal collective, and equal type, operation and root where used.
[[nodiscard]] bool same_case(const Case& one, const Case& other);

/// "all_reduce of float sum", "broadcast of int8 from rank 0", "barrier".
[[nodiscard]] std::string describe(const Case& spec);
/// "all_reduce of 1 MiB float sum".
[[nodiscard]] std::string describe(const Row& row);

struct Violation {
  std::string text;  ///< one line, without its end
  double ratio = 0;  ///< reached / required, below 1; the smallest is the worst
};

// Formatting for the table and messages.

/// "8 B", "1 KiB", "1.5 MiB", "1003 B": with up to three decimals if exact, else in bytes.
[[nodiscard]] std::string format_size(std::uint64_t bytes);

/// Three significant digits, without an exponent: "0.00312", "3.2", "81", "12346".
[[nodiscard]] std::string format_number(double value);

[[nodiscard]] std::string two_decimals(double value);

/// 0.125 as "12.5 %".
[[nodiscard]] std::string format_percent(double part);

/// "850 ns", "12.3 us", "1.5 ms", "2 s".
[[nodiscard]] std::string format_time(double microseconds);

}  // namespace ddrun::bench
