#include "ddrun/remote/relay.hpp"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <boost/asio/io_context.hpp>
#include <deque>
#include <map>
#include <optional>

#include "ddrun/base/address.hpp"
#include "ddrun/base/alarm.hpp"
#include "ddrun/base/byte_pipe.hpp"
#include "ddrun/base/environment.hpp"
#include "ddrun/base/exit_status.hpp"
#include "ddrun/base/messages.hpp"
#include "ddrun/base/proc.hpp"
#include "ddrun/base/result.hpp"
#include "ddrun/base/shutdown_timeouts.hpp"
#include "ddrun/base/text.hpp"
#include "ddrun/job_socket/job_socket.hpp"
#include "ddrun/process/child_watcher.hpp"
#include "ddrun/process/guard.hpp"
#include "ddrun/process/signals.hpp"
#include "protocol.hpp"
#include "remote_command.hpp"

namespace ddrun::remote {

namespace {

/// High-water mark for the connection's queue: above it output is paused.
constexpr std::size_t output_high = std::size_t{4} << 20U;
/// Limit above which events are dropped: their writer must never block.
constexpr std::size_t events_limit = output_high + (std::size_t{4} << 20U);
/// Of the queue, above which no reply to a question is read: output goes first.
constexpr std::size_t answers_high = std::size_t{256} << 10U;
using shutdown::node_margin;
using shutdown::relay_output_limit;

/// Removes the private copy of this executable at the start, so that it cannot be left behind.
void remove_own_copy() {
  const std::string file = own_program();
  if (file.empty()) return;
  const std::string directory = file.substr(0, file.rfind('/'));
  if (directory.find("/ddrun.") == std::string::npos) return;
  ::unlink(file.c_str());
  ::rmdir(directory.c_str());
}

/// This machine's addresses in the order in which other hosts should try them: the one that ssh connected to (third
/// word of `ssh_connection`, the value of SSH_CONNECTION, may be empty), those of its interfaces, loopback last.
std::vector<std::string> reachable_addresses(std::string_view ssh_connection) {
  std::vector<IpAddress> found;
  const auto words = split(ssh_connection, ' ');
  if (words.size() == 4) {
    if (const auto reached = IpAddress::parse(words[2]); reached && !reached->is_link_local())
      found.push_back(*reached);
  }
  for (const IpAddress& own : own_addresses()) {
    if (!own.is_link_local() && std::find(found.begin(), found.end(), own) == found.end()) found.push_back(own);
  }
  std::stable_partition(found.begin(), found.end(), [](const IpAddress& address) { return !address.is_loopback(); });
  std::vector<std::string> texts;
  for (const IpAddress& address : found) texts.push_back(address.text());
  return texts;
}

/// What the child writes, in the order in which the relay opens it.
enum class Output { out_frames, err_frames, out, err, events, report };
constexpr std::size_t output_count = 6;

/// The child process that runs this host's part of the job.
struct NodeProcess {
  pid_t pid = -1;
  UniqueFd pidfd;
  UniqueFd input;
  std::array<UniqueFd, output_count> outputs;
  UniqueFd control;  ///< to the child: Bootstrap and secret, each after its size; from the child: frames
};

bool read_all(int fd, char* to, std::size_t size) {
  while (size > 0) {
    const ssize_t n = ::read(fd, to, size);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    to += n;
    size -= static_cast<std::size_t>(n);
  }
  return true;
}

/// Reads a size and a string; nullopt at end-of-file.
std::optional<std::string> read_text(int fd) {
  std::uint32_t size = 0;
  if (!read_all(fd, reinterpret_cast<char*>(&size), sizeof size)) return std::nullopt;  // NOLINT: from this machine
  std::string text(size, '\0');
  if (!read_all(fd, text.data(), text.size())) return std::nullopt;
  return text;
}

/// In the child: blocks until its part of the job arrives; nullopt if the job ended before.
std::optional<Bootstrap> read_bootstrap(int fd) {
  const auto text = read_text(fd);
  if (!text) return std::nullopt;
  auto bootstrap = decode_bootstrap(*text);
  if (!bootstrap) {
    say_error(bootstrap.error().message);
    return std::nullopt;
  }
  return std::move(*bootstrap);
}

// The signal for the job's ddrun when the connection to the head is lost. With several hosts SIGKILL: a ddrun whose
// guard is killed stops its workers and reports nothing, so the others see a lost node instead of an abort by the user.
int signal_on_lost_connection(const Bootstrap& part) { return part.node_count > 1 ? SIGKILL : part.ending_signal; }

/// Forks the child, which waits for its Bootstrap and ends without one or with the relay. Call first in this process.
/// `node_main` runs in the child; its result is the exit code. Fails with `unavailable`.
Result<NodeProcess> fork_node(const std::function<int(const Bootstrap&, const HeadConnection&)>& node_main) {
  Pipe in = TRY(make_pipe());
  std::array<Pipe, output_count> outputs;
  for (Pipe& output : outputs) output = TRY(make_pipe());
  std::array<int, 2> pair{};
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair.data()) != 0) {
    return fail_errno(Errc::unavailable, "cannot start", errno);
  }
  UniqueFd parent_end(pair[0]);
  UniqueFd child_end(pair[1]);
  const pid_t parent = ::getpid();
  const pid_t child = ::fork();
  if (child < 0) return fail_errno(Errc::unavailable, "cannot start", errno);
  if (child == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (::getppid() != parent) ::_exit(exit_codes::launcher_failed);
    const auto end_of = [&](Output which) -> UniqueFd& { return outputs[static_cast<std::size_t>(which)].write; };
    ::dup2(in.read.get(), STDIN_FILENO);
    ::dup2(end_of(Output::out).get(), STDOUT_FILENO);
    ::dup2(end_of(Output::err).get(), STDERR_FILENO);
    for (UniqueFd* fd : {&in.read, &in.write, &parent_end, &end_of(Output::out), &end_of(Output::err)}) fd->reset();
    for (Pipe& output : outputs) output.read.reset();
    // Named by their paths, as descriptors that a user has opened; workers inherit no descriptor.
    for (const Output which : {Output::events, Output::report}) ::fcntl(end_of(which).get(), F_SETFD, 0);
    const auto bootstrap = read_bootstrap(child_end.get());
    if (bootstrap) ::prctl(PR_SET_PDEATHSIG, signal_on_lost_connection(*bootstrap));
    if (bootstrap && bootstrap->one_console) {
      ::dup2(STDOUT_FILENO, STDERR_FILENO);
      end_of(Output::err_frames).reset();
    }
    const HeadConnection head(std::move(child_end), std::move(end_of(Output::events)),
                              std::move(end_of(Output::report)),
                              {std::move(end_of(Output::out_frames)), std::move(end_of(Output::err_frames))});
    ::_exit(bootstrap ? node_main(*bootstrap, head) : exit_codes::launcher_failed);
  }
  NodeProcess node{child,
                   UniqueFd(static_cast<int>(::syscall(SYS_pidfd_open, child, 0))),
                   std::move(in.write),
                   {},
                   std::move(parent_end)};
  for (std::size_t i = 0; i < output_count; ++i) node.outputs[i] = std::move(outputs[i].read);
  return node;
}

