#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <functional>
#include <string>

#include "ddrun/agent/agent.hpp"
#include "ddrun/agent/events_file.hpp"
#include "ddrun/agent/job_result.hpp"
#include "ddrun/rendezvous/job_rendezvous.hpp"
#include "ddrun/rendezvous/messages.hpp"
#include "group_machine.hpp"
#include "job_record.hpp"
#include "preparation.hpp"

namespace ddrun::agent {

/// This agent as a member of a job on several machines: between the group's state machine, which knows nothing of
/// messages, and the rendezvous, which knows nothing of workers.
class JobMember {
 public:
  struct Options {
    const LaunchSpec* spec = nullptr;  ///< borrowed, as the rest
    const Preparation* prepared = nullptr;
    JobRecord* record = nullptr;
    EventsFile* events = nullptr;
    std::string version;
    JobHooks* hooks = nullptr;
    bool with_store = true;
  };
  using Dispatch = std::function<void(const Event&)>;

  /// `dispatch` is called on the executor, never from within a call.
  JobMember(boost::asio::any_io_executor executor, Options options, Dispatch dispatch);

  /// As JobRendezvous::open; also fails with `invalid_argument` if there is no secret, and none is not what was asked
  /// for.
  Result<void> open();

  [[nodiscard]] Authority authority() const;
  [[nodiscard]] const std::string& run_id() const { return rendezvous_->run_id(); }
  /// Of the round that RoundBegins was about.
  [[nodiscard]] const RankAssignment& ranks() const { return ranks_; }

  void join() { rendezvous_->join(); }
  void tell_failed(const WorkerEnd& worker);
  void tell(const action::TellSucceeded&) { rendezvous_->succeeded(); }
  void tell(const action::TellStopped&);
  void tell(const action::TellLeave& leave);
  void tell(const action::TellAbort& abort);
  void abandon() { rendezvous_->abandon(); }
  void async_close(std::function<void()> done) { rendezvous_->async_close(std::move(done)); }

 private:
  [[nodiscard]] rendezvous::JobListener listener();

  boost::asio::any_io_executor executor_;
  Options options_;
  Dispatch dispatch_;
  std::unique_ptr<rendezvous::JobRendezvous> rendezvous_;
  RankAssignment ranks_;
  rendezvous::Round round_ = 0;
  bool leaving_ = false;  ///< what the others do is no news for who has left
};

/// What the rendezvous is told about a worker that failed; that it may restart is assumed.
[[nodiscard]] rendezvous::Failed failed_message(rendezvous::Round round, const WorkerEnd& worker);

}  // namespace ddrun::agent
