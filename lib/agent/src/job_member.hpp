#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "ddrun/agent/events_file.hpp"
#include "ddrun/agent/job_result.hpp"
#include "ddrun/base/messages.hpp"
#include "ddrun/rendezvous/messages.hpp"
#include "ddrun/rendezvous/rendezvous.hpp"
#include "group_machine.hpp"
#include "job_record.hpp"

namespace ddrun::agent {

/// This agent as a member of a job, on one machine or several: translates between the events and actions of the state
/// machine and the messages of the rendezvous.
class JobMember {
 public:
  struct Handlers {
    std::function<void(const Event&)> dispatch;
    std::function<void(int signal)> forward_signal;  ///< to the workers of this machine
  };

  /// `spec`, `record` and `events` are borrowed.
  JobMember(boost::asio::any_io_executor executor, const LaunchSpec& spec, JobRecord& record, EventsFile& events,
            rendezvous::RendezvousOptions options);

  /// As Rendezvous::open, once, before any other call.
  Result<void> open() { return rendezvous_->open(); }

  [[nodiscard]] bool runs_coordinator() const { return rendezvous_->runs_coordinator(); }
  [[nodiscard]] const std::string& run_id() const { return rendezvous_->run_id(); }
  /// Of the latest RoundBegins.
  [[nodiscard]] const RankAssignment& ranks() const { return ranks_; }

  /// The present round is over, and the coordinator has announced another.
  [[nodiscard]] bool expects_another_round() const { return another_round_ && !leaving_; }

  /// From here on the handlers are called, on the executor, never from within a call.
  void join(Handlers handlers) {
    handlers_ = std::move(handlers);
    rendezvous_->join();
  }
  void send_failed(const WorkerEnd& worker);
  void send(const action::SendSucceeded&) { rendezvous_->send(rendezvous::Succeeded{round_}); }
  /// `restart`: for the user, once another round is certain; may be empty.
  void send_stopped(std::string restart);
  void send(const action::SendLeave& leave);
  void abandon(const std::string& why);
  void pass_signal(int signal) { rendezvous_->send(rendezvous::PassSignal{round_, signal}); }
  /// On machines without the coordinator: the line `verdict` of --events, the coordinator's or this machine's own.
  void write_verdict(const JobResult& result);
  void set_paused(bool still) { rendezvous_->set_paused(still); }
  void async_close(std::function<void()> done) { rendezvous_->async_close(std::move(done)); }

 private:
  void on(const rendezvous::RoundBegins& begins);
  void on(const rendezvous::StopOrder& stop);
  void on(const rendezvous::VerdictMessage& verdict);
  void on(const rendezvous::CoordinatorLost& lost) { handlers_.dispatch(event::CoordinatorLost{lost.why}); }
  void on(const rendezvous::Log& log);
  void on(const rendezvous::PassSignal& pass) { handlers_.forward_signal(pass.signal); }
  void on(const rendezvous::Waiting&) { announce_restart(); }
  void announce_restart();

  [[nodiscard]] bool several_machines() const { return spec_.rendezvous.several_machines(); }

  const LaunchSpec& spec_;
  JobRecord& record_;
  EventsFile& events_;
  Handlers handlers_;
  std::shared_ptr<rendezvous::Rendezvous> rendezvous_;
  RankAssignment ranks_;
  rendezvous::Round round_ = 0;
  std::optional<rendezvous::VerdictMessage> verdict_;
  std::string restart_;  ///< as given to send_stopped()
  bool another_round_ = false;
  bool leaving_ = false;  ///< the job ends on this machine
};

}  // namespace ddrun::agent
