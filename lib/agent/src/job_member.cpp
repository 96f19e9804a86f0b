#include "job_member.hpp"

#include <utility>

#include "ddrun/base/messages.hpp"
#include "ddrun/rendezvous/event_text.hpp"

namespace ddrun::agent {

namespace {

/// Without `may_restart`.
rendezvous::Failed failed_message(rendezvous::Round round, const WorkerEnd& worker) {
  rendezvous::Failed message;
  message.round = round;
  message.rank = worker.rank;
  message.local_rank = worker.local_rank;
  message.pid = worker.pid;
  message.why = worker.why;
  if (const auto* signaled = std::get_if<Signaled>(&worker.status)) {
    message.by_signal = true;
    message.code = signaled->signal;
    message.core_dumped = signaled->core_dumped;
  } else {
    message.code = std::get<Exited>(worker.status).code;
  }
  return message;
}

}  // namespace

JobMember::JobMember(boost::asio::any_io_executor executor, const LaunchSpec& spec, JobRecord& record,
                     EventsFile& events, rendezvous::RendezvousOptions options)
    : spec_(spec),
      record_(record),
      events_(events),
      rendezvous_(rendezvous::make_rendezvous(std::move(executor), std::move(options), listener())) {}

rendezvous::RendezvousListener JobMember::listener() {
  rendezvous::RendezvousListener listener;
  listener.round_begins = [this](rendezvous::Round round, const RankAssignment& ranks) {
    round_ = round;
    ranks_ = ranks;
    another_round_ = false;
    record_.begin_round(round, ranks);
    handlers_.dispatch(event::RoundBegins{ranks.restart_count, ranks.node_count == 1});
  };
  listener.stop = [this](const rendezvous::Stop& stop) {
    another_round_ = stop.another_round;
    // On one machine the restart is reported with its reason, once that is known.
    if (several_machines() && expects_another_round()) say(Level::notice, stop.why);
    handlers_.dispatch(event::StopOrdered{stop.signal});
  };
  listener.verdict = [this](const rendezvous::VerdictMessage& verdict) {
    verdict_ = verdict;
    record_.set_verdict(verdict, rendezvous_->runs_coordinator());
    handlers_.dispatch(event::VerdictReceived{});
  };
  listener.coordinator_lost = [this](const std::string& why) { handlers_.dispatch(event::CoordinatorLost{why}); };
  listener.node_report = [this](const rendezvous::NodeReport& report) { record_.add_node_report(report); };
  listener.event = [this](const std::string& line) { events_.write_line(line); };
  listener.notice = [](const std::string& text) { say(Level::notice, text); };
  listener.signal = [this](int signal) { handlers_.forward_signal(signal); };
  return listener;
}

void JobMember::send_failed(const WorkerEnd& worker) {
  rendezvous::Failed message = failed_message(round_, worker);
  message.may_restart = message.by_signal || spec_.restart.no_restart_on.count(message.code) == 0;
  rendezvous_->failed(message);
}

void JobMember::send(const action::SendStopped&) {
  // --report is usually given on every machine; on one machine the record has all workers already.
  rendezvous::Stopped message = record_.stopped_message(several_machines() && spec_.report_file.has_value());
  message.round = round_;
  rendezvous_->stopped(message);
}

void JobMember::send(const action::SendLeave& leave) {
  leaving_ = true;
  rendezvous_->leave(leave.message);
}

void JobMember::send(const action::SendAbort& abort) {
  leaving_ = true;
  rendezvous_->abort(abort.message);
}

void JobMember::write_verdict(const JobResult& result) {
  if (runs_coordinator()) return;  // it has written its line
  rendezvous::VerdictMessage own;
  own.kind = result.verdict;
  own.exit_code = exit_code(result);
  own.signal = result.signal;
  own.why = result.message;
  events_.write_line(rendezvous::event_text::verdict(round_, verdict_.value_or(own)));
}

void JobMember::abandon(const std::string& why) {
  leaving_ = true;
  rendezvous_->abandon(why);
}

}  // namespace ddrun::agent
