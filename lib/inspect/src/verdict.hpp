#pragma once

#include <string>
#include <vector>

#include "ddrun/inspect/stack_page.hpp"

// Who waits for whom, and what a rank does in words.

namespace ddrun::inspect {

/// The first line of a page, with its '\n', of the first world that has one; empty: it is not known.
[[nodiscard]] std::string verdict_line(const StackPage& page, const std::vector<StackGroup>& groups);

/// "sleeps", "waits for other ranks"
[[nodiscard]] std::string describe(const ThreadStack& thread, Stance stance);
/// "load_batch (train.py:7)", or names of native functions; empty: not known.
[[nodiscard]] std::string place_text(const ThreadStack& thread);
/// "clock_nanosleep < time_sleep": up to the interpreter, whose functions are left out.
[[nodiscard]] std::string native_names(const ThreadStack& thread);
/// "child 4711 python3: load_batch (data.py:7), sleeps"
[[nodiscard]] std::string describe_awaited(const RankStacks& process);
/// " on h2"; empty: this machine, or several.
[[nodiscard]] std::string on_host(const StackGroup& group);

}  // namespace ddrun::inspect
