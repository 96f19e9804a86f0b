#include "ddrun/job_socket/job_socket.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <boost/asio/buffer.hpp>
#include <boost/asio/error.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/read_until.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/write.hpp>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>

#include "ddrun/base/io_context.hpp"
#include "ddrun/base/messages.hpp"
#include "ddrun/base/proc.hpp"
#include "ddrun/base/text.hpp"

namespace ddrun::job_socket {

namespace {

using boost::asio::posix::stream_descriptor;
using nlohmann::json;

/// Between bind() and listen() a live job's socket refuses connections too.
constexpr std::time_t min_stale_seconds = 2;
/// Sockets with one PID, from several PID namespaces.
constexpr int max_same_pid = 9;

bool same_file(const struct stat& a, const struct stat& b) { return a.st_dev == b.st_dev && a.st_ino == b.st_ino; }

std::optional<sockaddr_un> socket_address(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path) return std::nullopt;
  path.copy(address.sun_path, path.size());
  return address;
}

/// "0-3,trainer:7,router"
Result<std::vector<Request::Ranks>> parse_ranks(std::string_view text) {
  constexpr int highest = std::numeric_limits<int>::max();
  std::vector<Request::Ranks> all;
  for (const std::string& part : split(text, ',')) {
    const std::size_t colon = part.find(':');
    const bool is_role = colon == std::string::npos && part.find_first_not_of("0123456789-") != std::string::npos;
    Request::Ranks& ranks = all.emplace_back();
    if (is_role || colon != std::string::npos) ranks.role = part.substr(0, colon);
    if (is_role) continue;
    const std::string range = part.substr(colon == std::string::npos ? 0 : colon + 1);
    const std::size_t dash = range.find('-');
    const auto first = parse_integer(range.substr(0, dash), 0, highest);
    const auto last = dash == std::string::npos ? first : parse_integer(range.substr(dash + 1), 0, highest);
    if (!first || !last || *first > *last) {
      return fail(Errc::invalid_argument, "\"ranks\" is no list such as 0-3,trainer:7,router");
    }
    ranks.first = static_cast<int>(*first);
    ranks.last = static_cast<int>(*last);
  }
  return all;
}

std::optional<ucred> peer_of(int connection) {
  ucred peer{};
  socklen_t size = sizeof peer;
  return ::getsockopt(connection, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 ? std::optional(peer) : std::nullopt;
}

bool is_trusted(int connection) {
  const auto peer = peer_of(connection);
  return peer && (peer->uid == ::geteuid() || peer->uid == 0);
}

/// An agent is the third of ddrun's processes.
bool is_in_ddrun(pid_t process, pid_t ddrun, int levels = 2) {
  const auto stat = levels > 0 ? read_process_stat(process) : std::nullopt;
  return process == ddrun || (stat && is_in_ddrun(stat->parent, ddrun, levels - 1));
}

std::string socket_name(pid_t pid, int number) { return concat(pid, number == 1 ? "" : concat("-", number), suffix); }

bool is_transient(int err) { return err == EAGAIN || err == EINTR; }

}  // namespace

std::vector<std::string> folders(uid_t uid, std::string_view runtime_dir) {
  std::vector<std::string> folders;
  for (const std::string& dir : {std::string(runtime_dir), concat("/run/user/", uid)}) {
    struct stat info {};
    const bool usable = dir.starts_with('/') && ::stat(dir.c_str(), &info) == 0 && S_ISDIR(info.st_mode);
    if (folders.empty() && usable && info.st_uid == uid) folders.push_back(concat(dir, "/ddrun"));
  }
  folders.push_back(concat("/tmp/ddrun-", uid));
  return folders;
}

Result<UniqueFd> open_folder(const std::string& folder, uid_t owner) {
  UniqueFd fd(::open(folder.c_str(), O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  struct stat info {};
  if (!fd && errno == ENOTDIR) return fail(Errc::unavailable, concat(folder, " is not a directory"));
  if (!fd || ::fstat(fd.get(), &info) != 0) {
    return fail_errno(errno == ENOENT ? Errc::not_found : Errc::unavailable, folder, errno);
  }
  if (info.st_uid != owner) return fail(Errc::unavailable, concat(folder, " belongs to another user"));
  if ((info.st_mode & 077U) != 0) return fail(Errc::unavailable, concat(folder, " is open to others (chmod 700)"));
  return fd;
}

Result<UniqueFd> connect(const UniqueFd& folder, const std::string& name, Deadline deadline) {
  const UniqueFd file(::openat(folder.get(), name.c_str(), O_PATH | O_NOFOLLOW | O_CLOEXEC));
  struct stat before {
  }, after{};
  if (!file || ::fstat(file.get(), &before) != 0) {
    return fail_errno(errno == ENOENT ? Errc::connection_lost : Errc::unavailable, name, errno);
  }
  if (!S_ISSOCK(before.st_mode)) return fail(Errc::connection_lost, concat(name, " is no socket"));
  const auto address = socket_address(concat("/proc/self/fd/", file.get()));
  UniqueFd connection(::socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  while (::connect(connection.get(), reinterpret_cast<const sockaddr*>(&*address), sizeof *address) != 0) {
    const int err = errno;
    if (err == ECONNREFUSED && std::time(nullptr) - before.st_ctime >= min_stale_seconds &&
        ::fstatat(folder.get(), name.c_str(), &after, AT_SYMLINK_NOFOLLOW) == 0 && same_file(before, after)) {
      ::unlinkat(folder.get(), name.c_str(), 0);
    }
    if (err == ECONNREFUSED) return fail_errno(Errc::connection_lost, name, err);
    if (!is_transient(err)) return fail_errno(Errc::unavailable, name, err);
    if (Clock::now() >= deadline) return fail_errno(Errc::timeout, name, ETIMEDOUT);
    // The queue is full; poll(2) cannot wait for it.
    constexpr int retry_interval = 10;
    (void)::poll(nullptr, 0, retry_interval);
  }
  return connection;
}

Result<UniqueFd> connect_to_descendant(pid_t ddrun, std::string_view runtime_dir) {
  for (const std::string& folder : folders(::geteuid(), runtime_dir)) {
    const auto opened = open_folder(folder, ::geteuid());
    for (int number = 1; opened && number <= max_same_pid; ++number) {
      auto connection = connect(*opened, socket_name(ddrun, number), Clock::now());
      const auto peer = connection ? peer_of(connection->get()) : std::nullopt;
      if (peer && is_in_ddrun(peer->pid, ddrun)) return connection;
    }
  }
  return fail(Errc::not_found, "its ddrun has no socket yet, or none can be made; ask again");
}

Result<Request> Request::parse(std::string_view line) {
  const auto wrong = [](std::string_view what) { return fail(Errc::invalid_argument, std::string(what)); };
  const json object = json::parse(line, nullptr, false);
  if (!object.is_object()) return wrong("a request is one JSON object in a line");
  // Null: absent.
  const auto text = [&](const char* key) -> std::optional<std::string> {
    const auto found = object.find(key);
    if (found == object.end()) return "";
    return found->is_string() ? std::optional(found->get<std::string>()) : std::nullopt;
  };
  Request request;
  request.line = line;
  const auto question = text("question");
  if (question == "stacks") request.question = Question::stacks;
  else if (question != "job") return wrong("\"question\" is \"job\" or \"stacks\"");
  const auto format = text("format");
  if (!format || (!format->empty() && format != "text" && format != "json")) {
    return wrong("\"format\" is \"text\" or \"json\"");
  }
  request.as_json = format == "json";
  const auto threads = text("threads");
  if (!threads || (!threads->empty() && threads != "all")) return wrong("\"threads\" is \"all\"");
  request.all_threads = threads == "all";
  if (object.contains("ranks")) {
    request.ranks = TRY(parse_ranks(text("ranks").value_or("")));
  }
  return request;
}

bool Request::includes(const RankName& rank) const {
  return ranks.empty() || std::ranges::any_of(ranks, [&](const Ranks& some) {
           return (some.role.empty() || some.role == rank.role) && some.first <= rank.rank && rank.rank <= some.last;
         });
}

std::string reply_line(const json& reply) { return reply.dump(-1, ' ', false, json::error_handler_t::replace); }
std::string error_reply(std::string_view message) { return reply_line({{"error", message}}); }

/// One connection: reads a request, waits for its answer, writes it and disconnects.
class Server::Client : public std::enable_shared_from_this<Client> {
 public:
  Client(Server& owner, const boost::asio::any_io_executor& executor)
      : owner_(owner), socket_(executor), timer_(executor) {}

  /// False without room in the event loop.
  [[nodiscard]] bool start(UniqueFd connection) {
    if (assign_descriptor(socket_, std::move(connection)) != 0) return false;
    start_timer(owner_.clients_.size() < max_clients / 2 ? client_timeout : crowded_timeout);
    boost::asio::async_read_until(socket_, boost::asio::dynamic_buffer(text_, max_request_bytes), '\n',
                                  [self = shared_from_this()](const boost::system::error_code& ec, std::size_t size) {
                                    if (self->socket_.is_open()) self->on_read(ec, size);
                                  });
    return true;
  }

  void close() {
    if (!socket_.is_open()) return;
    // With unread input the client would get ECONNRESET.
    std::array<char, max_request_bytes> unread;
    for (int i = 0; i < 64 && ::recv(socket_.native_handle(), unread.data(), unread.size(), MSG_DONTWAIT) > 0; ++i) {
    }
    boost::system::error_code ignored;
    socket_.close(ignored);
    timer_.cancel();
    owner_.remove(shared_from_this());
  }

 private:
  void start_timer(Milliseconds time) {
    timer_.expires_after(time);
    timer_.async_wait([self = shared_from_this()](const boost::system::error_code& ec) {
      // A completion that was queued before the timer was set again is stale.
      if (!ec && Clock::now() >= self->timer_.expiry()) self->close();
    });
  }

  void on_read(const boost::system::error_code& ec, std::size_t size) {
    if (ec == boost::asio::error::not_found) {
      return reply(error_reply(concat("a request has at most ", max_request_bytes, " bytes")));
    }
    if (ec) return close();
    timer_.expires_at(Clock::time_point::max());
    const auto request = Request::parse(std::string_view(text_).substr(0, size - 1));
    if (!request) return reply(error_reply(request.error().message));
    owner_.answer_(*request, [weak = weak_from_this()](std::string line) {
      if (const auto self = weak.lock()) self->reply(std::move(line));
    });
  }

  void reply(std::string line) {
    if (!socket_.is_open() || std::exchange(replied_, true)) return;
    text_ = std::move(line);
    text_ += '\n';
    start_timer(client_timeout);
    boost::asio::async_write(
        socket_, boost::asio::buffer(text_),
        [self = shared_from_this()](const boost::system::error_code&, std::size_t) { self->close(); });
  }

  Server& owner_;
  stream_descriptor socket_;
  boost::asio::steady_timer timer_;
  std::string text_;  ///< the request, then the reply
  bool replied_ = false;
};

struct Server::Listener {
  stream_descriptor socket;
  std::string path;
  struct stat file {};
  bool waiting = false;  ///< for a client
};

Server::Server(boost::asio::any_io_executor executor, Answer answer)
    : executor_(std::move(executor)), answer_(std::move(answer)), timer_(executor_) {}

void Server::open(const std::vector<std::string>& folders, pid_t pid) {
  std::string fault;
  for (const std::string& folder : folders) {
    const auto opened = open_in(folder, pid);
    if (opened) continue;
    say(Level::info, concat("no socket for 'ddrun stacks' in ", folder, ": ", opened.error().message));
    if (opened.error().code != Errc::not_found) fault = opened.error().message;
  }
  if (listeners_.empty() && !fault.empty()) say(Level::warning, concat("'ddrun stacks' cannot ask this job: ", fault));
  accept_later();
}

void Server::open_later(std::string_view runtime_dir, pid_t pid) {
  timer_.set(Clock::now() + open_delay, [this, in = folders(::geteuid(), runtime_dir), pid] { open(in, pid); });
}

Result<void> Server::open_in(const std::string& folder, pid_t pid) {
  if (::mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST) {
    return fail_errno(Errc::not_found, "cannot create the folder", errno);
  }
  const UniqueFd opened = TRY(open_folder(folder, ::geteuid()));
  UniqueFd listener(::socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  // The mode of the file that bind() creates, without a change of the umask, which all threads share.
  (void)::fchmod(listener.get(), 0600);
  const auto made = std::make_shared<Listener>(Listener{stream_descriptor(executor_), {}, {}});
  int err = EADDRINUSE;
  for (int number = 1; number <= max_same_pid && err == EADDRINUSE; ++number) {
    const std::string name = socket_name(pid, number);
    made->path = concat(folder, "/", name);
    const auto address = socket_address(made->path);
    if (!address) return fail(Errc::unavailable, "the path is too long for a socket");
    const auto bind = [&] {
      return ::bind(listener.get(), reinterpret_cast<const sockaddr*>(&*address), sizeof *address) == 0 ? 0 : errno;
    };
    err = bind();
    // If that is the socket of a dead job, this removes it.
    if (err == EADDRINUSE && !connect(opened, name, Clock::now())) err = bind();
  }
  if (err == 0 && (::lstat(made->path.c_str(), &made->file) != 0 || ::listen(listener.get(), max_clients) != 0)) {
    err = errno;
  }
  if (err == 0) err = assign_descriptor(made->socket, std::move(listener));
  if (err != 0) return fail_errno(Errc::unavailable, "cannot listen", err);
  listeners_.push_back(made);
  return {};
}

void Server::close() {
  for (const auto& listener : std::exchange(listeners_, {})) {
    struct stat present {};
    if (::lstat(listener->path.c_str(), &present) == 0 && same_file(present, listener->file)) {
      ::unlink(listener->path.c_str());
    }
    boost::system::error_code ignored;
    listener->socket.close(ignored);
  }
  timer_.cancel();
  while (!clients_.empty()) (*clients_.begin())->close();
}

void Server::accept_later() {
  for (const auto& listener : listeners_) {
    if (clients_.size() >= max_clients) return;
    if (std::exchange(listener->waiting, true)) continue;
    listener->socket.async_wait(stream_descriptor::wait_read, [this, listener](const boost::system::error_code& ec) {
      listener->waiting = false;
      if (!ec && listener->socket.is_open()) accept_pending(*listener);
    });
  }
}

void Server::accept_pending(Listener& listener) {
  while (clients_.size() < max_clients) {
    UniqueFd connection(::accept4(listener.socket.native_handle(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!connection && !is_transient(errno) && errno != ECONNABORTED) {
      // The pending connection would wake this loop again and again.
      return timer_.set(Clock::now() + std::chrono::seconds(1), [this] { accept_later(); });
    }
    if (!connection) break;
    if (!is_trusted(connection.get())) continue;
    const auto client = std::make_shared<Client>(*this, executor_);
    if (client->start(std::move(connection))) clients_.insert(client);
  }
  accept_later();
}

void Server::remove(const std::shared_ptr<Client>& client) {
  clients_.erase(client);
  accept_later();
}

}  // namespace ddrun::job_socket
