#include "link.hpp"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <boost/asio/post.hpp>

#include "ddrun/base/messages.hpp"
#include "ddrun/base/proc.hpp"
#include "ddrun/base/text.hpp"
#include "remote_command.hpp"

namespace ddrun::remote {

namespace {

/// Limit for a login shell's output before ddrun's marker.
constexpr std::size_t max_greeting_bytes = std::size_t{1} << 20U;
constexpr std::size_t max_error_bytes = 4096;
constexpr std::size_t copy_chunk_bytes = std::size_t{256} << 10U;

/// This executable, even if its file was removed or replaced.
constexpr const char* own_file = "/proc/self/exe";

/// Limit for a background ssh process that keeps the pipes open.
constexpr std::chrono::seconds output_limit{2};

std::string one_line(std::string_view text) {
  std::string line;
  for (const char c : trim(text)) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '\n') line += "; ";
    else if (byte >= 0x20 && byte != 0x7f) line += c;
  }
  return line;
}

std::string program_path(const std::string& name) {
  std::string found = name.find('/') == std::string::npos ? find_in_path(name) : name;
  return found.empty() ? name : found;
}

}  // namespace

Link::Link(boost::asio::any_io_executor executor, const LinkSettings& settings, std::string host, bool is_local,
           Events events)
    : executor_(executor),
      settings_(settings),
      host_(std::move(host)),
      is_local_(is_local),
      events_(std::move(events)),
      to_host_(executor),
      from_host_(executor),
      errors_from_host_(executor),
      timer_(executor),
      silence_(executor) {}

void Link::start(process::Launcher& launcher, process::ChildWatcher& watcher, Clock::time_point deadline) {
  struct stat info {};
  if (::stat(own_file, &info) != 0) return disconnect("cannot find its own program");
  std::vector<std::string> command = settings_.ssh;
  // A remote terminal would corrupt frames: disable it regardless of the user's ssh configuration.
  if (is_openssh(command)) command.insert(command.begin() + 1, "-T");
  if (is_local_) command = {"/bin/sh", "-c"};
  else command.push_back(host_);
  command.push_back(remote_command(settings_.build_id, settings_.program, static_cast<std::uint64_t>(info.st_size),
                                   settings_.start_limit));

  auto in = make_pipe();
  auto out = make_pipe();
  auto err = make_pipe();
  if (!in || !out || !err) return disconnect("there are no descriptors left");
  std::vector<char*> argv;
  argv.reserve(command.size() + 1);
  for (auto& word : command) argv.push_back(word.data());
  argv.push_back(nullptr);
  const std::string program = program_path(command[0]);
  process::SpawnPlan plan;
  plan.program = program.c_str();
  plan.argv = argv.data();
  plan.environment = environ;
  plan.standard_in = in->read.get();
  plan.standard_out = out->write.get();
  plan.standard_err = err->write.get();
  auto spawned = launcher.spawn(plan);
  if (!spawned) return disconnect(concat("cannot start ", command[0], ": ", spawned.error().message));
  child_ = std::move(*spawned);
  watcher.watch(child_->pid, child_->pidfd.get());

  to_host_.on_empty([this] {
    if (phase_ == Phase::copying) copy_more();
  });
  to_host_.open(std::move(in->write));
  from_host_.open(
      std::move(out->read), [this](std::string_view bytes) { handle_bytes(bytes); },
      [this] {
        output_ended_ = true;
        finish_if_over();
      });
  errors_from_host_.open(
      std::move(err->read), [this](std::string_view bytes) { handle_errors(bytes); }, [] {});
  timer_.expires_at(deadline);
  timer_.async_wait([this](const boost::system::error_code& ec) {
    if (ec || phase_ == Phase::frames || phase_ == Phase::over) return;
    disconnect(concat("no answer within ", format_duration(settings_.start_limit)));
  });
}

void Link::disconnect(std::string why) {
  if (phase_ == Phase::over) return;
  disconnect_reason_ = std::move(why);
  kill();
  boost::asio::post(executor_, [this, text = end()] { events_.on_end(text); });
}

std::string Link::end() {
  std::string why = describe_end();
  phase_ = Phase::over;
  to_host_.close();
  timer_.cancel();
  silence_.cancel();
  return why;
}

void Link::handle_bytes(std::string_view bytes) {
  last_received_ = Clock::now();
  switch (phase_) {
    case Phase::greeting:
    case Phase::copying:
      greeting_ += bytes;
      handle_greeting();
      break;
    case Phase::frames: handle_frames(bytes); break;
    case Phase::over: break;
  }
}

void Link::handle_greeting() {
  if (const std::string marker = copy_marker(settings_.build_id); phase_ == Phase::greeting) {
    if (const auto at = greeting_.find(marker); at != std::string::npos) {
      greeting_.erase(0, at + marker.size());
      begin_copy();
    }
  }
  const std::string marker = frames_marker(settings_.build_id);
  if (const auto at = greeting_.find(marker); at != std::string::npos && phase_ != Phase::over) {
    const std::string rest = greeting_.substr(at + marker.size());
    std::string().swap(greeting_);
    phase_ = Phase::frames;
    was_ready_ = true;
    program_.reset();
    timer_.cancel();
    arm_silence_timer();
    if (!rest.empty()) handle_frames(rest);
  } else if (greeting_.size() > max_greeting_bytes) {
    disconnect("its login shell writes without end");
  }
}