/// In the child.
void send_to_relay(const UniqueFd& control, FrameType type, std::string_view payload) {
  WipedString bytes;
  append_frame(bytes, type, payload);
  write_all(control.get(), bytes.data(), bytes.size());
}

/// --events and --report on their way.
struct Files {
  std::string partial_event;
  bool events_lost = false;
  bool has_report = false;
};

/// Both directions, with frames at least in one.
struct Channel {
  explicit Channel(const boost::asio::any_io_executor& executor) : to(executor), from(executor) {}
  ByteWriter to;
  ByteReader from;
  FrameReader frames;
};

class Relay {
 public:
  Relay(const RelayOptions& options, NodeProcess node)
      : options_(options),
        node_(std::move(node)),
        watcher_(
            io_.get_executor(), [this](const process::ChildEnd& end) { child_ended(end); }, [] {}),
        signals_(io_.get_executor(), [this](const process::SignalEvent& event) { handle_signal(event); }),
        head_(io_.get_executor()),
        input_(io_.get_executor()),
        control_(io_.get_executor()),
        heartbeat_(io_.get_executor()),
        silence_(io_.get_executor()),
        end_timer_(io_.get_executor()) {
    for (std::size_t i = 0; i < output_count; ++i) outputs_.emplace_back(io_.get_executor());
  }

  int run() {
    if (auto ready = set_up(); !ready) {
      say_error(ready.error().message);
      return exit_codes::launcher_failed;
    }
    io_.run();
    return code_;
  }

 private:
  enum class State {
    waiting,   ///< for this host's part of the job
    started,   ///< its ddrun has the part
    in_round,  ///< and takes part in a round
    ended,     ///< its ddrun has ended
    complete,  ///< and the head has all, or is lost
  };
  struct FramePipe {
    FrameReader reader;
    bool has_come = false;
  };

