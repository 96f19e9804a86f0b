#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "ddrun/base/duration.hpp"
#include "ddrun/rendezvous/messages.hpp"
#include "job.hpp"
#include "membership.hpp"

namespace ddrun::rendezvous {

/// Puts one question at a time to all members with workers, and passes their answers, unread, to all that have asked it
/// (PROTOCOL.md, section 5). A further question waits. Of answers it keeps max_all_answers, for those that ask while
/// they come; an agent is sent max_answer_part beyond what it has confirmed.
class Survey {
 public:
  static constexpr Milliseconds timeout{3'000};

  explicit Survey(Job& job) : job_(job) {}

  void on(const Member& asker, const Ask& ask);
  void on(const Member& member, const Stacks& answer);
  void on_pong(LinkId link, std::uint32_t number);
  /// Its member was removed.
  void on_lost(LinkId gone);
  void on_timeout();
  /// Members are being sent STOP, whose number of Look this is: the observer gets the answers; 0: there is none. Ends a
  /// question that is under way.
  [[nodiscard]] std::uint32_t begin_at_stop();
  /// The job is over here.
  void clear();

 private:
  struct Asker {
    LinkId link = 0;
    std::uint32_t number = 0;
    bool is_for_stop = false;  ///< it gets the end only, after the observer has got all
    std::size_t next = 0;      ///< of answers_
  };
  /// A member whose answer is not complete, as it was when it was asked: the next round may begin meanwhile.
  struct Awaited {
    int node_rank = -1;
    std::string host;
  };
  struct Queued {
    LinkId link = 0;
    Ask ask;
  };

  [[nodiscard]] bool is_open() const { return number_ != 0; }
  void begin();
  void add(LinkId link, const Ask& ask);
  /// Sends what it may be sent; true: it has got all.
  [[nodiscard]] bool serve(Asker& asker);
  void serve_all();
  void send_end(const Asker& asker);
  void end();

  Job& job_;
  std::uint32_t last_number_ = 0;
  std::uint32_t number_ = 0;  ///< of the question that is under way; 0: none
  Ask question_;
  std::map<LinkId, Awaited> awaited_;
  std::vector<Page> answers_;
  std::size_t bytes_ = 0;  ///< of answers_
  std::vector<std::string> missing_;
  std::vector<Asker> askers_;
  std::vector<Queued> queued_;
  /// Agents that have not confirmed their last parts, of this question or one before, with the ping whose PONG does.
  std::map<LinkId, std::uint32_t> unconfirmed_;
};

}  // namespace ddrun::rendezvous
