#include "readiness.hpp"

#include <errno.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/read_until.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "ddrun/base/address.hpp"
#include "ddrun/base/messages.hpp"
#include "ddrun/base/text.hpp"
#include "ddrun/base/unique_fd.hpp"
#include "ddrun/inspect/port_user.hpp"
#include "ddrun/process/process_tree.hpp"
#include "worker_json.hpp"

namespace ddrun::agent {

namespace {

namespace asio = boost::asio;
using asio::ip::tcp;

/// For a connection and its answer.
constexpr Milliseconds answer_timeout{5'000};
constexpr Milliseconds notice_delay{5'000};
constexpr std::size_t max_answer_bytes = 4096;

std::vector<std::string> addresses_of_this_machine() {
  std::vector<std::string> all{"127.0.0.1", "::1"};
  for (const IpAddress& own : own_addresses()) {
    if (!own.is_loopback() && !own.is_link_local()) all.push_back(own.text());
  }
  return all;
}

/// False where the port has a listener, or another socket without SO_REUSEADDR.
bool can_bind(const char* any, int port) {
  const auto address = SocketAddress::parse(any, static_cast<std::uint16_t>(port));
  const UniqueFd fd(::socket(address->family(), SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int on = 1;
  ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (address->family() == AF_INET6) ::setsockopt(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, &on, sizeof on);
  return !fd || ::bind(fd.get(), address->get(), address->size) == 0 || errno != EADDRINUSE;
}

std::string describe_process(pid_t pid) { return concat("pid ", pid, " (", process::process_name(pid), ")"); }

/// Says that a process which is none of the job's has this port; else empty.
std::string foreign_user(int port) {
  const std::set<std::string> sockets = inspect::sockets_at(port, true);
  std::vector<pid_t> own;
  for (const auto& process : process::workers_and_their_descendants()) own.push_back(process.pid);
  if (own.empty() || inspect::find_holder(sockets, own) != 0) return {};
  const pid_t user = inspect::find_holder(sockets);
  return user == 0 ? "" : concat("port ", port, " is that of ", describe_process(user), ", no process of this job");
}

}  // namespace

Result<void> check_ports(const Preparation& prepared) {
  for (const WorkerPlace& place : prepared.places) {
    const ProgramSpec& program = prepared.program_of(place).command;
    const int port = program.port_of(place.number);
    if (port == 0 || (can_bind("0.0.0.0", port) && can_bind("::", port))) continue;
    const auto sockets = inspect::sockets_at(port, false);
    if (sockets.empty()) continue;
    const pid_t user = inspect::find_holder(sockets);
    return fail(Errc::unavailable,
                concat("port ", port, prepared.programs.size() > 1 ? concat(" (", program.role, ")") : "", " is in use",
                       user == 0 ? "" : " by " + describe_process(user), "; end that process, or give another --port"));
  }
  return {};
}

Milliseconds probe_pause(Milliseconds waited, bool has_answered) {
  return std::clamp(waited / 64, Milliseconds{has_answered ? 100 : 20}, Milliseconds{500});
}

bool is_ready_answer(std::string_view line) {
  const std::size_t blank = line.find(' ');
  if (!line.starts_with("HTTP/") || blank == std::string_view::npos) return false;
  const std::string_view status = line.substr(blank + 1, line.find(' ', blank + 1) - blank - 1);
  return status.size() == 3 && status.starts_with('2');
}

/// Of one worker.
struct Readiness::Probe {
  Probe(asio::io_context& io, const Worker& of, const PreparedProgram& prepared, int number)
      : worker(of),
        program(prepared.command),
        port(program.port_of(number)),
        socket(io),
        limit(io.get_executor()),
        pause(io),
        expiry(io.get_executor()) {}

  const Worker& worker;
  const ProgramSpec& program;
  int port;
  tcp::socket socket;
  Alarm limit;  ///< of the present question
  asio::steady_timer pause;
  Alarm expiry;
  std::string found = concat("nothing listens on port ", port);
  bool has_ended = false;

  [[nodiscard]] Clock::duration waited() const { return Clock::now() - worker.started_at; }
  void close() {
    boost::system::error_code ignored;
    socket.close(ignored);  // NOLINT(bugprone-unused-return-value)
  }
};

Readiness::Readiness(Job& job, WorkerGroup& group, std::function<void(const Event&)> dispatch)
    : job_(job), group_(group), dispatch_(std::move(dispatch)), notice_(job.io.get_executor()) {}

Readiness::~Readiness() = default;

void Readiness::begin() {
  ended_.clear();
  for (const Worker& worker : group_.workers()) {
    const WorkerPlace& place = job_.prepared.places[static_cast<std::size_t>(worker.end.slot)];
    const PreparedProgram& program = job_.prepared.program_of(place);
    if (!program.command.ready.empty()) waiting_.emplace_back(job_.io, worker, program, place.number);
  }
  if (waiting_.empty()) return dispatch_(event::ServicesReady{});
  notice_.set(Clock::now() + notice_delay, [this] {
    const Probe& first = waiting_.front();
    say(Level::notice, concat("waiting for ", describe(), " (", first.program.ready, ": ", first.found, ")"));
  });
  for (Probe& probe : waiting_) {
    probe.expiry.set(probe.worker.started_at + probe.program.ready_timeout, [this, &probe] { expire(probe); });
    asio::co_spawn(job_.io, watch(probe), asio::detached);
  }
}

void Readiness::cancel() {
  notice_.cancel();
  while (!waiting_.empty()) end(waiting_.front());
}

void Readiness::set_paused(bool paused) {
  notice_.set_paused(paused);
  for (Probe& probe : waiting_) probe.expiry.set_paused(paused);
}

asio::awaitable<void> Readiness::watch(Probe& probe) {
  constexpr auto as_result = asio::as_tuple(asio::use_awaitable);
  const ProgramSpec& program = probe.program;
  const std::vector<std::string> addresses = addresses_of_this_machine();
  while (true) {
    bool has_answered = false;
    for (const std::string& address : addresses) {
      const tcp::endpoint server(asio::ip::make_address(address), static_cast<std::uint16_t>(probe.port));
      std::string line;
      probe.socket = tcp::socket(job_.io);
      probe.limit.set(Clock::now() + answer_timeout, [&] { probe.close(); });
      const auto [refused] = co_await probe.socket.async_connect(server, as_result);
      if (!refused && program.ready != "tcp") {
        probe.found = concat("port ", probe.port, " does not answer");
        const std::string request =
            concat("GET ", program.ready.substr(program.ready.find('/')),
                   " HTTP/1.1\r\nHost: ", server.address().is_v6() ? concat("[", address, "]") : address, ":",
                   probe.port, "\r\nUser-Agent: ddrun\r\nConnection: close\r\n\r\n");
        co_await asio::async_write(probe.socket, asio::buffer(request), as_result);
        co_await asio::async_read_until(probe.socket, asio::dynamic_buffer(line, max_answer_bytes), '\r', as_result);
      }
      if (probe.has_ended) co_return;
      if (refused) continue;
      line = plain_line(line.substr(0, line.find('\r')));
      if (program.ready == "tcp" || is_ready_answer(line)) {
        probe.found = foreign_user(probe.port);
        if (probe.found.empty()) co_return on_ready(probe);
      } else if (!line.empty()) {
        has_answered = true;
        probe.found = concat("port ", probe.port, " answers ", cut_line(line, 60));
      }
      break;
    }
    probe.close();
    probe.limit.cancel();
    const auto waited = std::chrono::duration_cast<Milliseconds>(probe.waited());
    probe.pause.expires_after(probe_pause(waited, has_answered));
    co_await probe.pause.async_wait(as_result);
    if (probe.has_ended) co_return;
  }
}

void Readiness::end(Probe& probe) {
  probe.has_ended = true;
  probe.close();
  probe.limit.cancel();
  probe.pause.cancel();
  probe.expiry.cancel();
  const auto at = std::ranges::find_if(waiting_, [&](const Probe& one) { return &one == &probe; });
  ended_.splice(ended_.end(), waiting_, at);
}

void Readiness::on_ready(Probe& probe) {
  const WorkerEnd& worker = probe.worker.end;
  const std::chrono::duration<double> seconds = probe.waited();
  say(Level::info,
      concat(worker.name(), " is ready after ", format_duration(probe.waited()), " (", probe.program.ready, ")"));
  job_.events_file.write_line(one_line({{"event", "ready"},
                                        {"round", job_.ranks.round},
                                        {"host", job_.ranks.host},
                                        {"role", worker.role},
                                        {"rank", worker.rank},
                                        {"pid", worker.pid},
                                        {"waited_s", seconds.count()}}));
  end(probe);
  if (!waiting_.empty()) return;
  notice_.cancel();
  dispatch_(event::ServicesReady{});
}

void Readiness::expire(const Probe& late) {
  event::ReadyExpired expired{{},
                              concat(describe(), waiting_.size() == 1 ? " was" : " were", " not ready after ",
                                     format_duration(late.program.ready_timeout), " (--ready-timeout); ",
                                     late.program.ready, ": ", late.found)};
  for (const Probe& probe : waiting_) expired.slots.insert(probe.worker.end.slot);
  cancel();
  dispatch_(expired);
}

std::string Readiness::describe() const {
  std::vector<RankName> names;
  for (const Probe& probe : waiting_) names.push_back(probe.worker.end.rank_name());
  return name_workers(names);
}

}  // namespace ddrun::agent
