// docs/architecture.md has the order of the states of each state machine, as their tables do.

#include <iostream>

#include "ddrun/test/catch.hpp"
#include "ddrun/test/files.hpp"
#include "group_machine.hpp"
#include "member_machine.hpp"
#include "order_marks.hpp"

using namespace ddrun;
using namespace ddrun::rendezvous;
using ddrun::test::arrows_of;

namespace {

template <class State>
std::string page(std::string text, State last, const std::set<std::pair<std::string_view, std::string_view>>& arrows) {
  for (int from = 0; from <= static_cast<int>(last); ++from) {
    std::string next;
    for (int to = 0; to <= static_cast<int>(last); ++to) {
      const auto arrow = std::pair(name(static_cast<State>(from)), name(static_cast<State>(to)));
      if (arrows.contains(arrow)) next += concat(next.empty() ? "" : ", ", arrow.second);
    }
    const auto state = name(static_cast<State>(from));
    text += concat("\n  ", state, std::string(next.empty() ? 0 : 12 - state.size(), ' '), next);
  }
  return text + "\n";
}

std::string group_page() {
  using agent::GroupState;
  std::set<std::pair<std::string_view, std::string_view>> arrows;
  for (const auto& row : agent::state_table()) {
    for (int to = 0; to <= static_cast<int>(GroupState::finished); ++to) {
      const auto next = static_cast<GroupState>(to);
      if (row.may_lead_to(next) && next != row.from) arrows.emplace(name(row.from), name(next));
    }
  }
  return page("worker group: agent::GroupMachine", GroupState::finished, arrows);
}

}  // namespace

TEST_CASE("docs/architecture.md has the order of the states of each machine") {
  const std::string orders =
      join({group_page(), page("member: rendezvous::MemberMachine", MemberState::closed, arrows_of<MemberOrder>()),
            page("coordinator: rendezvous::Coordinator", CoordinatorState::ended, arrows_of<CoordinatorOrder>()),
            page("dialer: rendezvous::Dialer", DialerState::joined, arrows_of<DialerOrder>()),
            page("candidate: lease::Candidate", lease::CandidateState::unusable, arrows_of<lease::CandidateOrder>())},
           "\n");
  const bool has_orders =
      test::read_file(DDRUN_SOURCE_DIR "/docs/architecture.md").find("```text\n" + orders + "```\n") !=
      std::string::npos;
  if (!has_orders) std::cout << orders;
  CHECK(has_orders);
}
