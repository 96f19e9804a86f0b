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
#include <boost/asio/steady_timer.hpp>
#include <optional>

#include "ddrun/base/address.hpp"
#include "ddrun/base/byte_pipe.hpp"
#include "ddrun/base/exit_status.hpp"
#include "ddrun/base/messages.hpp"
#include "ddrun/base/proc.hpp"
#include "ddrun/base/result.hpp"
#include "ddrun/base/shutdown_timeouts.hpp"
#include "ddrun/base/text.hpp"
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

/// The child process that runs this host's part of the job.
struct NodeProcess {
  pid_t pid = -1;
  UniqueFd input, output, errors, events, report;
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
  auto in = make_pipe();
  auto out = make_pipe();
  auto err = make_pipe();
  auto events = make_pipe();
  auto report = make_pipe();
  std::array<int, 2> pair{};
  if (!in || !out || !err || !events || !report ||
      ::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair.data()) != 0) {
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
    ::dup2(in->read.get(), STDIN_FILENO);
    ::dup2(out->write.get(), STDOUT_FILENO);
    ::dup2(err->write.get(), STDERR_FILENO);
    for (UniqueFd* fd : {&in->read, &in->write, &out->read, &out->write, &err->read, &err->write, &events->read,
                         &report->read, &parent_end})
      fd->reset();
    // Named by their paths, as descriptors that a user has opened; workers inherit no descriptor.
    for (const UniqueFd* fd : {&events->write, &report->write}) ::fcntl(fd->get(), F_SETFD, 0);
    const auto bootstrap = read_bootstrap(child_end.get());
    if (bootstrap) ::prctl(PR_SET_PDEATHSIG, signal_on_lost_connection(*bootstrap));
    if (bootstrap && bootstrap->one_console) ::dup2(STDOUT_FILENO, STDERR_FILENO);
    const HeadConnection head(std::move(child_end), std::move(events->write), std::move(report->write));
    ::_exit(bootstrap ? node_main(*bootstrap, head) : exit_codes::launcher_failed);
  }
  return NodeProcess{child,
                     std::move(in->write),
                     std::move(out->read),
                     std::move(err->read),
                     std::move(events->read),
                     std::move(report->read),
                     std::move(parent_end)};
}

/// In the child.
void send_to_relay(const UniqueFd& control, FrameType type, std::string_view payload) {
  WipedString bytes;
  append_frame(bytes, type, payload);
  write_all(control.get(), bytes.data(), bytes.size());
}

UniqueFd pidfd_of(pid_t pid) { return UniqueFd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0))); }

class Relay {
 public:
  Relay(const RelayOptions& options, NodeProcess node)
      : options_(options),
        node_(std::move(node)),
        watcher_(
            io_.get_executor(), [this](const process::ChildEnd& end) { child_ended(end); }, [] {}),
        signals_(io_.get_executor(), [this](const process::SignalEvent& event) { handle_signal(event); }),
        from_head_(io_.get_executor()),
        to_head_(io_.get_executor()),
        input_(io_.get_executor()),
        output_(io_.get_executor()),
        errors_(io_.get_executor()),
        events_(io_.get_executor()),
        report_(io_.get_executor()),
        to_node_(io_.get_executor()),
        from_node_(io_.get_executor()),
        heartbeat_timer_(io_),
        silence_(io_),
        end_timer_(io_) {}

  int run() {
    if (auto ready = set_up(); !ready) {
      say_error(ready.error().message);
      return exit_codes::launcher_failed;
    }
    io_.run();
    return code_.value_or(exit_codes::launcher_failed);
  }

