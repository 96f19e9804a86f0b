#pragma once

#include <sys/types.h>

#include <string>
#include <utility>
#include <vector>

namespace ddrun::agent {

/// Which rank is which process, for -v when workers start and for who looks into them later:
/// "rank 0 pid 123, ranks 1-64 pids 130-193". Ranks and pids that go on by one are one item; `most` items at most, and
/// "and 900 more" behind them. Empty for no workers.
[[nodiscard]] std::string started_text(const std::vector<std::pair<int, pid_t>>& workers, std::size_t most);

/// Says it: with -v in one line, with -v -v all of it, and what each of them runs and where.
void say_started(const std::vector<std::pair<int, pid_t>>& workers, const std::string& program,
                 const std::string& directory);

}  // namespace ddrun::agent
