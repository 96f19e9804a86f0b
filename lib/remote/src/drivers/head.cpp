#include "ddrun/remote/head.hpp"

#include <signal.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/io_context.hpp>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>
#include <utility>

#include "ddrun/base/alarm.hpp"
#include "ddrun/base/environment.hpp"
#include "ddrun/base/exit_status.hpp"
#include "ddrun/base/messages.hpp"
#include "ddrun/base/shared_output.hpp"
#include "ddrun/base/shutdown_timeouts.hpp"
#include "ddrun/base/standard_input.hpp"
#include "ddrun/base/text.hpp"
#include "ddrun/job_socket/job_socket.hpp"
#include "ddrun/process/child_watcher.hpp"
#include "ddrun/process/descriptor_limit.hpp"
#include "ddrun/process/launcher.hpp"
#include "ddrun/process/signals.hpp"
#include "host_console.hpp"
#include "hosts_machine.hpp"
#include "link.hpp"
#include "protocol.hpp"
#include "remote_command.hpp"

namespace ddrun::remote {

namespace {

/// Window of unacknowledged stdin bytes per host.
constexpr std::size_t input_window = std::size_t{256} << 10U;
/// Three descriptors per ssh, and those to watch it.
constexpr std::size_t descriptors_per_host = 8;

std::string without_user(const std::string& host) {
  const auto at = host.rfind('@');
  return at == std::string::npos ? host : host.substr(at + 1);
}

HostsOptions machine_options(const HeadOptions& options) {
  HostsOptions machine;
  for (const HeadHost& host : options.hosts) machine.names.push_back(host.name);
  machine.min_nodes = options.min_nodes;
  machine.max_nodes = options.job.max_nodes;
  machine.last_call = options.last_call;
  machine.start_limit = options.start_limit;
  machine.grace = options.job.grace;
  machine.ending_signals = options.ending_signals;
  machine.ending_signal = options.job.ending_signal;
  machine.input_for_all = options.stdin_.kind == StdinSpec::Kind::all;
  return machine;
}

/// The reply to {"question":"job"}: the agents on the hosts have its ranks.
std::string job_facts(const HeadOptions& options, pid_t pid) {
  return job_socket::reply_line({{"tag", concat(std::random_device{}())},
                                 {"pid", pid},
                                 {"run_id", options.job.job_id},
                                 {"program", options.worker_program},
                                 {"ranks", nlohmann::json::array()},
                                 {"hosts", machine_options(options).names},
                                 {"started", ::time(nullptr)}});
}

/// What HostsMachine decides, over ssh.
class Head {
 public:
  Head(HeadOptions options, process::AgentContext& context)
      : options_(std::move(options)),
        context_(context),
        watcher_(
            io_.get_executor(),
            [this](const process::ChildEnd& end) {
              for (const Host& host : hosts_) {
                if (host.link && host.link->child_ended(end)) return;
              }
            },
            [] {}),
        signals_(io_.get_executor(), context_,
                 {[this](const process::SignalMessage& message) {
                    step(host_event::Signal{message.signal, message.at_once});
                  },
                  [this](pid_t first) { watcher_.reap(first); },
                  [this](const char* who, pid_t) { step(host_event::ParentLost{who}); }}),
        console_(io_.get_executor(), options_.log, [this] { on_console_change(); }),
        machine_(machine_options(options_)),
        socket_(io_.get_executor(), [this](const auto& request, const auto& reply) { answer_client(request, reply); }),
        facts_(job_facts(options_, context_.shared->started_pid)),
        deadline_(io_.get_executor()),
        ping_(io_.get_executor()),
        time_limit_(io_.get_executor()),
        input_(io_.get_executor(), {.on_bytes = [this](std::string_view bytes) { send_input(bytes); },
                                    .on_end = [this] { send_input({}); },
                                    .is_in_background = process::job_is_in_background}) {}

  int run() {
    if (auto ready = set_up(); !ready) {
      say_error(ready.error().message);
      return exit_codes::launcher_failed;
    }
    io_.run();
    socket_.close();
    const bool has_stalled = machine_.state() != HostsState::over;
    if (has_stalled) {
      say_error("ddrun has no event to wait for before all hosts have ended: a system call that it needs is denied");
    }
    int code = has_stalled ? exit_codes::launcher_failed : machine_.exit_code();
    HostConsole::Loss lost = console_.close();
    if (!lost.why.empty()) {
      if (code == 0) code = exit_codes::launcher_failed;
      say_error(lost.why);
    }
    lost.bytes += dropped_output();
    if (lost.bytes > 0 && options_.on_lost_output) {
      options_.on_lost_output(lost.bytes, lost.why.empty() ? "not read in time" : lost.why);
    }
    if (!write_report() && code == 0) code = exit_codes::launcher_failed;
    return code;
  }

