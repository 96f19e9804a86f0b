#include "job_member.hpp"

#include <utility>

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
      rendezvous_(rendezvous::make_rendezvous(
          std::move(executor), std::move(options),
          [this](const rendezvous::ToAgent& told) { std::visit([this](const auto& what) { on(what); }, told); })) {}

void JobMember::on(const rendezvous::RoundBegins& begins) {
  announce_restart();
  round_ = begins.round;
  ranks_ = begins.ranks;
  another_round_ = false;
  record_.begin_round(round_, ranks_);
  handlers_.dispatch(event::RoundBegins{ranks_.restart_count, ranks_.node_count == 1});
}

void JobMember::on(const rendezvous::StopOrder& stop) {
  another_round_ = stop.another_round;
  // On one machine the restart is reported with its reason, once that is known.
  if (several_machines() && expects_another_round()) say(Level::notice, stop.why);
  handlers_.dispatch(event::StopOrdered{stop.signal, stop.max_grace});
}

void JobMember::on(const rendezvous::VerdictMessage& verdict) {
  verdict_ = verdict;
  record_.set_verdict(verdict, rendezvous_->runs_coordinator());
  handlers_.dispatch(event::VerdictReceived{});
}

void JobMember::on(const rendezvous::Log& log) {
  switch (log.kind) {
    case rendezvous::LogKind::event: return events_.write_line(log.text);
    case rendezvous::LogKind::notice: return say(Level::notice, log.text);
    case rendezvous::LogKind::warning: return say(Level::warning, log.text);
    case rendezvous::LogKind::report: return record_.add_node_report(log);
  }
}

void JobMember::announce_restart() {
  if (!restart_.empty()) say(Level::notice, std::exchange(restart_, {}));
}

void JobMember::send_failed(const WorkerEnd& worker) {
  rendezvous::Failed message = failed_message(round_, worker);
  message.may_restart = message.by_signal || spec_.restart.no_restart_on.count(message.code) == 0;
  rendezvous_->send(message);
}

void JobMember::send_stopped(std::string restart) {
  restart_ = std::move(restart);
  // --report is usually given on every machine; on one machine the record has all workers already.
  rendezvous::Stopped message = record_.stopped_message(several_machines() && spec_.report_file.has_value());
  message.round = round_;
  rendezvous_->send(message);
}

void JobMember::send(const action::SendLeave& leave) {
  leaving_ = true;
  rendezvous_->send(leave.message);
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
