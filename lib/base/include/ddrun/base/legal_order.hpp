#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "ddrun/base/text.hpp"

namespace ddrun {

/// For tests: asked before each step to `next`, a state, and at each deadline of this name. False: it counts as wrong.
using StepHook = std::function<bool(std::string_view state, std::string_view next, bool is_legal)>;

/// A row of a decider's order: a step, or a deadline, and the states in which it may come.
template <class State>
struct LegalStep {
  std::string_view name;
  std::uint32_t from = 0;  ///< a bit for each state
  State to{};              ///< of a step

  [[nodiscard]] constexpr bool may_come_in(State state) const {
    return (from >> static_cast<unsigned>(state) & 1U) != 0;
  }
};

template <class... States>
[[nodiscard]] constexpr std::uint32_t any_of(States... states) {
  return ((std::uint32_t{1} << static_cast<unsigned>(states)) | ...);
}

/// The state of a decider. It changes by the steps of its order only: `Order` has a row for each value of its enum Step
/// in `steps`, and for each name of the decider's deadlines in `deadlines`.
template <class State, class Order>
class LegalState {
 public:
  explicit LegalState(StepHook hook = {}) : hook_(std::move(hook)) {}
  operator State() const { return state_; }

  /// False, with the state unchanged: the step is wrong, which is a defect of ddrun. After the first wrong one each
  /// step is taken, since the decider has to end.
  [[nodiscard]] bool enter(typename Order::Step step) {
    const auto& row = Order::steps[static_cast<std::size_t>(step)];
    if (!may_come(row, name(row.to), true)) return false;
    state_ = row.to;
    return true;
  }
  /// Whether this deadline may expire now. `again`: it has done so at the same instant.
  template <class Due>
  [[nodiscard]] bool check(Due due, bool again) {
    const auto& row = Order::deadlines[static_cast<std::size_t>(due)];
    return may_come(row, row.name, !again);
  }
  /// What the decider did, once.
  [[nodiscard]] std::optional<std::string> take_wrong() { return std::exchange(wrong_, std::nullopt); }

 private:
  bool may_come(const LegalStep<State>& row, std::string_view next, bool is_legal) {
    is_legal = is_legal && row.may_come_in(state_);
    if (has_failed_ || (hook_ ? hook_(name(state_), next, is_legal) : is_legal)) return true;
    has_failed_ = true;
    wrong_ = concat("took a wrong step, a defect of ddrun: ", row.name, " in the state ", name(state_));
    return false;
  }

  State state_{};
  bool has_failed_ = false;
  std::optional<std::string> wrong_;
  StepHook hook_;
};

}  // namespace ddrun