 private:
  Result<void> set_up() {
    TRY(watcher_.open());
    TRY(signals_.open());
    pidfd_ = pidfd_of(node_.pid);
    watcher_.watch(node_.pid, pidfd_.get());

    to_head_.on_broken([this] { on_head_lost(); });
    to_head_.on_empty([this] { pause_output(false); });
    auto out = duplicate(STDOUT_FILENO);
    auto in = duplicate(STDIN_FILENO);
    auto control = duplicate(node_.control.get());
    if (!out || !in || !control) return fail(Errc::unavailable, "there are no descriptors left");
    to_head_.open(std::move(*out));
    from_head_.open(
        std::move(*in), [this](std::string_view bytes) { handle_bytes(bytes); }, [this] { on_head_lost(); });
    output_.open(
        std::move(node_.output), [this](std::string_view bytes) { send_to_head(FrameType::out, bytes); },
        [this] { report_end_if_complete(); });
    errors_.open(
        std::move(node_.errors), [this](std::string_view bytes) { send_to_head(FrameType::err, bytes); },
        [this] { report_end_if_complete(); });
    events_.open(
        std::move(node_.events), [this](std::string_view bytes) { send_events(bytes); },
        [this] { report_end_if_complete(); });
    report_.open(
        std::move(node_.report), [this](std::string_view bytes) { send_report(bytes); }, [this] { report_ended(); });
    input_.on_empty([this] { acknowledge_input(); });
    input_.open(std::move(node_.input));
    to_node_.open(std::move(node_.control));
    from_node_.open(
        std::move(*control), [this](std::string_view bytes) { handle_node_bytes(bytes); }, [] {});
    // Last, as the head may be gone already.
    to_head_.write(frames_marker(options_.build_id));
    const char* connection = ::getenv("SSH_CONNECTION");
    send_to_head(FrameType::hello, join(reachable_addresses(connection != nullptr ? connection : ""), " "));
    arm_silence_timer();
    send_heartbeats();
    return {};
  }

  // ---- home

  void send_to_head(FrameType type, std::string_view payload) {
    WipedString bytes;
    append_frame(bytes, type, payload);
    to_head_.write(bytes);
    if (to_head_.queued() > output_high) pause_output(true);
  }

  /// Sends complete lines, so that dropping never splits one.
  void send_events(std::string_view bytes) {
    partial_event_ += bytes;
    const std::size_t end = partial_event_.rfind('\n') + 1;
    if (end == 0) return;
    if (to_head_.queued() < events_limit) {
      send_to_head(FrameType::events, std::string_view(partial_event_).substr(0, end));
    } else if (!events_lost_) {
      events_lost_ = true;
      send_to_head(FrameType::events, {});
    }
    partial_event_.erase(0, end);
  }

  void send_report(std::string_view bytes) {
    has_report_ = true;
    send_to_head(FrameType::report, bytes);
  }

  void report_ended() {
    if (has_report_) send_to_head(FrameType::report, {});
    report_end_if_complete();
  }

  void pause_output(bool paused) {
    output_.pause(paused);
    errors_.pause(paused);
    report_.pause(paused);
  }

  void handle_bytes(std::string_view bytes) {
    arm_silence_timer();
    if (!frames_.feed(bytes, [this](const Frame& frame) { handle_frame(frame); })) on_head_lost();
  }

  void send_heartbeats() {
    heartbeat_timer_.expires_after(ping_interval());
    heartbeat_timer_.async_wait([this](const boost::system::error_code& ec) {
      if (ec || head_lost_) return;
      // Queued data serves as heartbeat, too.
      if (to_head_.queued() == 0) send_to_head(FrameType::alive, {});
      send_heartbeats();
    });
  }

