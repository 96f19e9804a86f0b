#include "ddrun/preload/preload_spawner.hpp"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/post.hpp>
#include <cstdlib>

#include "ddrun/base/io_context.hpp"
#include "ddrun/base/messages.hpp"
#include "ddrun/base/proc.hpp"
#include "ddrun/base/text.hpp"
#include "ddrun/helper/run.hpp"
#include "ddrun/process/process_tree.hpp"
#include "server_source.hpp"

namespace ddrun::preload {

namespace {

constexpr const char* loader =
    "import os,socket;control=socket.socket(fileno=os.dup(0));exec(compile(control.recv(1<<20),'<ddrun "
    "--preload>','exec'))";

/// The kernel passes at most 253 descriptors with a message.
constexpr std::size_t max_descriptors = 200;
constexpr std::size_t max_message_bytes = 64 * 1024;
constexpr Milliseconds end_poll_interval{5};
/// For a report of forked workers after another; a fork of a large process takes some ms.
constexpr std::chrono::seconds fork_limit{10};
/// For the standby workers that are started together: until the next one takes its assignment. Once it is over it is
/// over for all of them.
constexpr std::chrono::seconds assignment_limit{10};

/// Both ends are closed on exec.
Result<std::pair<UniqueFd, UniqueFd>> make_socket_pair(int type) {
  int ends[2];
  if (::socketpair(AF_UNIX, type | SOCK_CLOEXEC, 0, ends) != 0) {
    return fail_errno(Errc::unavailable, "cannot make a socket for --preload", errno);
  }
  return std::pair{UniqueFd(ends[0]), UniqueFd(ends[1])};
}

/// Sends what the socket takes of `text`, with the descriptors beside its first byte. Does not block. Returns how much;
/// 0 with errno if none.
std::size_t send_part(int socket, std::string_view text, const std::vector<int>& descriptors) {
  alignas(cmsghdr) char control[CMSG_SPACE(max_descriptors * sizeof(int))] = {};
  iovec part{const_cast<char*>(text.data()), text.size()};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (!descriptors.empty()) {
    const std::size_t bytes = descriptors.size() * sizeof(int);
    message.msg_control = control;
    message.msg_controllen = CMSG_SPACE(bytes);
    cmsghdr* const header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(bytes);
    ::memcpy(CMSG_DATA(header), descriptors.data(), bytes);
  }
  ssize_t sent;
  do {
    sent = ::sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
  } while (sent < 0 && errno == EINTR);
  return sent < 0 ? 0 : static_cast<std::size_t>(sent);
}

/// What a standby worker is sent: the length in 8 bytes, then the fields of README.md.
std::string assignment(const process::SpawnPlan& plan) {
  std::string text(sizeof(std::uint64_t), '\0');
  const auto add = [&](std::string_view field) { text.append(field).push_back('\0'); };
  add(std::to_string(plan.controlling_terminal));
  std::size_t count = 2;  // python -u
  while (plan.argv[count] != nullptr) ++count;
  add(std::to_string(count - 2));
  for (std::size_t i = 2; i < count; ++i) add(plan.argv[i]);
  for (char* const* entry = plan.environment; *entry != nullptr; ++entry) {
    if (::strchr(*entry, '=') > *entry) add(*entry);
  }
  text.pop_back();
  const std::uint64_t bytes = text.size() - sizeof bytes;
  ::memcpy(text.data(), &bytes, sizeof bytes);  // little-endian, as all machines that ddrun runs on
  return text;
}

long long change_time(const std::string& path) {
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0) return 0;
  return info.st_mtim.tv_sec * 1'000'000'000LL + info.st_mtim.tv_nsec;
}

std::int64_t anonymous_kib(pid_t pid) {
  long resident = 0;
  long of_files = 0;
  const auto pages = read_small_file(concat("/proc/", pid, "/statm"));
  if (!pages || ::sscanf(pages->c_str(), "%*d %ld %ld", &resident, &of_files) != 2) return 0;
  return (resident - of_files) * (::sysconf(_SC_PAGESIZE) / 1024);
}

void reap(pid_t pid) {
  while (::waitpid(pid, nullptr, 0) < 0 && errno == EINTR) {
  }
}

}  // namespace

PreloadSpawner::PreloadSpawner(boost::asio::any_io_executor executor, process::Launcher& launcher)
    : launcher_(launcher), control_(executor), fork_timeout_(executor) {}

// ---- the server

bool PreloadSpawner::needs_server() {
  if (lost_) return false;
  const auto changed = std::find_if(sources_.begin(), sources_.end(),
                                    [](const auto& one) { return change_time(one.first) != one.second; });
  if (changed != sources_.end()) {
    say(Level::notice, concat(changed->first, " has changed: importing the modules of --preload anew"));
    close(false);
  }
  return server_ == 0 && standby_.empty();
}

