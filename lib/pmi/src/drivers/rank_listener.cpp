#include "ddrun/pmi/rank_listener.hpp"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <span>
#include <utility>

#include "ddrun/base/bytes.hpp"
#include "ddrun/base/io_context.hpp"
#include "ddrun/base/text.hpp"
#include "pmi_line.hpp"

namespace ddrun::pmi {

namespace {

using boost::asio::posix::stream_descriptor;
using boost::system::error_code;

constexpr std::size_t max_unproved = 64;
/// Of the line with the token.
constexpr std::size_t max_first_line = 256;
/// A wrong token is refused after it: with 64 at once, to try all takes a year. A silent connection is closed after it
/// if others wait.
constexpr Milliseconds unproved_timeout{1000};
/// Without descriptors or memory for a connection.
constexpr Milliseconds accept_retry{1000};
/// A process that a rank has left behind may go on sending while the connection is drained.
constexpr int max_drain_reads = 64;

bool is_transient(int err) { return err == EAGAIN || err == EINTR; }

}  // namespace

RankListener::RankListener(boost::asio::any_io_executor executor, Handlers handlers)
    : executor_(std::move(executor)), handlers_(std::move(handlers)), pending_(executor_), alarm_(executor_) {}

Result<void> RankListener::open() {
  listener_ = std::move(TRY(open_listeners({"127.0.0.1"}, 0)).front());
  if (const int err = assign_descriptor(pending_, TRY(duplicate(listener_.fd.get()))); err != 0) {
    return fail_errno(Errc::unavailable, "cannot listen for MPI ranks", err);
  }
  wait_for_pending();
  return {};
}

Result<void> RankListener::begin_round(const std::vector<int>& ranks, int world_size) {
  for (const Slot& slot : slots_) {
    if (slot.connection) close(slot.connection);
  }
  for (const Shared& connection : std::exchange(unproved_, {})) close(connection);
  slots_.clear();
  world_size_ = world_size;
  while (slots_.size() < ranks.size()) {
    std::uint32_t token = 0;
    TRY(fill_random(std::as_writable_bytes(std::span(&token, 1))));
    token &= 0x7fffffff;
    const bool is_taken = std::any_of(slots_.begin(), slots_.end(), [&](const Slot& s) { return s.token == token; });
    if (token != 0 && !is_taken) slots_.push_back({token, ranks[slots_.size()]});
  }
  if (!waits_for_pending_) accept_pending();
  return {};
}

void RankListener::close() {
  for (const Slot& slot : slots_) {
    if (slot.connection) close(slot.connection);
  }
  error_code ignored;
  pending_.close(ignored);
  listener_.fd.reset();
  for (const Shared& connection : std::exchange(unproved_, {})) close(connection);
  alarm_.cancel();
}

// ---- new connections

void RankListener::wait_for_pending() {
  if (!pending_.is_open() || std::exchange(waits_for_pending_, true)) return;
  pending_.async_wait(stream_descriptor::wait_read, [this](const error_code& ec) {
    waits_for_pending_ = false;
    if (ec || !pending_.is_open()) return;
    others_wait_ = unproved_.size() >= max_unproved;
    if (others_wait_) schedule();
    else accept_pending();
  });
}

void RankListener::accept_pending() {
  while (unproved_.size() < max_unproved) {
    UniqueFd fd;
    sockaddr_storage peer{};
    const auto outcome = acceptor_.next(listener_, fd, peer);
    if (outcome == Acceptor::Outcome::accepted) add(std::move(fd));
    if (outcome == Acceptor::Outcome::none) break;
    if (outcome == Acceptor::Outcome::exhausted) {
      retry_at_ = Clock::now() + accept_retry;
      return schedule();
    }
  }
  others_wait_ = false;
  wait_for_pending();
}

void RankListener::add(UniqueFd fd) {
  auto connection = std::make_shared<Connection>(executor_);
  if (assign_descriptor(connection->socket, std::move(fd)) != 0) return;
  unproved_.push_back(connection);
  read_later(connection);
}

void RankListener::prove(const Shared& connection, std::string_view line) {
  const auto first = PmiLine::parse(line);
  const std::string_view token = first && first->command() == "initack" ? first->find("pmiid").value_or("") : "";
  const auto slot = std::find_if(slots_.begin(), slots_.end(), [&](const Slot& s) { return concat(s.token) == token; });
  if (slot == slots_.end() || std::exchange(slot->token_used, true)) return refuse(connection, "a wrong token");
  connection->slot = static_cast<int>(slot - slots_.begin());
  slot->connection = connection;
  answer(connection->slot,
         concat("cmd=initack\ncmd=set size=", world_size_, "\ncmd=set rank=", slot->rank, "\ncmd=set debug=0\n"));
  forget_unproved(connection);
}

void RankListener::forget_unproved(const Shared& connection) {
  if (std::erase(unproved_, connection) == 0 || !pending_.is_open()) return;
  schedule();
  if (!waits_for_pending_) accept_pending();
}

void RankListener::schedule() {
  Deadline next = retry_at_;
  for (const Shared& connection : unproved_) {
    if (connection->refused || others_wait_) next = std::min(next, connection->since + unproved_timeout);
  }
  if (next == Deadline::max()) alarm_.cancel();
  else alarm_.set(next, [this] { close_overdue(); });
}

void RankListener::close_overdue() {
  retry_at_ = Deadline::max();
  const Deadline before = Clock::now() - unproved_timeout;
  for (const Shared& connection : std::vector(unproved_)) {
    if ((connection->refused || others_wait_) && connection->since <= before) close(connection);
  }
  if (!waits_for_pending_ && unproved_.size() < max_unproved) accept_pending();
  schedule();
}

// ---- connected ranks

void RankListener::read_later(const Shared& connection) {
  const bool wants = connection->socket.is_open() && connection->out.empty() && !connection->refused;
  if (!wants || std::exchange(connection->waits_to_read, true)) return;
  connection->socket.async_wait(stream_descriptor::wait_read, [this, connection](const error_code& ec) {
    connection->waits_to_read = false;
    if (ec || !connection->socket.is_open()) return;
    // An answer that came meanwhile may be unsent.
    if (connection->out.empty() && receive(connection)) take_lines(connection);
    read_later(connection);
  });
}

/// False if there is nothing to read, or nothing any more.
bool RankListener::receive(const Shared& connection) {
  const ssize_t size = ::recv(connection->socket.native_handle(), buffer_.data(), buffer_.size(), MSG_DONTWAIT);
  if (size > 0) connection->in.append(buffer_.data(), static_cast<std::size_t>(size));
  else if (size == 0 || !is_transient(errno)) close(connection);
  return size > 0;
}

void RankListener::take_lines(const Shared& connection) {
  std::string& in = connection->in;
  std::size_t begin = 0;
  while (connection->socket.is_open() && !connection->refused && connection->out.empty()) {
    const std::size_t max_size = connection->slot < 0 ? max_first_line : max_line_bytes;
    const std::size_t end = in.find('\n', begin);
    if (std::min(end, in.size()) - begin > max_size) {
      refuse(connection, concat("a line of more than ", format_size(max_size)));
    } else if (end == std::string::npos) {
      break;
    } else {
      std::string line = in.substr(begin, end - begin);
      begin = end + 1;
      if (connection->slot < 0) prove(connection, line);
      else handlers_.line(connection->slot, std::move(line));
    }
  }
  in.erase(0, begin);
}

void RankListener::refuse(const Shared& connection, const std::string& why) {
  connection->refused = true;
  connection->since = Clock::now();
  if (connection->slot < 0) schedule();
  else handlers_.garbage(connection->slot, why);
}

void RankListener::answer(int slot, std::string_view text) {
  const Shared connection = slots_.at(static_cast<std::size_t>(slot)).connection;
  if (!connection) return;
  connection->out += text;
  if (!connection->waits_to_write) send(connection);
}

void RankListener::send(const Shared& connection) {
  std::string& out = connection->out;
  const ssize_t size = ::send(connection->socket.native_handle(), out.data(), out.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
  // A rank that has closed its connection may have sent lines before.
  if (size < 0 && !is_transient(errno)) out.clear();
  if (size > 0) out.erase(0, static_cast<std::size_t>(size));
  if (out.empty()) return;
  connection->waits_to_write = true;
  connection->socket.async_wait(stream_descriptor::wait_write, [this, connection](const error_code& ec) {
    connection->waits_to_write = false;
    if (ec || !connection->socket.is_open()) return;
    send(connection);
    take_lines(connection);
    read_later(connection);
  });
}

std::string RankListener::address() const { return listener_.at.text(); }
std::string RankListener::token(int slot) const { return concat(slots_.at(static_cast<std::size_t>(slot)).token); }

void RankListener::cut_off(int slot) {
  if (const Shared connection = slots_.at(static_cast<std::size_t>(slot)).connection) close(connection);
}

void RankListener::drain(int slot) {
  // Answers find no connection.
  const Shared connection = std::exchange(slots_.at(static_cast<std::size_t>(slot)).connection, nullptr);
  if (!connection) return;
  connection->out.clear();
  take_lines(connection);
  for (int reads = 0; reads < max_drain_reads && connection->socket.is_open() && receive(connection); ++reads) {
    take_lines(connection);
  }
  close(connection);
}

void RankListener::close(const Shared& connection) {
  error_code ignored;
  connection->socket.close(ignored);
  if (connection->slot < 0) forget_unproved(connection);
  else slots_.at(static_cast<std::size_t>(connection->slot)).connection.reset();
}

}  // namespace ddrun::pmi