  void arm_silence_timer() {
    silence_.expires_after(silence_timeout());
    silence_.async_wait([this](const boost::system::error_code& ec) {
      if (!ec && Clock::now() >= silence_.expiry()) on_head_lost();
    });
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
        if (in_round_ || code_) break;
        // Its output so far is shown, but no message about this stop.
        output_.drain();
        errors_.drain();
        signal_node(bootstrap_ ? bootstrap_->ending_signal : SIGTERM);
        break;
      case FrameType::input: handle_input(frame.payload); break;
      default: break;
    }
  }

  /// The head or the connection is lost: stop the job.
  void on_head_lost() {
    if (head_lost_) return;
    head_lost_ = true;
    silence_.cancel();
    from_head_.drain();
    to_head_.close();
    // Output is discarded from now on, but must not block a worker.
    pause_output(false);
    input_.close();
    signal_node(bootstrap_ ? signal_on_lost_connection(*bootstrap_) : SIGTERM);
    arm_end_timer((bootstrap_ ? bootstrap_->grace : Milliseconds(0)) + node_margin);
    stop_if_finished();
  }

  void arm_end_timer(std::chrono::milliseconds from_now) {
    end_timer_.expires_after(from_now);
    end_timer_.async_wait([this](const boost::system::error_code& ec) {
      if (!ec && !code_) ::kill(node_.pid, SIGKILL);  // its sweeper kills the rest
    });
  }

  // ---- the job's ddrun

  void start_node(std::string_view payload) {
    if (bootstrap_ || code_) return;
    const std::size_t end = payload.find('\n');
    if (end == std::string_view::npos) return;
    auto bootstrap = decode_bootstrap(payload.substr(end + 1));
    if (!bootstrap) return;
    // In this order, so that only the process that calls read_secret() has the secret.
    send_to_node(payload.substr(end + 1));
    send_to_node(payload.substr(0, end));
    if (!bootstrap->reads_input) input_.finish();
    bootstrap_ = std::move(*bootstrap);
  }

  void send_to_node(std::string_view text) {
    const auto size = static_cast<std::uint32_t>(text.size());
    to_node_.write({reinterpret_cast<const char*>(&size), sizeof size});  // NOLINT: stays on this machine
    to_node_.write(text);
  }

  /// `at_once`: a repetition that forces SIGKILL. Without a part of the job any signal ends this host: before, the head
  /// sends none but those that end the job.
  void signal_node(int signal, bool at_once = false) {
    if (code_) return;
    if (bootstrap_) {
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
    } else {
      // The child still waits for its part: end-of-file ends it.
      to_node_.close();
      from_node_.drain();
    }
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

  void handle_node_bytes(std::string_view bytes) {
    (void)node_frames_.feed(bytes, [this](const Frame& frame) {
      in_round_ = in_round_ || frame.type == FrameType::in_round;
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
    end_timer_.cancel();
    // If its guard was killed, its agent still stops the workers.
    end_timer_.expires_after(head_lost_ && bootstrap_ ? bootstrap_->grace + node_margin : relay_output_limit);
    end_timer_.async_wait([this](const boost::system::error_code& ec) {
      if (ec) return;
      for (ByteReader* from : {&output_, &errors_, &events_, &report_}) from->drain();
      report_end_if_complete();
    });
    report_end_if_complete();
  }

  void report_end_if_complete() {
    if (!code_ || end_reported_) return;
    if (output_.is_open() || errors_.is_open() || events_.is_open() || report_.is_open()) return;
    end_reported_ = true;
    end_timer_.cancel();
    send_to_head(FrameType::ended, std::to_string(*code_));
    stop_if_finished();
  }

  void stop_if_finished() {
    if (!end_reported_) return;
    if (head_lost_) return io_.stop();
    // Flush the queue first, with a limit.
    silence_.expires_after(relay_output_limit);
    silence_.async_wait([this](const boost::system::error_code& ec) {
      if (!ec) io_.stop();
    });
    to_head_.on_empty([this] { io_.stop(); });
    if (to_head_.queued() == 0) io_.stop();
  }

  const RelayOptions& options_;
  NodeProcess node_;
  boost::asio::io_context io_{1};
  process::ChildWatcher watcher_;
  process::SignalSource signals_;
  UniqueFd pidfd_;  ///< of the node's process
  ByteReader from_head_;
  ByteWriter to_head_;
  ByteWriter input_;
  ByteReader output_;
  ByteReader errors_;
  ByteReader events_;
  ByteReader report_;
  ByteWriter to_node_;
  ByteReader from_node_;
  FrameReader frames_;
  FrameReader node_frames_;
  boost::asio::steady_timer heartbeat_timer_;
  boost::asio::steady_timer silence_;
  boost::asio::steady_timer end_timer_;
  std::optional<Bootstrap> bootstrap_;  ///< set once the job has been started
  bool in_round_ = false;
  std::size_t unacknowledged_ = 0;
  std::string partial_event_;
  bool events_lost_ = false;
  bool has_report_ = false;
  std::optional<int> code_;  ///< the job's exit code, once its ddrun has ended
  bool end_reported_ = false;
  bool head_lost_ = false;
};

}  // namespace

void HeadConnection::report_coordinator_port(std::uint16_t port) const {
  send_to_relay(control_, FrameType::listening, std::to_string(port));
}

void HeadConnection::report_round() const { send_to_relay(control_, FrameType::in_round, {}); }

std::string HeadConnection::read_secret() const { return read_text(control_.get()).value_or(""); }

std::string HeadConnection::events_path() const { return concat("/dev/fd/", events_.get()); }
std::string HeadConnection::report_path() const { return concat("/dev/fd/", report_.get()); }

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
