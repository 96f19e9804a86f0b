#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ddrun/base/text.hpp"
#include "ddrun/inspect/stack_page.hpp"

// How ranks are grouped, for those who judge and print the groups. Views lead into the values that were passed.

namespace ddrun::inspect {

/// A call of a communication library, by its outermost frame.
struct Call {
  std::string_view function;
  std::string place;  ///< of the caller: "train.py:31", the name of a native function, or empty
};
/// The one in which the thread is.
[[nodiscard]] std::optional<Call> find_call(const ThreadStack& thread);

[[nodiscard]] bool begins_with_any(std::string_view text, std::span<const std::string_view> names);
[[nodiscard]] std::string_view file_name(std::string_view path);
/// Of a library: its path below site-packages/ or dist-packages/, or of a checkout from torch/ on; empty: it is none.
[[nodiscard]] std::string_view in_packages(std::string_view path);
/// An installed one, or the standard one.
[[nodiscard]] bool is_library(const PythonFrame& frame);

[[nodiscard]] std::size_t size_of(const StackGroup& group);
/// Ascending.
[[nodiscard]] std::vector<int> numbers_of(const std::vector<const RankStacks*>& ranks);
[[nodiscard]] std::vector<RankName> names_of(const StackGroup& group);
void append(std::vector<RankName>& to, const StackGroup& group);
/// Empty: this machine, or several.
[[nodiscard]] std::string host_of(const StackGroup& group);
[[nodiscard]] double mean_cpu(const std::vector<const RankStacks*>& ranks);
/// The main thread of the first rank, with those numbers that all ranks have, and on a socket only if all are on one of
/// the same peer.
[[nodiscard]] ThreadStack common_stack(const StackGroup& group);

}  // namespace ddrun::inspect