  Result<void> set_up() {
    TRY(watcher_.open());
    TRY(signals_.open());
    watcher_.watch(node_.pid, node_.pidfd.get());

    head_.to.on_broken([this] { on_head_lost(); });
    head_.to.on_empty([this] { pause_output(false); });
    auto out = duplicate(STDOUT_FILENO);
    auto in = duplicate(STDIN_FILENO);
    auto control = duplicate(node_.control.get());
    if (!out || !in || !control) return fail(Errc::unavailable, "there are no descriptors left");
    head_.to.open(std::move(*out));
    head_.from.open(
        std::move(*in), [this](std::string_view bytes) { handle_bytes(bytes); }, [this] { on_head_lost(); });
    for (std::size_t i = 0; i < output_count; ++i) {
      const auto which = static_cast<Output>(i);
      outputs_[i].open(
          std::move(node_.outputs[i]), [this, which](std::string_view bytes) { forward(which, bytes); },
          [this, which] { on_output_end(which); });
    }
    input_.on_empty([this] { acknowledge_input(); });
    input_.open(std::move(node_.input));
    control_.to.open(std::move(node_.control));
    control_.from.open(
        std::move(*control), [this](std::string_view bytes) { handle_node_bytes(bytes); }, [] {});
    // Last, as the head may be gone already.
    head_.to.write(frames_marker(options_.build_id));
    const char* connection = ::getenv("SSH_CONNECTION");
    send_to_head(FrameType::hello, join(reachable_addresses(connection != nullptr ? connection : ""), " "));
    watch_silence();
    send_heartbeats();
    return {};
  }

  [[nodiscard]] ByteReader& output(Output which) { return outputs_[static_cast<std::size_t>(which)]; }
  [[nodiscard]] bool has_ended() const { return state_ >= State::ended; }

  // ---- home

  void send_to_head(FrameType type, std::string_view payload) {
    WipedString bytes;
    append_frame(bytes, type, payload);
    write_to_head(bytes);
  }

  void write_to_head(std::string_view frames) {
    head_.to.write(frames);
    if (head_.to.queued() > output_high) pause_output(true);
  }

  void forward(Output which, std::string_view bytes) {
    switch (which) {
      case Output::out_frames: return forward_frames(frame_pipes_[0], Output::out, bytes);
      case Output::err_frames: return forward_frames(frame_pipes_[1], Output::err, bytes);
      case Output::out: return forward_text(FrameType::out, bytes);
      case Output::err: return forward_text(FrameType::err, bytes);
      case Output::events: return send_events(bytes);
      case Output::report: files_.has_report = true; return send_to_head(FrameType::report, bytes);
    }
  }

  /// Its ddrun writes frames as long as it runs workers, and text before the first and after the last one.
  void forward_frames(FramePipe& from, Output text, std::string_view bytes) {
    if (!from.has_come) output(text).catch_up();
    from.has_come = true;
    if (const auto frames = from.reader.whole(bytes); frames && !frames->empty()) write_to_head(*frames);
  }

  void forward_text(FrameType type, std::string_view bytes) {
    if (frame_pipes_[0].has_come) output(Output::out_frames).catch_up();
    if (frame_pipes_[1].has_come) output(Output::err_frames).catch_up();
    send_to_head(type, bytes);
  }

  void send_events(std::string_view bytes) {
    files_.partial_event += bytes;
    const std::size_t end = files_.partial_event.rfind('\n') + 1;
    if (end == 0) return;
    if (head_.to.queued() < events_limit) {
      send_to_head(FrameType::events, std::string_view(files_.partial_event).substr(0, end));
    } else if (!std::exchange(files_.events_lost, true)) {
      send_to_head(FrameType::events, {});
    }
    files_.partial_event.erase(0, end);
  }

  void on_output_end(Output which) {
    if (which == Output::report && files_.has_report) send_to_head(FrameType::report, {});
    finish_if_complete();
  }

  void pause_output(bool paused) {
    for (const Output which : {Output::out_frames, Output::err_frames, Output::out, Output::err, Output::report}) {
      output(which).pause(paused);
    }
    pause_answers(paused);
  }

  void pause_answers(bool paused) {
    for (auto& [number, answer] : answers_) answer.pause(paused);
  }

  void handle_bytes(std::string_view bytes) {
    if (state_ != State::complete) watch_silence();
    if (!head_.frames.feed(bytes, [this](const Frame& frame) { handle_frame(frame); })) on_head_lost();
  }