Result<void> PreloadSpawner::start_server(process::SpawnPlan plan, const std::vector<std::string>& modules,
                                          const std::vector<std::string>& names, const std::string& cgroup,
                                          OnReady on_ready) {
  auto pair = TRY(make_socket_pair(SOCK_SEQPACKET));
  std::string option = "-c";
  std::string code = loader;
  std::vector<char*> argv{plan.argv[0], plan.argv[1], option.data(), code.data()};
  for (std::size_t i = 2; plan.argv[i] != nullptr; ++i) argv.push_back(plan.argv[i]);
  argv.push_back(nullptr);
  plan.argv = argv.data();
  plan.standard_in = pair.second.get();
  plan.want_pidfd = false;
  server_ = TRY(launcher_.spawn(plan)).pid;
  server_started_ = Clock::now();
  add_child(server_);
  if (const int err = assign_descriptor(control_, std::move(pair.first)); err != 0) {
    return fail_errno(Errc::unavailable, "cannot watch the server of --preload", err);
  }
  on_ready_ = std::move(on_ready);
  TRY(send(server_source));
  const std::string_view end("\0", 1);
  TRY(send(concat(join(modules, ","), end, join(names, ","), end, cgroup)));
  read_messages();
  return {};
}

Result<void> PreloadSpawner::send(std::string_view message, const std::vector<int>& descriptors) {
  // A packet is sent whole or not at all; only a server that is stopped leaves no room for it.
  if (send_part(control_.native_handle(), message, descriptors) == message.size()) return {};
  return fail_errno(Errc::unavailable, "cannot reach the server of --preload", errno);
}

void PreloadSpawner::read_messages() {
  control_.async_wait(boost::asio::posix::stream_descriptor::wait_read, [this](const boost::system::error_code& ec) {
    if (ec) return;
    std::string buffer(max_message_bytes, '\0');
    while (control_.is_open()) {
      const ssize_t got = ::recv(control_.native_handle(), buffer.data(), buffer.size(), MSG_DONTWAIT);
      if (got < 0 && errno == EINTR) continue;
      if (got < 0 && errno == EAGAIN) return read_messages();
      if (got <= 0) return server_ == 0 ? forget_server() : lose_server("has ended");
      on_message({buffer.data(), static_cast<std::size_t>(got)});
    }
  });
}

void PreloadSpawner::on_message(std::string_view message) {
  const auto fields = split(message, '\0');
  if (forking_) set_fork_timeout();
  if (fields[0] == "notice" && fields.size() == 2) {
    say(Level::notice, concat("--preload: ", fields[1]));
  } else if (fields[0] == "refused" && fields.size() == 2) {
    const pid_t server = server_;
    forget_server();
    finish_after(server, fail(Errc::invalid_argument, concat("--preload: ", fields[1])));
  } else if (fields[0] == "source" && fields.size() == 2) {
    sources_.emplace_back(fields[1], change_time(fields[1]));
  } else if (fields[0] == "ready") {
    import_time_ = std::chrono::duration_cast<Milliseconds>(Clock::now() - server_started_);
    import_memory_ = anonymous_kib(server_);
    imported_ = server_here_ = true;
    finish({});
  } else if (fields[0] == "forked" && fields.size() == 4) {
    on_forked(fields);
  } else if (fields[0] == "here" && fields.size() == 2) {
    const pid_t pid = std::atoi(fields[1].c_str());
    if (pid == server_) server_here_ = true;
    for (Standby& worker : standby_) worker.here = worker.here || worker.pid == pid;
    check_forked();
  }
}

void PreloadSpawner::fork_workers(int count, bool last, OnReady on_ready) {
  wanted_ = count;
  last_ = last;
  on_ready_ = std::move(on_ready);
  if (forking_) return;
  if (server_ == 0 || static_cast<int>(standby_.size()) >= wanted_) return finish({});
  request_fork();
}

void PreloadSpawner::request_fork() {
  const auto missing = static_cast<std::size_t>(wanted_) - standby_.size();
  std::vector<UniqueFd> theirs;
  ends_.clear();
  while (theirs.size() < missing) {
    auto pair = make_socket_pair(SOCK_STREAM);
    if (!pair) break;  // no descriptors: the others start without the server
    ends_.push_back(std::move(pair->first));
    theirs.push_back(std::move(pair->second));
  }
  Result<void> sent;
  for (std::size_t at = 0; at < theirs.size() && sent; at += max_descriptors) {
    std::vector<int> descriptors;
    for (std::size_t i = at; i < std::min(theirs.size(), at + max_descriptors); ++i) {
      descriptors.push_back(theirs[i].get());
    }
    sent = send("fork", descriptors);
  }
  if (sent) sent = send(last_ ? "end" : "go on");
  if (!sent) return lose_server(sent.error().message);
  forking_ = true;
  server_here_ = false;
  set_fork_timeout();
}

