#include "ddrun/store/tcp_client.hpp"

#include <sys/eventfd.h>

#include <algorithm>
#include <cerrno>

#include "client_pool.hpp"
#include "ddrun/base/text.hpp"
#include "limits.hpp"

namespace ddrun::store {

using wire::Opcode;

namespace {

template <class T>
auto error_of(Result<T>& result) {
  return tl::unexpected(std::move(result.error()));
}

std::string described(std::string_view key) {
  const std::string name(key);
  return describe_keys({&name, 1});
}

Result<UniqueFd> make_cancel_event() {
  UniqueFd event(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!event) return fail_errno(Errc::unavailable, "cannot make a client of the store", errno);
  return event;
}

}  // namespace

TcpClient::TcpClient(std::unique_ptr<Pool> pool) : pool_(std::move(pool)) {}
TcpClient::~TcpClient() = default;

Result<std::unique_ptr<TcpClient>> TcpClient::connect(std::string_view address, std::uint16_t port, Deadline deadline,
                                                      const TcpClientOptions& options) {
  const auto servers = literal_socket_addresses(address, port);
  if (servers.empty()) {
    return fail(Errc::invalid_argument, concat("'", address, "' is not an IP address; give one, or localhost"));
  }
  if (port == 0) return fail(Errc::invalid_argument, "port 0 is nobody's; give the port of the store's server");
  auto cancel_event = make_cancel_event();
  if (!cancel_event) return error_of(cancel_event);
  auto connection = ClientConnection::open(servers, deadline, cancel_event->get());
  if (!connection) return error_of(connection);
  return std::unique_ptr<TcpClient>(
      new TcpClient(std::make_unique<Pool>(std::move(*connection), std::move(*cancel_event), options)));
}

Result<std::unique_ptr<TcpClient>> TcpClient::clone(Deadline deadline) const {
  auto cancel_event = make_cancel_event();
  if (!cancel_event) return error_of(cancel_event);
  auto connection = ClientConnection::open({&pool_->server(), 1}, deadline, cancel_event->get());
  if (!connection) return error_of(connection);
  return std::unique_ptr<TcpClient>(
      new TcpClient(std::make_unique<Pool>(std::move(*connection), std::move(*cancel_event), pool_->options())));
}

void TcpClient::cancel() noexcept { pool_->cancel(); }

const std::string& TcpClient::server() const { return pool_->name(); }

Result<void> TcpClient::set(std::string_view key, std::string_view value, Deadline deadline) {
  if (auto ok = check_value(key, value); !ok) return ok;
  return pool_->run(deadline, true, [&](Pool::Lease& lease) {
    wire::put_bytes(lease->begin(Opcode::set, key), value);
    return pool_->send(lease, deadline);
  });
}

Result<std::string> TcpClient::get(std::string_view key, Deadline deadline) {
  if (auto ok = check_key(key); !ok) return error_of(ok);
  const std::string name(key);
  return pool_->run(deadline, true, [&](Pool::Lease& lease) -> Result<std::string> {
    if (auto ok = lease.block(deadline); !ok) return error_of(ok);
    lease->begin(Opcode::wait, {&name, 1});
    if (auto ok = lease->wait(deadline, describe_keys({&name, 1})); !ok) return error_of(ok);
    lease.unblock();
    lease->begin(Opcode::get, key);
    if (auto ok = lease->send(deadline); !ok) return error_of(ok);
    return lease->receive_bytes(deadline);
  });
}

Result<std::int64_t> TcpClient::add(std::string_view key, std::int64_t delta, Deadline deadline) {
  if (auto ok = check_key(key); !ok) return error_of(ok);
  return pool_->run(deadline, false, [&](Pool::Lease& lease) -> Result<std::int64_t> {
    wire::put(lease->begin(Opcode::add, key), delta);
    if (auto ok = lease->send(deadline); !ok) return error_of(ok);
    return lease->receive<std::int64_t>(deadline);
  });
}

Result<void> TcpClient::wait(std::span<const std::string> keys, Deadline deadline) {
  if (auto ok = check_keys(keys); !ok) return ok;
  return pool_->run(deadline, true, [&](Pool::Lease& lease) -> Result<void> {
    if (auto ok = lease.block(deadline); !ok) return ok;
    lease->begin(Opcode::wait, keys);
    return lease->wait(deadline, describe_keys(keys));
  });
}

Result<bool> TcpClient::check(std::span<const std::string> keys, Deadline deadline) {
  if (auto ok = check_keys(keys); !ok) return error_of(ok);
  return pool_->run(deadline, true, [&](Pool::Lease& lease) -> Result<bool> {
    lease->begin(Opcode::check, keys);
    if (auto ok = lease->send(deadline); !ok) return error_of(ok);
    auto answer = lease->receive<char>(deadline);
    if (!answer) return error_of(answer);
    return *answer == wire::check_ready;
  });
}

Result<std::string> TcpClient::compare_set(std::string_view key, std::string_view expected, std::string_view desired,
                                           Deadline deadline) {
  if (auto ok = check_value(key, expected); !ok) return error_of(ok);
  if (auto ok = check_value(key, desired); !ok) return error_of(ok);
  return pool_->run(deadline, false, [&](Pool::Lease& lease) -> Result<std::string> {
    auto& request = lease->begin(Opcode::compare_set, key);
    wire::put_bytes(request, expected);
    wire::put_bytes(request, desired);
    if (auto ok = lease->send(deadline); !ok) return error_of(ok);
    return lease->receive_bytes(deadline);
  });
}

Result<bool> TcpClient::delete_key(std::string_view key, Deadline deadline) {
  if (auto ok = check_key(key); !ok) return error_of(ok);
  return pool_->run(deadline, false, [&](Pool::Lease& lease) -> Result<bool> {
    lease->begin(Opcode::delete_key, key);
    if (auto ok = lease->send(deadline); !ok) return error_of(ok);
    auto deleted = lease->receive<std::int64_t>(deadline);
    if (!deleted) return error_of(deleted);
    return *deleted > 0;
  });
}

Result<std::int64_t> TcpClient::num_keys(Deadline deadline) {
  return pool_->run(deadline, true, [&](Pool::Lease& lease) -> Result<std::int64_t> {
    lease->begin(Opcode::num_keys);
    if (auto ok = lease->send(deadline); !ok) return error_of(ok);
    return lease->receive<std::int64_t>(deadline);
  });
}

Result<std::vector<std::string>> TcpClient::list_keys(Deadline deadline) {
  return pool_->run(deadline, true, [&](Pool::Lease& lease) -> Result<std::vector<std::string>> {
    lease->begin(Opcode::list_keys);
    if (auto ok = lease->send(deadline); !ok) return error_of(ok);
    auto count = lease->receive<std::int64_t>(deadline);
    if (!count) return error_of(count);
    if (*count < 0) return lease->nonsense(concat(*count, " as the number of keys"));
    std::vector<std::string> keys;
    for (auto left = *count; left > 0; --left) {
      auto key = lease->receive_bytes(deadline);
      if (!key) return error_of(key);
      // Keys without it are not of this store's making, such as PyTorch's "init/".
      if (key->starts_with('/')) keys.push_back(key->substr(1));
    }
    return keys;
  });
}

Result<void> TcpClient::append(std::string_view key, std::string_view value, Deadline deadline) {
  if (auto ok = check_value(key, value); !ok) return ok;
  return pool_->run(deadline, false, [&](Pool::Lease& lease) {
    wire::put_bytes(lease->begin(Opcode::append, key), value);
    return pool_->send(lease, deadline);
  });
}

Result<std::vector<std::string>> TcpClient::multi_get(std::span<const std::string> keys, Deadline deadline) {
  if (auto ok = check_keys(keys); !ok) return error_of(ok);
  if (keys.empty()) return std::vector<std::string>();
  return pool_->run(deadline, true, [&](Pool::Lease& lease) -> Result<std::vector<std::string>> {
    if (auto ok = lease.block(deadline); !ok) return error_of(ok);
    lease->begin(Opcode::wait, keys);
    if (auto ok = lease->wait(deadline, describe_keys(keys)); !ok) return error_of(ok);
    lease.unblock();
    lease->begin(Opcode::multi_get, keys);
    if (auto ok = lease->send(deadline); !ok) return error_of(ok);
    std::vector<std::string> values;
    values.reserve(keys.size());
    while (values.size() < keys.size()) {
      auto value = lease->receive_bytes(deadline);
      if (!value) return error_of(value);
      values.push_back(std::move(*value));
    }
    return values;
  });
}

Result<void> TcpClient::multi_set(std::span<const std::string> keys, std::span<const std::string> values,
                                  Deadline deadline) {
  if (auto ok = check_pairs(keys, values); !ok) return ok;
  return pool_->run(deadline, true, [&](Pool::Lease& lease) {
    auto& request = lease->begin(Opcode::multi_set);
    wire::put(request, static_cast<std::uint64_t>(keys.size()));
    for (std::size_t i = 0; i < keys.size(); ++i) {
      put_key(request, keys[i]);
      wire::put_bytes(request, values[i]);
    }
    return pool_->send(lease, deadline);
  });
}

Result<void> TcpClient::queue_push(std::string_view queue, std::string_view element, Deadline deadline) {
  if (auto ok = check_value(queue, element); !ok) return ok;
  return pool_->run(deadline, false, [&](Pool::Lease& lease) {
    wire::put_bytes(lease->begin(Opcode::queue_push, queue), element);
    return pool_->send(lease, deadline);
  });
}

Result<std::string> TcpClient::queue_pop(std::string_view queue, Deadline deadline) {
  if (auto ok = check_key(queue); !ok) return error_of(ok);
  const std::string name(queue);
  return pool_->run(deadline, false, [&](Pool::Lease& lease) -> Result<std::string> {
    std::chrono::milliseconds pause{0};
    for (;;) {
      if (auto ok = lease.block(deadline); !ok) return error_of(ok);
      lease->begin(Opcode::wait, {&name, 1});
      if (auto ok = lease->wait(deadline, concat("queue of ", described(queue))); !ok) return error_of(ok);
      lease.unblock();
      lease->begin(Opcode::queue_pop, queue);
      if (auto ok = lease->send(deadline); !ok) return error_of(ok);
      const auto length = lease->receive<std::int64_t>(deadline);
      if (!length) return tl::unexpected(length.error());
      if (*length > 0) return lease->receive_bytes(deadline);
      if (*length < 0) return lease->nonsense(concat(*length, " as the length of a queue"));
      // Gone to somebody else: wait for the next. Not at once if that happens again: a key of that name ends each wait.
      if (Clock::now() >= deadline) break;
      if (!pool_->sleep(std::min(deadline, Clock::now() + pause))) return cancelled();
      pause = std::min(2 * pause + std::chrono::milliseconds(1), std::chrono::milliseconds(100));
    }
    return fail(Errc::timeout, concat("the store's queue of ", described(queue), " is empty"));
  });
}

Result<std::int64_t> TcpClient::queue_length(std::string_view queue, Deadline deadline) {
  if (auto ok = check_key(queue); !ok) return error_of(ok);
  return pool_->run(deadline, true, [&](Pool::Lease& lease) -> Result<std::int64_t> {
    lease->begin(Opcode::queue_len, queue);
    if (auto ok = lease->send(deadline); !ok) return error_of(ok);
    return lease->receive<std::int64_t>(deadline);
  });
}

Result<void> TcpClient::barrier(std::string_view key, std::int64_t members, Deadline deadline) {
  if (auto ok = check_key(key); !ok) return ok;
  return pool_->run(deadline, false, [&](Pool::Lease& lease) -> Result<void> {
    if (auto ok = lease.block(deadline); !ok) return ok;
    wire::put(lease->begin(Opcode::barrier, key), members);
    return lease->wait(deadline, concat("barrier of ", described(key)));
  });
}

}  // namespace ddrun::store
