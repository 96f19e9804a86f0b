#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ddrun/collectives/communicator.hpp"

namespace ddrun::bench {

/// One way of calling (out of place or in place) at one size, over all ranks. Times are those of the slowest rank.
struct Measurement {
  int iterations = 0;
  double microseconds = 0;  ///< per operation: the mean over the iterations
  double median = 0;        ///< microseconds; this and the next two: of `samples` timed one by one
  double p99 = 0;
  double minimum = 0;
  int samples = 0;
  double algbw = 0;                    ///< GB/s: bytes / time; 0: nothing has to be moved or copied
  double busbw = 0;                    ///< GB/s: algbw * bus_bandwidth_factor(); 0: nothing travels between ranks
  std::optional<std::uint64_t> wrong;  ///< elements, over all ranks; none: not checked
  std::string unsupported_reason;      ///< why it was not run: the back end cannot; empty: it was
};

/// What is measured at one size after the other.
struct Case {
  collectives::Collective collective = collectives::Collective::all_reduce;
  collectives::DataType type = collectives::DataType::float32;
  collectives::ReduceOp op = collectives::ReduceOp::sum;
  int root = 0;
};

struct Row {
  Case bench_case;
  std::uint64_t bytes = 0;  ///< the larger of a rank's (the root's) input and output
  std::uint64_t count = 0;  ///< elements of a block
  Measurement out_of_place;
  Measurement in_place;
};

/// Something about the run that is neither asked for nor measured: "machine", "library", "topology", "clock", "date".
struct Fact {
  std::string name;
  std::string value;
};

/// What each pair of nodes (of ranks, on a single node) reaches. Matrices are row by row, nodes.size() each way,
/// symmetric, with 0 where a node would meet itself.
struct Pairs {
  std::vector<std::string> nodes;  ///< names, by number
  int steps = 0;                   ///< of the schedule, at each of which all pairs work at the same time
  int ranks_per_node = 1;          ///< that work at the same time: those whose local rank exists on every node
  std::uint64_t bytes = 0;         ///< that each rank sends for the bandwidth
  std::vector<double> gbps;        ///< each way, of all ranks of a node together
  std::vector<double> median_us;   ///< of 8 bytes both ways at the same time, of the slower side
  std::vector<double> minimum_us;

  struct Worst {
    int first = -1;  ///< -1: there is no pair
    int second = -1;
  };
  Worst slowest;            ///< the pair with the least bandwidth
  Worst latest;             ///< the pair with the longest median
  std::uint64_t wrong = 0;  ///< elements, of all ranks
  int worst_node = -1;      ///< whose pairs have the least median of bandwidths

  [[nodiscard]] std::size_t at(int first, int second) const {
    return static_cast<std::size_t>(first) * nodes.size() + static_cast<std::size_t>(second);
  }
};

/// What is known before the first operation.
struct Setting {
  int size = 1;
  std::string backend;
  std::string note;     ///< why it is that back end, or another surprise; empty: none
  std::string details;  ///< Communicator::details()
  std::string buffers;  ///< "shared" or "private"
  std::vector<collectives::Member> members;
  std::vector<Fact> facts;
  std::uint64_t min_bytes = 0;
  std::uint64_t max_bytes = 0;
  std::string collective;  ///< names with commas between them, or "all"
  std::string type;        ///< the same
  std::string op;
};

struct Summary {
  std::optional<Pairs> pairs;  ///< if they were asked for
  std::vector<Row> rows;
  std::uint64_t wrong = 0;
  double mean_busbw = 0;  ///< over all measurements in which something travels; 0: none
  std::string error;      ///< why the run ended early; empty: it did not
};

[[nodiscard]] Summary summarize(std::vector<Row> rows, std::string error);

/// A run and what it measured.
struct Report {
  Setting setting;
  Summary summary;
};

/// How a row was measured.
struct Placement {
  std::string_view name;
  Measurement Row::*of;
};

inline constexpr std::array placements{Placement{"out of place", &Row::out_of_place},
                                       Placement{"in place", &Row::in_place}};

/// Whether it was run at all, and took some time.
[[nodiscard]] inline bool measured(const Measurement& one) {
  return one.unsupported_reason.empty() && one.microseconds > 0;
}

/// Whether both measure the same call: collective, type, operation and root, as far as they matter to it.
[[nodiscard]] bool same_case(const Case& one, const Case& other);

/// "all_reduce of float sum", "broadcast of int8 from rank 0", "barrier".
[[nodiscard]] std::string describe(const Case& bench_case);
/// "all_reduce of 1 MiB float sum".
[[nodiscard]] std::string describe(const Row& row);

/// What fell short of what was asked for.
struct Violation {
  std::string text;  ///< one line, without its end
  double ratio = 0;  ///< reached / wanted, below 1: the least is the worst
};

// Numbers for people.

/// "8 B", "1 KiB", "1.5 MiB", "1003 B": exact if three digits behind the point are enough, else bytes.
[[nodiscard]] std::string format_size(std::uint64_t bytes);

/// Three digits that count, without an exponent: "0.00312", "3.2", "81", "12346".
[[nodiscard]] std::string format_number(double value);

/// "12.30".
[[nodiscard]] std::string format_two_decimals(double value);

/// Of 0.125: "12.5 %".
[[nodiscard]] std::string format_percent(double part);

/// "850 ns", "12.3 us", "1.5 ms", "2 s".
[[nodiscard]] std::string format_time(double microseconds);

}  // namespace ddrun::bench
