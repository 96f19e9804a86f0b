#include "job_member.hpp"

#include <string_view>
#include <utility>

#include "ddrun/base/messages.hpp"
#include "ddrun/base/text.hpp"
#include "ddrun/rendezvous/secret.hpp"

namespace ddrun::agent {

namespace {

/// That it may restart is assumed.
rendezvous::Failed failed_message(rendezvous::Round round, const WorkerEnd& worker) {
  rendezvous::Failed message;
  message.round = round;
  message.rank = worker.rank;
  message.local_rank = worker.local_rank;
  message.pid = worker.pid;
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

JobMember::JobMember(boost::asio::any_io_executor executor, Options options, Dispatch dispatch)
    : executor_(std::move(executor)), options_(std::move(options)), dispatch_(std::move(dispatch)) {}

Result<void> JobMember::open() {
  const LaunchSpec& spec = *options_.spec;
  rendezvous::RendezvousOptions options;
  options.spec = &spec;
  options.local_world_size = options_.prepared->local_world_size;
  options.host = options_.prepared->hostname;
  options.full_host = options_.prepared->full_host;
  options.version = options_.version;
  options.with_store = options_.with_store;
  options.on_listening = options_.hooks->on_listening;
  options.on_lease_program = options_.on_lease_program;
  options.kill_workers = options_.kill_workers;
  bool weak_secret = false;
  if (options_.hooks->secret) {
    options.secret = std::move(options_.hooks->secret);
  } else if (several_machines() && !spec.rendezvous.insecure) {
    auto found = rendezvous::find_or_make_secret(
        spec.rendezvous, [this](std::string_view name) { return options_.prepared->parent.find(name); });
    if (!found) return tl::unexpected(found.error());
    if (found->is_new) say(Level::notice, rendezvous::new_secret_message(found->file));
    weak_secret = !found->secret.looks_strong();
    options.secret = std::move(found->secret);
    options.secret_file = std::move(found->file);
  }
  rendezvous_ = rendezvous::make_rendezvous(executor_, std::move(options), listener());
  auto opened = rendezvous_->open();
  // Once in the job, not on each machine.
  if (opened && weak_secret && rendezvous_->runs_coordinator()) say(Level::warning, rendezvous::weak_secret_message());
  return opened;
}

rendezvous::RendezvousListener JobMember::listener() {
  rendezvous::RendezvousListener listener;
  listener.round_begins = [this](rendezvous::Round round, const RankAssignment& ranks) {
    round_ = round;
    ranks_ = ranks;
    another_round_ = false;
    options_.record->begin_round(round, ranks);
    dispatch_(event::RoundBegins{ranks.restart_count, ranks.node_count == 1});
  };
  listener.stop = [this](const rendezvous::Stop& stop) {
    another_round_ = stop.another_round;
    // On one machine it is said with the reason, once that is known.
    if (several_machines() && expects_another_round()) say(Level::notice, stop.why);
    dispatch_(event::StopOrdered{stop.signal});
  };
  listener.verdict = [this](const rendezvous::VerdictMessage& verdict) {
    options_.record->set_verdict(verdict, rendezvous_->runs_coordinator());
    dispatch_(event::VerdictReceived{});
  };
  listener.coordinator_lost = [this](const std::string& why) { dispatch_(event::CoordinatorLost{why}); };
  listener.node_report = [this](const rendezvous::NodeReport& report) { options_.record->add_node_report(report); };
  listener.event = [this](const std::string& line) { options_.events->write_line(line); };
  listener.notice = [](const std::string& text) { say(Level::notice, text); };
  listener.signal = options_.on_signal;
  return listener;
}

void JobMember::send_failed(const WorkerEnd& worker) {
  rendezvous::Failed message = failed_message(round_, worker);
  message.may_restart = message.by_signal || options_.spec->restart.no_restart_on.count(message.code) == 0;
  rendezvous_->failed(message);
}

void JobMember::send(const action::SendStopped&) {
  // --report is the same on every machine as a rule; on one, all is in the record already.
  rendezvous::Stopped message =
      options_.record->stopped_message(several_machines() && options_.spec->report_file.has_value());
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

void JobMember::abandon(const std::string& why) {
  leaving_ = true;
  rendezvous_->abandon(why);
}

}  // namespace ddrun::agent
