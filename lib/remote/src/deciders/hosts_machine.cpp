#include "hosts_machine.hpp"

#include <signal.h>

#include <algorithm>
#include <utility>

#include "ddrun/base/exit_status.hpp"
#include "ddrun/base/shutdown_timeouts.hpp"
#include "ddrun/base/text.hpp"

namespace ddrun::remote {

namespace {

/// Limit of hosts whose ddrun is being started: each costs an ssh handshake, here and on a shared gateway.
constexpr long max_opening = 32;
/// Doubled for each further try of a host, four times at most.
constexpr Milliseconds first_retry_delay{250};
/// A longer wait for hosts is explained.
constexpr Milliseconds notice_delay{2'000};
/// Of a question, until its reply begins, and from there until it is complete.
constexpr Milliseconds answer_timeout{4'000};

}  // namespace

HostsMachine::HostsMachine(HostsOptions options)
    : options_(std::move(options)), state_(options_.on_step), max_opening_(max_opening) {
  hosts_.reserve(options_.names.size());
  for (std::size_t i = 0; i < options_.names.size(); ++i) {
    hosts_.push_back({LegalState<HostState, HostOrder>(options_.on_step)});
  }
}

std::vector<HostAction> HostsMachine::step(const HostEvent& event, Clock::time_point now) {
  now_ = now;
  std::visit([this](const auto& one) { on(one); }, event);
  check_questions();
  finish_if_over();
  return std::exchange(actions_, {});
}

bool HostsMachine::enter(std::uint32_t host, HostOrder::Step step) {
  Host& one = hosts_[host];
  const bool was_opening = one.state == HostState::opening;
  const bool entered = one.state.enter(step);
  opening_ += (one.state == HostState::opening ? 1 : 0) - (was_opening ? 1 : 0);
  if (!entered) fail_for(one.state.take_wrong());
  return entered;
}

bool HostsMachine::enter(Step step) {
  if (state_.enter(step)) return true;
  fail_for(state_.take_wrong());
  return false;
}

void HostsMachine::fail_for(const std::optional<std::string>& wrong) {
  if (!wrong) return;
  say(Level::error, concat("the start on hosts ", *wrong));
  has_failed_ = true;
  stop(options_.ending_signal);
}

long HostsMachine::count(HostState first, HostState last) const {
  return std::ranges::count_if(hosts_, [&](const Host& host) { return host.state >= first && host.state <= last; });
}

bool HostsMachine::continues_without(std::uint32_t host) const {
  return coordinator_ != host && running() >= options_.min_nodes;
}

bool HostsMachine::is_left_out(std::uint32_t host, HostState state) const {
  return coordinator_ && coordinator_ != host && is_over(*coordinator_) && state != HostState::in_round;
}

// ---- reaching hosts

void HostsMachine::on(const host_event::Begin& /*event*/) {
  open_links();
  if (!all_needed()) deadlines_.arm(Due::notice, now_ + notice_delay);
}

void HostsMachine::open_links() {
  while (!is_suspended_ && opening_ < max_opening_ && (!retried_.empty() || next_host_ < hosts_.size())) {
    const std::uint32_t index = retried_.empty() ? next_host_++ : retried_.front();
    if (!retried_.empty()) retried_.pop_front();
    if (is_over(index)) continue;
    Host& host = hosts_[index];
    if (host.retries == 0) host.deadline = now_ + options_.start_limit;
    if (now_ >= host.deadline) {
      lose(index, host.retried_why);
    } else if (enter(index, HostOrder::Step::open)) {
      ++links_;
      act(host_action::OpenLink{index, host.deadline});
    }
  }
}

void HostsMachine::on(const host_event::Ready& event) {
  // It was given up while it was being reached.
  if (is_over(event.host)) return act(host_action::SendOver{event.host});
  if (!enter(event.host, HostOrder::Step::ready)) return;
  max_opening_ = std::min(max_opening, max_opening_ + 1);
  open_links();
  decide();
}

void HostsMachine::on(const host_event::LinkEnded& event) {
  const Host& host = hosts_[event.host];
  const bool is_late = host.state == HostState::opening && host.retries > 0 && now_ >= host.deadline;
  --links_;
  if (!try_again(event)) lose(event.host, is_late ? host.retried_why : event.why);
  open_links();
}

/// A jump host through which many log in at once closes connections (sshd's MaxStartups): its hosts are tried again,
/// fewer at a time. False if the link has ended for another reason, or the time is up.
bool HostsMachine::try_again(const host_event::LinkEnded& event) {
  Host& host = hosts_[event.host];
  const auto at = now_ + first_retry_delay * (1U << std::min(host.retries, 4U));
  if (!event.closed_by_proxy || host.state != HostState::opening || is_stopped() || at >= host.deadline) return false;
  if (!enter(event.host, HostOrder::Step::queue)) return false;
  host.retried_why = event.why;
  host.retry_at = at;
  deadlines_.arm(Due::retry, std::min(at, deadlines_.at(Due::retry).value_or(at)));
  const bool is_slower = max_opening_ > 1 && now_ >= slowed_at_ + first_retry_delay;
  if (is_slower) {
    max_opening_ /= 2;
    slowed_at_ = now_;
  }
  say(host.retries++ > 0 && is_slower ? Level::notice : Level::info,
      concat(event.why, "; trying again, ", max_opening_, " at a time"));
  return true;
}

void HostsMachine::retry_due_hosts() {
  std::optional<Clock::time_point> next;
  for (std::uint32_t i = 0; i < hosts_.size(); ++i) {
    Host& host = hosts_[i];
    if (host.state != HostState::queued || host.retry_at == Deadline()) continue;
    if (host.retry_at > now_) next = std::min(next.value_or(host.retry_at), host.retry_at);
    else retried_.push_back(i), host.retry_at = {};
  }
  if (next) deadlines_.arm(Due::retry, *next);
  open_links();
}

// ---- the start

/// Whether the job begins, and with which host as the coordinator's.
void HostsMachine::decide(bool last_call_is_over) {
  if (state_ == HostsState::reaching) {
    const auto answered = static_cast<int>(count(HostState::ready, HostState::ready));
    const bool enough = answered >= options_.min_nodes;
    if (!enough) deadlines_.clear(Due::last_call);
    else if (!deadlines_.is_armed(Due::last_call)) deadlines_.arm(Due::last_call, now_ + options_.last_call);
    last_call_is_over = last_call_is_over || deadlines_.at(Due::last_call).value_or(Deadline::max()) <= now_;
    const auto first_left = std::ranges::find_if(hosts_, [](const Host& one) { return one.state < HostState::ended; });
    const auto first_ready =
        std::ranges::find_if(hosts_, [](const Host& one) { return one.state == HostState::ready; });
    const bool no_more_needed = answered >= options_.max_nodes || count(HostState::queued, HostState::opening) == 0;
    const bool complete = all_needed() || (enough && no_more_needed);
    const bool begins = answered > 0 && ((complete && first_left == first_ready) || last_call_is_over);
    if (begins && enter(Step::begin)) {
      coordinator_ = static_cast<std::uint32_t>(first_ready - hosts_.begin());
      first_round_nodes_ = all_needed() ? 0 : std::min(answered, options_.max_nodes);
      deadlines_.clear(Due::last_call);
      deadlines_.clear(Due::notice);
    }
  }
  start_hosts();
}

/// The coordinator's host first, the others once it listens. If all are needed, none starts before the last one is
/// being reached.
void HostsMachine::start_hosts() {
  if (is_suspended_ || is_stopped() || !coordinator_) return;
  if (all_needed() && count(HostState::queued, HostState::queued) > 0) return;
  for (std::uint32_t i = 0; i < hosts_.size(); ++i) {
    const bool may_start = i == coordinator_ || state_ != HostsState::starting;
    if (hosts_[i].state != HostState::ready || !may_start || !enter(i, HostOrder::Step::start)) continue;
    act(host_action::SendPart{i, first_round_nodes_});
  }
  feed_input();
}

/// Input is not read before the coordinator's host has its part, and for all workers once all are there.
void HostsMachine::feed_input() {
  if (is_stopped() || !coordinator_ || host(*coordinator_) == HostState::ready) return;
  const bool all_started = count(HostState::queued, HostState::ready) == 0;
  if (all_started) act(host_action::ForgetSecret{});
  if (all_started || (!all_needed() && !options_.input_for_all)) act(host_action::ReadInput{});
}

void HostsMachine::on(const host_event::Listening& event) {
  if (event.host == coordinator_ && state_ == HostsState::starting && enter(Step::listen)) start_hosts();
}

void HostsMachine::on(const host_event::InRound& event) {
  const HostState before = host(event.host);
  if (before >= HostState::in_round || !enter(event.host, HostOrder::Step::round)) return;
  if (state_ != HostsState::starting && state_ != HostsState::joining) return;
  if (enter(Step::round)) act(host_action::StartTimeLimit{});
}

// ---- the end

void HostsMachine::on(const host_event::Ended& event) {
  const HostState before = host(event.host);
  if (before >= HostState::ended) return;
  const bool had_part = has_part(event.host);
  enter(event.host, had_part ? HostOrder::Step::end : HostOrder::Step::lose);
  const bool is_left = is_left_out(event.host, before);
  const bool is_needed = is_stopped() || !continues_without(event.host);
  const bool counts = !is_left && (had_part || !is_stopped()) && (before == HostState::in_round || is_needed);
  if (counts && first_code_ == 0) first_code_ = event.code;
  if (!had_part && !is_stopped() && !is_left) {
    const std::string why = concat("ddrun was ended on host ", options_.names[event.host],
                                   " before the job began (status ", event.code, ")");
    if (!is_needed) leave_out(why);
    else say(Level::error, concat(why, "; look there for what ended it, and start the job again"));
  }
  if (is_stopped()) return;
  if (event.host == coordinator_) {
    // Hosts that have been in a round end by themselves.
    for (std::uint32_t i = 0; i < hosts_.size(); ++i) {
      if (host(i) >= HostState::ready && !is_over(i)) act(host_action::SendOver{i});
    }
    give_up_unreached_hosts();
  } else if (counts && (event.code != 0 || !had_part) && state_ != HostsState::running &&
             running() < options_.min_nodes) {
    stop(options_.ending_signal);
  }
}

void HostsMachine::lose(std::uint32_t host, const std::string& why) {
  const HostState before = this->host(host);
  if (before >= HostState::ended || !enter(host, HostOrder::Step::lose)) return;
  if (is_stopped() || is_left_out(host, before)) return;
  if (continues_without(host)) return leave_out(why);
  say(Level::error, why);
  has_failed_ = true;
  stop(options_.ending_signal);
}

void HostsMachine::leave_out(const std::string& why) {
  say(Level::warning, concat(why, coordinator_ ? "; the job goes on without it" : "; the job starts without it"));
  decide();
  feed_input();
}

/// Hosts where ddrun does not run yet.
void HostsMachine::give_up_unreached_hosts() {
  for (std::uint32_t i = 0; i < hosts_.size(); ++i) {
    const HostState before = host(i);
    if (before > HostState::opening || !enter(i, HostOrder::Step::lose)) continue;
    if (before == HostState::opening) act(host_action::KillLink{i});
  }
}

void HostsMachine::on(const host_event::Signal& event) {
  const int signal = event.signal;
  if (signal == SIGSTOP || (signal == SIGCONT && is_suspended_)) suspend(signal == SIGSTOP);
  if (!options_.ending_signals.contains(signal)) {
    // A host in its start has no workers, and its ddrun does not know yet which signals end the job.
    const HostState first = signal == SIGSTOP || signal == SIGCONT ? HostState::started : HostState::in_round;
    for (std::uint32_t i = 0; i < hosts_.size(); ++i) {
      if (host(i) >= first && !is_over(i)) act(host_action::SendSignal{i, signal});
    }
    open_links();
    return start_hosts();
  }
  act(host_action::BoundConsole{});
  if (state_ == HostsState::over) {
    if (event.at_once) act(links_ > 0 ? HostAction(host_action::KillLinks{}) : host_action::Finish{true});
    return;
  }
  if (state_ == HostsState::ending && !event.at_once) return;
  if (signal_ == 0) signal_ = signal;
  if (state_ == HostsState::ending) {
    say(Level::notice, concat(signal_name(signal), " again: killing all workers"));
  } else {
    say(Level::notice,
        concat(signal_name(signal), ": stopping ", counted(running(), "host"), " (at once if you repeat it)"));
  }
  stop(signal);
}

/// Ctrl-Z and its end: no host starts meanwhile, and hosts that stand still as well need more time to end.
void HostsMachine::suspend(bool still) {
  is_suspended_ = still;
  if (!still) {
    if (const auto left = std::exchange(time_to_cut_, std::nullopt)) deadlines_.arm(Due::cut, now_ + *left);
  } else if (const auto at = deadlines_.at(Due::cut)) {
    time_to_cut_ = *at - now_;
    deadlines_.clear(Due::cut);
  }
  act(host_action::Suspend{still});
}

void HostsMachine::on(const host_event::ParentLost& event) {
  if (std::exchange(has_failed_, true)) return;
  say(Level::error, concat("ddrun's own ", event.who, " was killed; the job was stopped"));
  act(host_action::BoundConsole{});
  if (state_ != HostsState::over) stop(options_.ending_signal);
}

void HostsMachine::stop(int signal) {
  if (is_suspended_) suspend(false);
  const bool again = state_ == HostsState::ending;
  if (!again && !enter(Step::stop)) return;
  deadlines_.clear_all();
  deadlines_.arm(Due::cut, now_ + (again ? shutdown::head_kill_timeout : options_.grace + shutdown::head_margin));
  act(host_action::StopInput{});
  for (std::uint32_t i = 0; i < hosts_.size(); ++i) {
    if (host(i) >= HostState::ready && !is_over(i)) act(host_action::SendSignal{i, signal, again});
  }
  give_up_unreached_hosts();
}

void HostsMachine::finish_if_over() {
  if (running() > 0) return;
  if (state_ != HostsState::over) {
    if (!enter(Step::finish)) return;
    deadlines_.clear_all();
    act(host_action::StopInput{});
    if (links_ > 0) {
      act(host_action::CloseLinks{});
      deadlines_.arm(Due::cut, now_ + shutdown::head_close_timeout);
    }
  }
  if (links_ == 0) {
    deadlines_.clear_all();
    act(host_action::Finish{});
  }
}

void HostsMachine::cut() {
  for (std::uint32_t i = 0; i < hosts_.size(); ++i) {
    if (is_over(i)) continue;
    say(Level::error, concat("host ", options_.names[i], " has not ended in time; its connection is cut"));
  }
  act(host_action::KillLinks{});
}

void HostsMachine::on(const host_event::Tick& /*event*/) {
  deadlines_.expire(now_, [this](Due due, bool again) {
    if (!state_.check(due, again)) return fail_for(state_.take_wrong());
    switch (due) {
      case Due::retry: return retry_due_hosts();
      case Due::last_call: return decide(true);
      case Due::cut: return cut();
      case Due::answer: return;  // see check_questions()
      case Due::notice: break;
    }
    if (const std::string wait = describe_wait(); !wait.empty()) say(Level::notice, concat(wait, " (--last-call)"));
  });
}

std::string HostsMachine::describe_wait() const {
  const auto first = std::ranges::find_if(hosts_, [](const Host& host) { return host.state <= HostState::opening; });
  if (first == hosts_.end()) return {};
  const auto more = count(HostState::queued, HostState::opening) - 1;
  return concat("waiting for host ", options_.names[static_cast<std::size_t>(first - hosts_.begin())],
                more > 0 ? concat(" and ", more, " more") : "", " to answer");
}

// ---- questions

void HostsMachine::on(const host_event::Asked& event) {
  const bool waits = state_ == HostsState::reaching || (all_needed() && state_ < HostsState::running);
  const std::string wait = waits ? describe_wait() : "";
  std::uint32_t host = coordinator_.value_or(0);
  for (std::uint32_t i = 0; i < hosts_.size() && !has_part(host); ++i) host = i;
  if (wait.empty() && has_part(host)) {
    questions_[event.question] = {host, now_ + answer_timeout};
    return act(host_action::SendQuestion{host, event.question});
  }
  const std::string_view why = wait.empty() ? "no host runs its part of the job at present" : "no worker runs yet: ";
  act(host_action::RefuseQuestion{event.question, concat(why, wait)});
}

void HostsMachine::on(const host_event::Answered& event) {
  if (event.is_complete) questions_.erase(event.question);
  else questions_.at(event.question).by = now_ + answer_timeout;
}

void HostsMachine::check_questions() {
  deadlines_.clear(Due::answer);
  std::erase_if(questions_, [this](const auto& one) {
    const auto& [number, question] = one;
    const bool is_gone = is_over(question.host);
    if (!is_gone && question.by > now_) {
      deadlines_.arm(Due::answer, std::min(question.by, deadlines_.at(Due::answer).value_or(question.by)));
      return false;
    }
    const std::string late = concat(" did not answer within ", format_duration(answer_timeout));
    act(host_action::RefuseQuestion{number, concat("host ", options_.names[question.host],
                                                   is_gone ? " has ended, or its connection is lost" : late)});
    return true;
  });
}

int HostsMachine::exit_code() const {
  if (has_failed_) return exit_codes::launcher_failed;
  if (first_code_ != 0) return first_code_;
  return signal_ != 0 && count(HostState::lost, HostState::lost) > 0 ? exit_codes::signal_base + signal_ : 0;
}

}  // namespace ddrun::remote
