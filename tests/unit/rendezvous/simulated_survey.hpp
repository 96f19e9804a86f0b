#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "ddrun/base/text.hpp"
#include "session.hpp"
#include "simulation_invariants.hpp"

namespace ddrun::test {

using namespace ddrun::rendezvous;

/// As is_sequenced() says of its type.
[[nodiscard]] inline bool is_counted(const FromAgent& message) {
  using std::holds_alternative;
  return !holds_alternative<Pong>(message) && !holds_alternative<Join>(message) && !holds_alternative<Resume>(message);
}

/// An agent's answer of that size. It says of which host it is, and how long.
[[nodiscard]] inline std::string answer_of(const std::string& host, std::size_t size) {
  std::string answer = concat(host, " ", size, " ");
  answer.resize(std::max(size, answer.size()), 'x');
  return answer;
}

/// The answers of an agent on one connection, paced as AgentLink does it: by the messages that a PING confirms.
class SimulatedAnswers {
 public:
  /// For each message to the coordinator.
  void note_sent(const FromAgent& message) {
    if (is_counted(message)) session_.send(counted_type, "");
  }
  void confirm(const Ping& ping) {
    require(session_.confirm(ping.received), "a PING confirms ", ping.received, " messages");
  }
  void add(const Stacks& answer) { answers_.add(answer); }
  /// What it may send, at once.
  [[nodiscard]] std::optional<Stacks> next() { return answers_.next(session_); }

 private:
  static constexpr std::uint8_t counted_type = 4;  ///< of any

  Session session_;
  PacedAnswers answers_;
};

/// The questions of one agent, and what comes back.
class SimulatedQuestions {
 public:
  /// On a new connection: what was asked before has no end.
  void forget_open() { asked_.clear(); }
  [[nodiscard]] Ask ask(const std::string& options, bool is_for_stop) {
    asked_[++last_].is_for_stop = is_for_stop;
    return {last_, stacks_question, options, is_for_stop};
  }
  /// Throws a Violation for pages that were not asked for, for other answers than were sent, and for an incomplete one
  /// without a reason at the end.
  void take(const Page& page) {
    if (page.number == 0) asked_.try_emplace(0);
    const auto found = asked_.find(page.number);
    require(found != asked_.end(), "a page of question ", page.number, ", which has ended");
    Question& question = found->second;
    if (page.node_rank < 0) {
      check_end(question, page);
      asked_.erase(found);
      return;
    }
    require(!question.is_for_stop, "a page for an agent that gets the end only");
    Answer& answer = question.answers[page.node_rank];
    if (answer.host.empty()) answer.host = page.host;
    require(answer.host == page.host && !answer.is_complete, "a part of ", page.host, " as of node rank ",
            page.node_rank, ", which is ", answer.host, "'s", answer.is_complete ? " and complete" : "");
    answer.text += page.part;
    if (!page.last) return;
    answer.is_complete = true;
    const std::string text = std::exchange(answer.text, {});
    require(text == answer_of(page.host, text.size()), "another answer of ", page.host, " than it has sent");
  }

 private:
  struct Answer {
    std::string host;
    std::string text;
    bool is_complete = false;
  };
  struct Question {
    bool is_for_stop = false;
    std::map<int, Answer> answers;  ///< by node rank
  };

  static void check_end(const Question& question, const Page& end) {
    for (const auto& [node_rank, answer] : question.answers) {
      const std::string begin = answer.host + ": ";
      const bool is_named = std::ranges::any_of(end.missing, [&](const auto& one) { return one.starts_with(begin); });
      require(answer.is_complete || is_named, "the answer of ", answer.host, " is incomplete without a reason");
    }
  }

  std::uint32_t last_ = 0;
  std::map<std::uint32_t, Question> asked_;  ///< without end
};

}  // namespace ddrun::test