 private:
  struct Host {
    Link* link = nullptr;                        ///< the last one; null before the first
    std::vector<std::unique_ptr<Link>> tries{};  ///< see Link
    std::vector<std::string> addresses{};
    HostConsole::HostLines lines{};
    std::size_t input_in_flight = 0;
  };
  struct Question {
    std::string request;
    job_socket::Server::Reply reply;
    std::string text{};  ///< of its reply, so far
  };

  Result<void> set_up() {
    auto ssh = TRY(split_command(options_.ssh));
    link_settings_ = {std::move(ssh), options_.program, options_.build_id, options_.portable, options_.start_limit};
    process::raise_descriptor_limit();
    process::reserve_descriptors(64 + descriptors_per_host * options_.hosts.size());
    launcher_ = std::make_unique<process::Launcher>(TRY(process::Launcher::create()));
    TRY(watcher_.open());
    TRY(signals_.open(options_.ending_signals, options_.job.grace + shutdown::head_margin));
    console_.redirect_messages();
    hosts_.resize(options_.hosts.size());
    for (std::size_t i = 0; i < hosts_.size(); ++i) {
      if (hosts_.size() > 1) hosts_[i].lines.own_prefix = concat("ddrun on ", options_.hosts[i].name, ": ");
    }
    socket_.open_later(variable("XDG_RUNTIME_DIR").value_or(""), context_.shared->started_pid);
    step(host_event::Begin{});
    ping();
    return {};
  }

  void step(const HostEvent& event) {
    for (const HostAction& action : machine_.step(event, Clock::now())) {
      std::visit([this](const auto& one) { carry_out(one); }, action);
    }
    if (const auto at = machine_.next_deadline()) deadline_.set(*at, [this] { step(host_event::Tick{}); });
    else deadline_.cancel();
  }

  // ---- actions

  void carry_out(const host_action::OpenLink& open) {
    Link::Events events;
    events.on_frame = [this, host = open.host](const Frame& frame) { on_frame(host, frame); };
    events.on_end = [this, index = open.host](const std::string& why) {
      Host& host = hosts_[index];
      console_.finish(host.lines);
      step(host_event::LinkEnded{index, why, host.link->was_closed_by_proxy()});
    };
    Host& host = hosts_[open.host];
    const HeadHost& what = options_.hosts[open.host];
    host.tries.push_back(
        std::make_unique<Link>(io_.get_executor(), link_settings_, what.name, what.is_local, std::move(events)));
    host.link = host.tries.back().get();
    host.link->start(*launcher_, watcher_, open.deadline);
  }

  void carry_out(const host_action::SendPart& send) {
    Bootstrap part = options_.job;
    part.node_rank = static_cast<int>(send.host);
    part.node_count = static_cast<int>(hosts_.size());
    part.slots = options_.hosts[send.host].slots;
    part.coordinators = coordinators_;
    part.runs_coordinator = send.host == machine_.coordinator();
    part.first_round_nodes = send.first_round_nodes;
    if (part.runs_coordinator)
      part.coordinators = {{all_are_loopback() ? "127.0.0.1" : "0.0.0.0", options_.coordinator_port}};
    part.reads_input = reads_input(send.host);
    part.one_console = logs::Console::same_file(STDOUT_FILENO, STDERR_FILENO);
    WipedString text(options_.secret);
    text += '\n';
    text += encode(part);
    hosts_[send.host].link->send(FrameType::start, text);
  }

