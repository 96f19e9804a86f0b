#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "ddrun/base/result.hpp"

namespace ddrun::remote {

/// A host and the number by which frames name it.
struct Target {
  std::uint32_t index = 0;
  std::string host;   ///< as ssh gets it
  bool here = false;  ///< this very machine, which needs no ssh; never in an order
  bool operator==(const Target&) const = default;
};

/// The payload of `fan_out`: start these hosts in the way in which you were started.
struct FanOutOrder {
  std::vector<Target> targets;
  std::vector<std::string> ssh;              ///< the command's words
  std::string program;                       ///< where ddrun lies on the user's machine
  std::size_t width = 1;                     ///< so many at once; more are reached through those
  std::chrono::milliseconds start_limit{0};  ///< for each
};

[[nodiscard]] std::string to_json(const FanOutOrder& order);
[[nodiscard]] Result<FanOutOrder> fan_out_from_json(std::string_view text);

/// The payload of `hello`.
struct Hello {
  std::vector<std::string> addresses;  ///< under which it can be reached, the likeliest first
};

[[nodiscard]] std::string to_json(const Hello& hello);
[[nodiscard]] Result<Hello> hello_from_json(std::string_view text);

/// A host and those that it starts itself.
struct Branch {
  Target root;
  std::vector<Target> rest;
};

/// At most `width` branches of nearly equal size, in order; without more targets than that, each is a branch.
[[nodiscard]] std::vector<Branch> split_targets(const std::vector<Target>& targets, std::size_t width);

}  // namespace ddrun::remote