  void send_heartbeats() {
    heartbeat_.set(Clock::now() + ping_interval(), [this] {
      if (head_is_lost_) return;
      // Queued data serves as heartbeat, too.
      if (head_.to.queued() == 0) send_to_head(FrameType::alive, {});
      send_heartbeats();
    });
  }

  void watch_silence() {
    silence_.set(Clock::now() + silence_timeout(), [this] { on_head_lost(); });
  }

  void handle_frame(const Frame& frame) {
    switch (frame.type) {
      case FrameType::start: start_node(frame.payload); break;
      case FrameType::signal:
        if (!frame.payload.empty()) {
          signal_node(static_cast<unsigned char>(frame.payload.front()), frame.payload.size() > 1);
        }
        break;
      case FrameType::over:
        if (state_ >= State::in_round) break;
        // Its output so far is shown, but no message about this stop.
        for (const Output which : {Output::out_frames, Output::err_frames, Output::out, Output::err}) {
          output(which).drain();
        }
        signal_node(bootstrap_ ? bootstrap_->ending_signal : SIGTERM);
        break;
      case FrameType::input: handle_input(frame.payload); break;
      case FrameType::ask: ask_node(frame.payload); break;
      default: break;
    }
  }

  /// The head or the connection is lost: stop the job.
  void on_head_lost() {
    if (std::exchange(head_is_lost_, true)) return;
    silence_.cancel();
    head_.from.drain();
    head_.to.close();
    // Output is discarded from now on, but must not block a worker.
    pause_output(false);
    input_.close();
    signal_node(bootstrap_ ? signal_on_lost_connection(*bootstrap_) : SIGTERM);
    if (!has_ended()) {
      end_timer_.set(Clock::now() + (bootstrap_ ? bootstrap_->grace : Milliseconds(0)) + node_margin,
                     [this] { ::kill(node_.pid, SIGKILL); });  // its sweeper kills the rest
    }
    if (state_ == State::complete) io_.stop();
  }

  // ---- the job's ddrun

  void start_node(std::string_view payload) {
    if (state_ != State::waiting) return;
    const std::size_t end = payload.find('\n');
    if (end == std::string_view::npos) return;
    auto bootstrap = decode_bootstrap(payload.substr(end + 1));
    if (!bootstrap) return;
    // In this order, so that only the process that calls read_secret() has the secret.
    send_to_node(payload.substr(end + 1));
    send_to_node(payload.substr(0, end));
    if (!bootstrap->reads_input) input_.finish();
    bootstrap_ = std::move(*bootstrap);
    state_ = State::started;
  }

  void send_to_node(std::string_view text) {
    const auto size = static_cast<std::uint32_t>(text.size());
    control_.to.write({reinterpret_cast<const char*>(&size), sizeof size});  // NOLINT: stays on this machine
    control_.to.write(text);
  }

  /// `at_once`: a repetition that forces SIGKILL. Without a part of the job any signal ends this host: before, the head
  /// sends none but those that end the job.
  void signal_node(int signal, bool at_once = false) {
    if (has_ended()) return;
    if (!bootstrap_) {
      // The child still waits for its part: end-of-file ends it.
      control_.to.close();
      return control_.from.drain();
    }
    sigval mark{};
    mark.sival_int = at_once ? process::at_once_mark : ::getpid();
    // The head is suspended and will send SIGCONT. (A guard treats a queued signal of its parent that way.)
    if (signal == SIGSTOP) {
      ::sigqueue(node_.pid, SIGTSTP, mark);
      return;
    }
    if (signal == SIGTSTP) ::kill(node_.pid, signal);
    else ::sigqueue(node_.pid, signal, mark);
    ::kill(node_.pid, SIGCONT);
  }

  void handle_input(std::string_view bytes) {
    if (bytes.empty()) return input_.finish();
    unacknowledged_ += bytes.size();
    input_.write(bytes);
    // Also if no worker reads any more: the data is then dropped.
    if (input_.queued() == 0) acknowledge_input();
  }

  void acknowledge_input() {
    if (unacknowledged_ > 0) send_to_head(FrameType::input_taken, std::to_string(unacknowledged_));
    unacknowledged_ = 0;
  }