void PreloadSpawner::set_fork_timeout() {
  fork_timeout_.set(Clock::now() + fork_limit, [this] {
    lose_server(concat("has not forked its workers within ", format_duration(Milliseconds(fork_limit))));
  });
}

void PreloadSpawner::on_forked(const std::vector<std::string>& fields) {
  server_ = std::atoi(fields[2].c_str());
  std::size_t index = 0;
  for (const std::string& word : fields[3].empty() ? std::vector<std::string>() : split(fields[3], ' ')) {
    if (index == ends_.size()) break;
    standby_.push_back({std::atoi(word.c_str()), std::move(ends_[index++]), false});
    add_child(standby_.back().pid);
  }
  if (server_ != 0) add_child(server_);
  ends_.clear();
  if (fields[1] != "0") {
    say(Level::notice, concat("--preload: the server cannot fork more than ", counted(index, "worker"), ": ",
                              std::error_code(std::atoi(fields[1].c_str()), std::generic_category()).message()));
  }
  if (auto sent = send("known"); !sent) return lose_server(sent.error().message);
  check_forked();
}

void PreloadSpawner::check_forked() {
  const bool all = std::all_of(standby_.begin(), standby_.end(), [](const Standby& one) { return one.here; });
  if (!forking_ || !ends_.empty() || !all || (server_ != 0 && !server_here_)) return;
  forking_ = false;
  fork_timeout_.cancel();
  if (std::exchange(released_, false)) return fork_workers(wanted_, last_, std::move(on_ready_));
  finish({});
}

void PreloadSpawner::finish(Result<void> result) {
  if (!on_ready_) return;
  boost::asio::post(control_.get_executor(),
                    [call = std::exchange(on_ready_, nullptr), result = std::move(result)] { call(result); });
}

void PreloadSpawner::lose_server(const std::string& why) {
  const bool importing = !imported_;
  const std::string what = concat("the server of --preload ", server_ == 0 ? "" : concat("(pid ", server_, ") "), why);
  lost_ = true;
  const pid_t server = server_;
  std::erase_if(standby_, [](const Standby& one) { return !one.here; });
  forget_server();
  if (importing) {
    return finish_after(server, fail(Errc::unavailable, concat(what, " while it imported its modules")));
  }
  say(Level::notice, concat(what, ": workers import their modules themselves from now on"));
  finish({});
}

void PreloadSpawner::forget_server() {
  boost::system::error_code ignored;
  control_.close(ignored);
  fork_timeout_.cancel();
  ends_.clear();
  server_ = 0;
  forking_ = released_ = server_here_ = imported_ = false;
}

/// Its pipes are closed then, and the output of the attempt can end.
void PreloadSpawner::finish_after(pid_t server, Result<void> result) {
  const auto children = helper::registered_children();
  if (std::find(children.begin(), children.end(), server) == children.end()) return finish(std::move(result));
  ::kill(server, SIGKILL);
  fork_timeout_.set(Clock::now() + end_poll_interval,
                    [this, server, result = std::move(result)] { finish_after(server, result); });
}

void PreloadSpawner::cancel() {
  if (!on_ready_ || server_ == 0) return;  // it ends already
  const pid_t server = server_;
  close(false);
  finish_after(server, fail(Errc::cancelled, "the import was cancelled"));
}

void PreloadSpawner::release_standby() {
  for (const Standby& worker : std::exchange(standby_, {})) helper::unregister_child(worker.pid);
  // Those that are being forked exit without their sockets, and others are forked then if an attempt waits for them.
  ends_.clear();
  wanted_ = 0;
  released_ = forking_;
}

void PreloadSpawner::close(bool wait) {
  forget_server();
  standby_.clear();
  sources_.clear();
  for (const pid_t pid : helper::registered_children()) {
    if (children_.count(pid) == 0) continue;
    ::kill(pid, SIGKILL);
    if (!wait) continue;
    reap(pid);
    helper::unregister_child(pid);
  }
}

void PreloadSpawner::add_child(pid_t pid) {
  children_.insert(pid);
  helper::register_child(pid);
}

// ---- starts

