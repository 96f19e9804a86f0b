#pragma once

#include <string>
#include <vector>

#include "ddrun/pmi/pmi_server.hpp"

namespace ddrun::test {

/// A PmiServer, and what it has done.
struct Node {
  explicit Node(pmi::World world) : server(std::move(world)) { step(pmi::pmi_event::Start{}); }
  /// One machine with this many ranks.
  static Node with(int ranks) {
    pmi::World world{.size = ranks, .ranks = {}, .random = std::string(16, '\1')};
    for (int rank = 0; rank < ranks; ++rank) world.ranks.push_back(rank);
    return Node(world);
  }

  void step(const pmi::PmiEvent& event) {
    using namespace pmi::pmi_action;
    for (const auto& action : server.step(event, now)) {
      if (const auto* answer = std::get_if<Answer>(&action)) answers.push_back(*answer);
      if (const auto* cut = std::get_if<CutOff>(&action)) cut_off.push_back(cut->slot);
      if (const auto* sent = std::get_if<Contribute>(&action)) contributions.push_back(*sent);
      if (const auto* fail = std::get_if<Fail>(&action)) failures.push_back(*fail);
      if (const auto* notice = std::get_if<Notice>(&action)) notices.push_back(notice->text);
    }
  }
  /// The answer to this line, without its newline; empty if there is none to this slot.
  std::string ask(int slot, const std::string& line) {
    answers.clear();
    step(pmi::pmi_event::Line{slot, line});
    return answer_to(slot);
  }
  [[nodiscard]] std::string answer_to(int slot) const {
    for (const auto& answer : answers) {
      if (answer.slot == slot) return answer.text.substr(0, answer.text.size() - 1);
    }
    return "";
  }
  void init(int slot) { ask(slot, "cmd=init pmi_version=1 pmi_subversion=1"); }
  void barrier(int slot) { ask(slot, "cmd=barrier_in"); }
  void end(int slot, bool success = true) { step(pmi::pmi_event::Ended{slot, success}); }
  /// "1: ended without MPI_Finalize (1)"; empty if none has failed.
  [[nodiscard]] std::string failure() const {
    std::string text;
    for (const auto& fail : failures) {
      text += std::to_string(fail.slot) + ": " + fail.why + " (" + std::to_string(fail.code) + ")";
    }
    return text;
  }

  pmi::PmiServer server;
  Clock::time_point now{};
  std::vector<pmi::pmi_action::Answer> answers;
  std::vector<int> cut_off;
  std::vector<pmi::pmi_action::Contribute> contributions;
  std::vector<pmi::pmi_action::Fail> failures;
  std::vector<std::string> notices;
};

}  // namespace ddrun::test