  void ask_node(std::string_view question) {
    const auto [number, request] = decode_numbered(question);
    const auto send_part = [this, number = number](std::string_view part) {
      send_to_head(FrameType::answer, numbered(number, part));
      if (head_.to.queued() > answers_high) pause_answers(true);
    };
    auto connection = answers_.size() < job_socket::Server::max_clients
                          ? job_socket::connect_to_descendant(node_.pid, variable("XDG_RUNTIME_DIR").value_or(""))
                          : fail(Errc::unavailable, "too many questions at once; ask again");
    if (!connection) {
      send_part(job_socket::error_reply(connection.error().message) + "\n");
      return send_part({});
    }
    // The socket's buffer is empty and has room for it.
    const std::string line = concat(request, "\n");
    (void)::send(connection->get(), line.data(), line.size(), MSG_NOSIGNAL);
    const auto end = [this, send_part, number = number] {
      send_part({});
      answers_.erase(answers_.find(number));
    };
    answers_.try_emplace(number, io_.get_executor()).first->second.open(std::move(*connection), send_part, end);
  }

  void handle_node_bytes(std::string_view bytes) {
    (void)control_.frames.feed(bytes, [this](const Frame& frame) {
      if (frame.type == FrameType::in_round && state_ == State::started) state_ = State::in_round;
      send_to_head(frame.type, frame.payload);
    });
  }

  void handle_signal(const process::SignalEvent& event) {
    if (event.signal == SIGCHLD) watcher_.reap(event.sender);
    else if (!bootstrap_ && StopPolicy().ending_signals.count(event.signal) == 0) return;
    else if (event.signal != SIGCONT && event.signal != SIGTSTP && event.signal != SIGWINCH) signal_node(event.signal);
  }

  void child_ended(const process::ChildEnd& end) {
    code_ = shell_code(end.status);
    state_ = State::ended;
    // If its guard was killed, its agent still stops the workers.
    const Milliseconds limit = head_is_lost_ && bootstrap_ ? bootstrap_->grace + node_margin : relay_output_limit;
    end_timer_.set(Clock::now() + limit, [this] {
      for (ByteReader& output : outputs_) output.drain();
      finish_if_complete();
    });
    finish_if_complete();
  }

  void finish_if_complete() {
    const auto is_open = [](const ByteReader& output) { return output.is_open(); };
    if (state_ != State::ended || std::any_of(outputs_.begin(), outputs_.end(), is_open)) return;
    state_ = State::complete;
    end_timer_.cancel();
    send_to_head(FrameType::ended, std::to_string(code_));
    // Flush the queue first, with a limit.
    silence_.set(Clock::now() + relay_output_limit, [this] { io_.stop(); });
    head_.to.on_empty([this] { io_.stop(); });
    if (head_is_lost_ || head_.to.queued() == 0) io_.stop();
  }

  const RelayOptions& options_;
  NodeProcess node_;
  boost::asio::io_context io_{1};
  process::ChildWatcher watcher_;
  process::SignalSource signals_;
  Channel head_;
  ByteWriter input_;
  std::size_t unacknowledged_ = 0;  ///< bytes of it
  std::deque<ByteReader> outputs_;  ///< by Output
  std::array<FramePipe, 2> frame_pipes_;
  Files files_;
  Channel control_;                              ///< NodeProcess::control
  std::map<std::uint32_t, ByteReader> answers_;  ///< by the number of their question
  Alarm heartbeat_;
  Alarm silence_;
  Alarm end_timer_;
  State state_ = State::waiting;
  bool head_is_lost_ = false;
  std::optional<Bootstrap> bootstrap_;  ///< since State::started
  int code_ = exit_codes::launcher_failed;
};

}  // namespace

void HeadConnection::report_coordinator_port(std::uint16_t port) const {
  send_to_relay(control_, FrameType::listening, std::to_string(port));
}

void HeadConnection::report_round() const { send_to_relay(control_, FrameType::in_round, {}); }

std::string HeadConnection::read_secret() const { return read_text(control_.get()).value_or(""); }

std::string HeadConnection::events_path() const { return concat("/dev/fd/", events_.get()); }
std::string HeadConnection::report_path() const { return concat("/dev/fd/", report_.get()); }
std::pair<int, int> HeadConnection::frames() const {
  return {frames_[0].get(), frames_[1] ? frames_[1].get() : frames_[0].get()};
}

int run_relay(const RelayOptions& options,
              const std::function<int(const Bootstrap&, const HeadConnection&)>& node_main) {
  if (options.private_copy) remove_own_copy();
  // Before the fork: the child must not end by a signal that comes before its guard handles signals.
  process::block_handled_signals();
  auto node = fork_node(node_main);
  if (!node) {
    say_error(node.error().message);
    return exit_codes::launcher_failed;
  }
  ::signal(SIGPIPE, SIG_IGN);
  ::signal(SIGCHLD, SIG_DFL);
  return Relay(options, std::move(*node)).run();
}

}  // namespace ddrun::remote