Result<process::Spawned> PreloadSpawner::begin(int slot, const process::SpawnPlan& plan) {
  while (!standby_.empty()) {
    Start start{std::move(standby_.front()), plan, {}, assignment(plan)};
    standby_.pop_front();
    const pid_t pid = start.worker.pid;
    if (plan.cpu_mask != nullptr && ::syscall(SYS_sched_setaffinity, pid, plan.cpu_mask_bytes, plan.cpu_mask) < 0 &&
        errno != ESRCH) {
      return fail_errno(Errc::unavailable, concat("cannot start ", plan.program, ": failed to bind it to its CPUs"),
                        errno);
    }
    std::vector<int> streams{plan.standard_in, plan.standard_out, plan.standard_err};
    for (std::size_t i = 0; i < streams.size(); ++i) {
      if (streams[i] < 0) {
        streams[i] = static_cast<int>(i);
        continue;
      }
      // For another start, should this worker not take its assignment.
      start.streams[i] = TRY(duplicate(streams[i]));
    }
    if (!send_some(start, streams)) continue;  // it has just been killed
    helper::unregister_child(pid);
    const bool is_first =
        std::none_of(starts_.begin(), starts_.end(), [](const Start& one) { return one.worker.pid != 0; });
    if (is_first) assignment_deadline_ = Clock::now() + assignment_limit;
    starts_[static_cast<std::size_t>(slot)] = std::move(start);
    UniqueFd pidfd;
    if (plan.want_pidfd && has_pidfd()) pidfd.reset(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
    return process::Spawned{pid, std::move(pidfd)};
  }
  return launcher_.begin(slot, plan);
}

bool PreloadSpawner::send_some(Start& start, const std::vector<int>& descriptors) {
  const std::size_t sent = send_part(start.worker.socket.get(), start.unsent, descriptors);
  if (sent == 0 && (errno != EAGAIN || !descriptors.empty())) return false;
  start.unsent.erase(0, sent);
  return true;
}

Result<bool> PreloadSpawner::confirm(int slot, Milliseconds limit, process::Spawned& child) {
  Start& start = starts_[static_cast<std::size_t>(slot)];
  if (start.worker.pid == 0) return launcher_.confirm(slot, limit, child);
  const Deadline deadline = std::min(Clock::now() + limit, assignment_deadline_);
  while (true) {
    char reply;
    const ssize_t got = ::recv(start.worker.socket.get(), &reply, sizeof reply, MSG_DONTWAIT);
    // No reply at all: it has just been killed, which will be seen as the end of a worker.
    if (got >= 0 || (errno != EAGAIN && errno != EINTR)) {
      start = {};
      if (Clock::now() < assignment_deadline_) assignment_deadline_ = Clock::now() + assignment_limit;
      return true;
    }
    if (!start.unsent.empty()) (void)send_some(start, {});
    const auto left = std::chrono::ceil<Milliseconds>(deadline - Clock::now());
    if (left.count() <= 0) break;
    pollfd ready{start.worker.socket.get(), static_cast<short>(start.unsent.empty() ? POLLIN : POLLIN | POLLOUT), 0};
    ::poll(&ready, 1, static_cast<int>(left.count()));
  }
  if (process::has_ended(start.worker.pid)) {  // another process holds its end of the socket
    start = {};
    return true;
  }
  if (Clock::now() < assignment_deadline_) return false;
  return start_plainly(slot, child);
}

Result<bool> PreloadSpawner::start_plainly(int slot, process::Spawned& child) {
  Start& start = starts_[static_cast<std::size_t>(slot)];
  say(Level::notice, concat("--preload: a standby worker (pid ", start.worker.pid, ") has taken no assignment within ",
                            format_duration(Milliseconds(assignment_limit)),
                            " and is killed: workers of this attempt import their modules themselves"));
  ::kill(start.worker.pid, SIGKILL);
  for (const Standby& other : std::exchange(standby_, {})) ::kill(other.pid, SIGKILL);
  start.worker = {};
  process::SpawnPlan plan = start.plan;
  const auto own = [](const UniqueFd& fd) { return fd ? fd.get() : -1; };
  plan.standard_in = own(start.streams[0]);
  plan.standard_out = own(start.streams[1]);
  plan.standard_err = own(start.streams[2]);
  auto other = launcher_.begin(slot, plan);
  start = {};
  if (!other) return tl::unexpected(other.error());
  child = std::move(*other);
  return false;
}

void PreloadSpawner::abandon(int slot) {
  Start& start = starts_[static_cast<std::size_t>(slot)];
  if (start.worker.pid == 0) return launcher_.abandon(slot);
  ::kill(start.worker.pid, SIGKILL);
  start = {};
}

}  // namespace ddrun::preload