  void carry_out(const host_action::SendSignal& send) {
    hosts_[send.host].link->send(FrameType::signal, signal_payload(send.signal, send.at_once));
  }
  void carry_out(const host_action::SendOver& send) { hosts_[send.host].link->send(FrameType::over, {}); }
  void carry_out(const host_action::KillLink& kill) { hosts_[kill.host].link->kill(); }
  void carry_out(const host_action::KillLinks& /*kill*/) { for_each_link(&Link::kill); }
  void carry_out(const host_action::CloseLinks& /*close*/) { for_each_link(&Link::close_input); }
  void carry_out(const host_action::Suspend& suspend) {
    time_limit_.set_paused(suspend.still);
    context_.shared->set_suspended(suspend.still);
  }
  void carry_out(const host_action::StartTimeLimit& /*start*/) {
    if (!options_.timeout) return;
    // The hosts stop a job whose time is up. Unless it has gone well, a console that takes nothing is given up then.
    time_limit_.set(Clock::now() + *options_.timeout, [this] {
      console_.read_ahead([this] {
        if (machine_.state() != HostsState::over || machine_.exit_code() != 0) console_.bound_wait();
      });
    });
  }
  void carry_out(const host_action::ReadInput& /*read*/) { request_input(); }
  void carry_out(const host_action::StopInput& /*stop*/) { input_.close(); }
  void carry_out(const host_action::ForgetSecret& /*forget*/) { wipe(options_.secret); }
  void carry_out(const host_action::BoundConsole& /*bound*/) { console_.bound_wait(); }
  void carry_out(const host_action::SendQuestion& send) {
    hosts_[send.host].link->send(FrameType::ask, numbered(send.question, questions_.at(send.question).request));
  }
  void carry_out(const host_action::RefuseQuestion& refuse) {
    questions_.extract(refuse.question).mapped().reply(job_socket::error_reply(refuse.why));
  }
  void carry_out(const host_action::Say& what) { say(what.level, what.text); }
  /// The loop ends when the console has taken all.
  void carry_out(const host_action::Finish& finish) {
    ping_.cancel();
    console_.flush();
    only_console_is_left_ = true;
    if (finish.at_once || console_.is_empty()) io_.stop();
  }

  void for_each_link(void (Link::*action)()) {
    for (const Host& host : hosts_) {
      if (host.link) (host.link->*action)();
    }
  }

  void ping() {
    for (const Host& host : hosts_) {
      if (host.link) host.link->send(FrameType::alive, {});
    }
    ping_.set(Clock::now() + ping_interval(), [this] { ping(); });
  }

  /// Whether the coordinator can listen on the loopback only.
  [[nodiscard]] bool all_are_loopback() const {
    return std::all_of(options_.hosts.begin(), options_.hosts.end(), [](const HeadHost& host) {
      const std::string name = without_user(host.name);
      return name == "localhost" || name == "::1" || name.starts_with("127.");
    });
  }

  // ---- frames

  void on_frame(std::uint32_t index, const Frame& frame) {
    Host& host = hosts_[index];
    if (machine_.host(index) == HostState::ended) return;
    const bool is_coordinator = index == machine_.coordinator();
    switch (frame.type) {
      case FrameType::hello:
        if (!frame.payload.empty()) host.addresses = split(frame.payload, ' ');
        if (is_throttled_) host.link->pause(true);
        return step(host_event::Ready{index});
      case FrameType::worker: return HostConsole::add_worker(host.lines, frame.payload);
      case FrameType::piece: return console_.show_piece(host.lines, frame.payload);
      case FrameType::out: return console_.show(host.lines, HostConsole::Stream::out, frame.payload);
      case FrameType::err: return console_.show(host.lines, HostConsole::Stream::err, frame.payload);
      case FrameType::events:
        if (is_coordinator) show_events(frame.payload);
        return;
      case FrameType::report:
        if (is_coordinator) add_report(frame.payload);
        return;
      case FrameType::listening:
        if (is_coordinator) on_listening(index, frame.payload);
        return;
      case FrameType::in_round: return step(host_event::InRound{index});
      case FrameType::input_taken: return on_input_taken(host, frame.payload);
      case FrameType::answer: return on_answer(index, frame.payload);
      case FrameType::ended: {
        console_.finish(host.lines);
        const auto code = parse_integer(frame.payload, 0, 255);
        return step(host_event::Ended{index, static_cast<int>(code.value_or(exit_codes::launcher_failed))});
      }
      default: break;
    }
  }

  void on_listening(std::uint32_t index, std::string_view payload) {
    const auto number = parse_integer(payload, 1, 65535);
    if (!number || !coordinators_.empty()) return;
    const auto port = static_cast<std::uint16_t>(*number);
    for (const std::string& address : hosts_[index].addresses) coordinators_.push_back({address, port});
    coordinators_.push_back({without_user(options_.hosts[index].name), port});
    step(host_event::Listening{index});
  }

  void show_events(std::string_view lines) {
    if (!lines.empty() && options_.on_events) options_.on_events(lines);
    if (lines.empty()) say(Level::warning, "--events: lines were lost while the output of the job had to wait");
  }

  void on_console_change() {
    if (only_console_is_left_ && console_.is_empty()) io_.stop();
    const bool congested = console_.is_congested();
    if (std::exchange(is_throttled_, congested) == congested) return;
    for (const Host& host : hosts_) {
      if (host.link) host.link->pause(congested);
    }
  }

  // ---- `ddrun stacks`

  void answer_client(const job_socket::Request& request, const job_socket::Server::Reply& reply) {
    if (request.question == job_socket::Request::Question::job) return reply(facts_);
    questions_[++last_question_] = {request.line, reply};
    step(host_event::Asked{last_question_});
  }