void Link::handle_frames(std::string_view bytes) {
  const auto hand_out = [this](const Frame& frame) {
    if (phase_ == Phase::frames) events_.on_frame(frame);
  };
  if (auto read = frames_.feed(bytes, hand_out); !read) {
    disconnect(concat("what came from there is not what ddrun sends: ", read.error().message));
  }
}

void Link::begin_copy() {
  phase_ = Phase::copying;
  was_copied_ = true;
  program_ = UniqueFd(::open(own_file, O_RDONLY | O_CLOEXEC));
  if (!program_) return disconnect("cannot read its own program");
  say(Level::info, concat("copying ddrun to ", host_));
  copy_more();
}

void Link::copy_more() {
  std::string chunk(copy_chunk_bytes, '\0');
  while (program_ && to_host_.is_open() && to_host_.queued() == 0) {
    const ssize_t n = ::read(program_.get(), chunk.data(), chunk.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return disconnect("cannot read its own program");
    if (n == 0) program_.reset();
    else to_host_.write({chunk.data(), static_cast<std::size_t>(n)});
  }
}

void Link::handle_errors(std::string_view bytes) {
  errors_ += bytes;
  if (errors_.size() > max_error_bytes) errors_.erase(0, errors_.size() - max_error_bytes);
}

void Link::pause(bool paused) {
  if (phase_ != Phase::frames) return;
  paused_ = paused;
  last_received_ = Clock::now();
  from_host_.pause(paused);
}

/// Detects a host that vanished: ssh may take 15 minutes to notice.
void Link::arm_silence_timer() {
  silence_.expires_at((paused_ ? Clock::now() : last_received_) + silence_timeout());
  silence_.async_wait([this](const boost::system::error_code& ec) {
    if (ec || phase_ != Phase::frames) return;
    if (paused_ || Clock::now() < last_received_ + silence_timeout()) return arm_silence_timer();
    disconnect(concat("nothing was heard from it for ", silence_timeout().count(), " s"));
  });
}

void Link::send(FrameType type, std::string_view payload) {
  if (phase_ != Phase::frames) return;
  WipedString bytes;
  append_frame(bytes, type, payload);
  to_host_.write(bytes);
}

void Link::close_input() {
  if (phase_ == Phase::frames) to_host_.finish();
  else kill();
}

void Link::kill() {
  // The pid is valid until the child is reaped.
  if (child_ && !status_) ::kill(child_->pid, SIGKILL);
}

bool Link::child_ended(const process::ChildEnd& end) {
  if (!child_ || status_ || end.pid != child_->pid) return false;
  status_ = end.status;
  child_->pidfd = {};
  errors_from_host_.drain();
  if (!output_ended_) {
    timer_.expires_after(output_limit);
    timer_.async_wait([this](const boost::system::error_code& ec) {
      if (ec) return;
      from_host_.drain();
      output_ended_ = true;
      finish_if_over();
    });
  }
  finish_if_over();
  return true;
}

void Link::finish_if_over() {
  if (!status_ || !output_ended_ || phase_ == Phase::over) return;
  events_.on_end(end());
}

bool Link::was_closed_by_proxy() const {
  const bool nothing_came = !was_ready_ && !was_copied_ && greeting_.empty();
  return nothing_came && !is_local_ && disconnect_reason_.empty() && closed_by_proxy(errors_);
}

std::string Link::describe_end() const {
  std::string detail = disconnect_reason_;
  const std::string errors = one_line(errors_);
  if (detail.empty() && !errors.empty()) detail = errors;
  else if (!errors.empty()) detail += concat(" (", errors, ")");
  if (detail.empty() && status_) detail = concat(is_local_ ? "sh" : settings_.ssh[0], " ", describe(*status_));
  if (was_ready_) return concat("lost the connection to host ", host_, ": ", detail);
  if (!was_copied_) {
    // A key that has changed is not to be accepted blindly: ssh's own text says more.
    const bool unknown_key = errors.find("Host key verification failed") != std::string::npos &&
                             errors.find("HAS CHANGED") == std::string::npos;
    const bool has_command = errors.find("command-line and remote command") != std::string::npos;
    if ((unknown_key || has_command) && detail.ends_with('.')) detail.pop_back();
    std::vector<std::string> words;
    for (const std::string& word : settings_.ssh) words.push_back(shell_quote(word));
    const std::string ssh = join(words, " ");
    const std::string how = unknown_key   ? concat("; run '", ssh, " ", host_, "' once to accept its key")
                            : has_command ? concat("; write --ssh=", shell_quote(ssh + " -o RemoteCommand=none"))
                                          : "";
    return concat("cannot start ddrun on host ", host_, ": ", detail, how);
  }
  std::string text = concat("cannot run a copy of ddrun on host ", host_, ": ", detail);
  if (!settings_.portable && errors.find("shared librar") != std::string::npos) {
    text += "; this ddrun needs shared libraries: install the static one, or the same build there";
  }
  return text;
}

}  // namespace ddrun::remote
