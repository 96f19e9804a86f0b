#pragma once

#include <string>
#include <string_view>

#include "ddrun/base/environment.hpp"
#include "ddrun/base/legal_order.hpp"

namespace ddrun {

/// The hook that DDRUN_WRONG_STEP asks for, in tests: with "member:in_round" the step of the decider "member" to its
/// state in_round is wrong.
[[nodiscard]] inline StepHook wrong_step_hook(std::string_view decider) {
  const auto wanted = variable("DDRUN_WRONG_STEP");
  if (!wanted || !wanted->starts_with(concat(decider, ":"))) return {};
  return [step = std::string(wanted->substr(decider.size() + 1))](std::string_view, std::string_view next,
                                                                  bool is_legal) { return is_legal && next != step; };
}

}  // namespace ddrun
