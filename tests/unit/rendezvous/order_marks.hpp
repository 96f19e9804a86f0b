#pragma once

#include <iostream>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "ddrun/base/legal_order.hpp"
#include "ddrun/base/text.hpp"
#include "simulation_invariants.hpp"

namespace ddrun::test {

/// The steps that a decider has taken in this process, by name of state and next state.
inline std::map<std::string, std::set<std::pair<std::string_view, std::string_view>>> marks;

/// Marks each step. A wrong one is a Violation.
inline StepHook mark_steps(const std::string& decider) {
  return [&seen = marks[decider], decider](std::string_view state, std::string_view next, bool is_legal) {
    if (!is_legal) throw Violation(concat("the ", decider, " took a wrong step from ", state, ": ", next));
    seen.emplace(state, next);
    return true;
  };
}

/// All pairs of states that `Order` allows, without what leaves the state as it is.
template <class Order>
std::set<std::pair<std::string_view, std::string_view>> arrows_of() {
  std::set<std::pair<std::string_view, std::string_view>> arrows;
  for (const auto& row : Order::steps) {
    for (int from = 0; from < 32; ++from) {
      const auto state = static_cast<std::remove_cv_t<decltype(row.to)>>(from);
      if (row.may_come_in(state) && state != row.to) arrows.emplace(name(state), name(row.to));
    }
  }
  return arrows;
}

template <class Order>
void print_unreached(const std::string& decider) {
  std::string missing;
  for (const auto& arrow : arrows_of<Order>()) {
    if (!marks[decider].contains(arrow)) missing += concat(missing.empty() ? "" : ", ", arrow.first, "-", arrow.second);
  }
  std::cout << "no seed has led the " << decider << " along: " << (missing.empty() ? "none" : missing) << "\n";
}

}  // namespace ddrun::test
