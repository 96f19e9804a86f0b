#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "atomic_file.hpp"
#include "ddrun/base/alarm.hpp"
#include "ddrun/base/text.hpp"
#include "ddrun/inspect/stack_reader.hpp"
#include "ddrun/job_socket/job_socket.hpp"
#include "ddrun/logs/output.hpp"
#include "ddrun/rendezvous/messages.hpp"
#include "group_machine.hpp"
#include "job.hpp"
#include "participant.hpp"
#include "worker_group.hpp"

namespace ddrun::agent {

/// Where the ranks of the job are: for the console before a stop, and for `ddrun stacks`, on the job's socket. On
/// several machines each reads its own ranks, and the one that asks, or at a stop the coordinator's, makes one page of
/// all. All is borrowed; for the agent's thread.
class StackPages : public Participant {
 public:
  /// A page is shown; `finds_cause`: it tells the cause of a stop.
  using OnPage = std::function<void(const inspect::StackPage&, bool finds_cause)>;
  /// `describe_wait`: what this machine does before all of its workers run, or nothing. `on_answer` is called after
  /// each answer to `ddrun stacks`.
  StackPages(Job& job, WorkerGroup& group, logs::Output& output, std::function<std::string()> describe_wait,
             std::function<void()> on_answer, OnPage on_page);

  /// Reads, writes all threads to a file, shows the page on the console with the file's path unless another machine
  /// does, and calls `done`, unless GiveUpStacks came first; after read.limit without a page, which is shown when it is
  /// complete, if the job still runs. One at a time. Of the workers in read.slots; none: all.
  void async_show(const action::ReadStacks& read, std::function<void()> done);
  void carry_out(const action::AnswerOrder& order);
  void carry_out(const action::GiveUpStacks&);
  /// Calls `then` once the page of all machines that has begun to come here is shown, or now.
  void when_shown(std::function<void()> then);

  void on_told(const rendezvous::Look& look);
  void on_told(const rendezvous::Page& page);

  void open_socket_later();
  void close() override;

 private:
  static constexpr Milliseconds settle_time{200};

  using Request = inspect::StackReader::Request;
  using Answer = inspect::StackReader::Answer;
  using Targets = std::vector<inspect::StackReader::Target>;
  /// The answers of all machines to one question.
  struct Question {
    std::string options;
    Request request;                          ///< for the page of all
    std::function<void(const Answer*)> done;  ///< null: another machine has the page
    bool is_for_stop = false;                 ///< another machine gets the answers
    Deadline by;
    std::map<std::int32_t, inspect::StackReader::Share> shares = {};  ///< by node rank
    std::set<std::int32_t> complete = {};
  };
  /// This machine's ranks for a question.
  struct Own {
    enum class State { reading, ready, sent };
    State state = State::reading;
    Clock::time_point begun{};
    std::string text{};                  ///< empty until it is read
    std::vector<std::uint32_t> looks{};  ///< that await it
  };
  /// What async_show() waits for.
  enum class Awaited { own, order, page };
  struct Show {
    std::function<void()> done;
    std::string why;
    Milliseconds limit{0};
    std::set<Awaited> awaits{};
  };

  /// The workers in `slots` that were started; none: all.
  [[nodiscard]] Targets targets(const std::set<int>& slots = {}) const;
  [[nodiscard]] std::string file_prefix() const;
  void show(const Answer& answer);
  void show_machine(const action::ReadStacks& read);
  /// Once ranks that were read while they gave up waiting have said so.
  void settle(std::function<void()> then) { settled_.set(Clock::now() + settle_time, std::move(then)); }
  void limit_show(Milliseconds limit);
  void go_on_showing(unsigned number, std::set<Awaited> is_there);
  void read_own(const std::string& options);
  void answer_looks(const std::string& options);
  void send_own(const std::string& options, std::uint32_t look);
  /// What was read is kept as long as a page without other machines may be made of it.
  void forget_own();
  /// `done` comes with the page of all machines, or with what there is of it in time.
  void ask(const std::string& options, bool is_for_stop, Request request, std::function<void(const Answer*)> done);
  void open_question(std::uint32_t number, Question question);
  void end_question(std::uint32_t number, std::vector<std::string> notes, bool in_time);
  void end_late_questions();
  /// Of a page for the console, without ranks.
  [[nodiscard]] Request page_request(const std::string& why) const;
  /// Ranks of this machine, and what is known of them besides their stacks.
  void add_own(Request& request, Targets targets) const;
  void await_page(const std::string& why);
  /// The reply where no rank is found; `notes`: of the page.
  [[nodiscard]] std::string no_rank_reply(bool some_were_asked, const std::vector<std::string>& notes) const;
  [[nodiscard]] std::string job_identity() const;
  void answer_client(const job_socket::Request& request, const job_socket::Server::Reply& reply);

  Job& job_;
  WorkerGroup& group_;
  logs::Output& output_;
  inspect::StackReader reader_;
  std::function<std::string()> describe_wait_;
  std::function<void()> on_answer_;
  OnPage on_page_;
  job_socket::Server socket_;
  /// Tells this job from others: jobs in containers may share a directory and have the same PID.
  const std::string tag_ = concat(random_number());
  unsigned shows_ = 0;  ///< number of the last async_show()
  Alarm limit_;
  std::optional<Show> show_;
  std::map<std::string, Own> own_;  ///< by the options of their question
  std::uint32_t last_question_ = 0;
  bool is_page_due_ = false;  ///< of all machines, before a stop
  std::function<void()> when_shown_;
  Alarm settled_;                                ///< what ranks say after they were read is there
  std::map<std::uint32_t, Question> questions_;  ///< by number; 0: a stop asks
  Alarm late_;                                   ///< for the first of their limits
};

}  // namespace ddrun::agent