  void on_answer(std::uint32_t index, std::string_view payload) {
    const auto [number, part] = decode_numbered(payload);
    const auto found = questions_.find(number);
    if (found == questions_.end()) return;
    std::string& text = found->second.text;
    const bool begins = text.empty();
    text += part;
    const bool is_complete = part.empty() || text.size() > job_socket::max_reply_bytes;
    if (is_complete) {
      // The reply is one line.
      if (text.ends_with('\n')) text.pop_back();
      else text = job_socket::error_reply(concat("host ", options_.hosts[index].name, " broke off its answer"));
      found->second.reply(std::move(text));
      questions_.erase(found);
    }
    if (begins || is_complete) step(host_event::Answered{number, is_complete});
  }

  // ---- report

  /// Empty: complete.
  void add_report(std::string_view part) {
    if (!part.empty()) report_ += part;
    else report_is_complete_ = true;
  }

  [[nodiscard]] bool write_report() {
    if (!options_.on_report) return true;
    if (!report_is_complete_) {
      say(Level::warning, concat("no report is written, as host ",
                                 options_.hosts[machine_.coordinator().value_or(0)].name, " has not sent it"));
      return true;
    }
    const auto written = options_.on_report(report_);
    if (!written) say_error(written.error().message);
    return written.has_value();
  }

  // ---- input

  [[nodiscard]] bool reads_input(std::uint32_t index) const {
    if (!context_.stdin_usable || options_.stdin_.kind == StdinSpec::Kind::none) return false;
    return index == machine_.coordinator() || options_.stdin_.kind == StdinSpec::Kind::all;
  }

  void request_input() {
    if (!machine_.coordinator() || !reads_input(*machine_.coordinator())) return;
    for (std::uint32_t i = 0; i < hosts_.size(); ++i) {
      if (reads_input(i) && !machine_.is_over(i) && hosts_[i].input_in_flight >= input_window) return;
    }
    input_.request();
  }

  /// Empty: its end.
  void send_input(std::string_view bytes) {
    for (std::uint32_t i = 0; i < hosts_.size(); ++i) {
      if (!reads_input(i) || !machine_.has_part(i)) continue;
      hosts_[i].link->send(FrameType::input, bytes);
      hosts_[i].input_in_flight += bytes.size();
    }
    if (!bytes.empty()) request_input();
  }

  void on_input_taken(Host& host, std::string_view payload) {
    const auto count = parse_integer(payload, 0, INT64_MAX);
    host.input_in_flight -= std::min(host.input_in_flight, static_cast<std::size_t>(count.value_or(0)));
    request_input();
  }

  HeadOptions options_;
  process::AgentContext& context_;
  boost::asio::io_context io_{1};
  std::unique_ptr<process::Launcher> launcher_;
  process::ChildWatcher watcher_;
  process::SignalReceiver signals_;
  HostConsole console_;
  HostsMachine machine_;
  job_socket::Server socket_;
  std::string facts_;
  std::map<std::uint32_t, Question> questions_;  ///< by number
  std::uint32_t last_question_ = 0;
  Alarm deadline_;  ///< of machine_
  Alarm ping_;
  Alarm time_limit_;
  StandardInput input_;
  LinkSettings link_settings_;
  std::vector<Host> hosts_;
  std::vector<Endpoint> coordinators_;  ///< empty until the coordinator listens
  std::string report_;
  bool report_is_complete_ = false;
  bool is_throttled_ = false;
  bool only_console_is_left_ = false;
};

}  // namespace

int run_head(HeadOptions options, process::AgentContext& context) { return Head(std::move(options), context).run(); }

std::string describe_head(const HeadOptions& options) {
  std::string text = concat("would start ddrun on ", counted(static_cast<long long>(options.hosts.size()), "host"),
                            " by ", options.ssh, ", in ", shell_quote(options.job.directory), ":\n");
  for (std::size_t i = 0; i < options.hosts.size(); ++i) {
    text += concat("  node rank ", i, ": ", options.hosts[i].name);
    if (options.hosts[i].slots > 0) text += concat(", ", counted(options.hosts[i].slots, "slot"));
    if (options.hosts[i].is_local) text += ", here";
    text += i == 0 && options.hosts.size() > 1 ? ", coordinator\n" : "\n";
  }
  text += "\neach as:\n  ddrun";
  for (const auto& arg : options.job.args) text += " " + shell_quote(arg);
  text += "\n";
  for (const auto& variable : options.job.variables)
    text += concat("  ", variable.first, "=", shell_quote(variable.second), "\n");
  return text;
}

}  // namespace ddrun::remote
