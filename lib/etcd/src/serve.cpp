#include "ddrun/etcd/serve.hpp"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <boost/asio/buffer.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/write.hpp>
#include <deque>
#include <optional>
#include <string_view>
#include <utility>
#include <variant>

#include "ddrun/base/text.hpp"
#include "ddrun/base/unique_fd.hpp"
#include "ddrun/helper/coprocess.hpp"
#include "ddrun/lease/lease.hpp"
#include "ddrun/lease/program_lines.hpp"
#include "held_lease.hpp"

// The peer counts its time to live from the moment it sent a tick, and may have been suspended since. So the lease is
// acquired and renewed only because of ticks, and each `mine` names the last tick that was read before its request was
// sent.

namespace ddrun::etcd {

namespace {

namespace asio = boost::asio;
namespace to_program = lease::to_program;
using boost::system::error_code;
using lease::FenceClock;
using lease::percent_encode;

constexpr std::size_t max_line_bytes = helper::Coprocess::max_line_bytes;
/// Limit of unread output.
constexpr std::size_t max_unread_bytes = 16 * max_line_bytes;
/// One more may be in flight when the line that names a tick is read.
constexpr std::size_t max_ticks = lease::tick_window - 1;

/// Reopens the file where possible: O_NONBLOCK belongs to the open file description, which a shell may share.
Result<UniqueFd> reopen_nonblocking(int fd, int mode) {
  struct stat info {};
  // A reopened regular file would start at offset 0.
  if (::fstat(fd, &info) == 0 && !S_ISREG(info.st_mode)) {
    UniqueFd reopened(::open(concat("/proc/self/fd/", fd).c_str(), mode | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
    if (reopened) return reopened;
  }
  return duplicate(fd);
}

class Service {
 public:
  explicit Service(const EtcdOptions& etcd) : etcd_(etcd), in_(io_), out_(io_), timer_(io_) {}

  ServeResult run(UniqueFd in, UniqueFd out) {
    error_code ec;
    in_.assign(in.get(), ec);
    if (!ec) static_cast<void>(in.release());
    if (!ec) out_.assign(out.get(), ec);
    if (ec) return {1, concat("cannot use the standard input and output: ", ec.message())};
    static_cast<void>(out.release());
    read();
    io_.run();
    return end_;
  }

 private:
  void end(int status, std::string why = {}) {
    end_ = {status, std::move(why)};
    ended_ = true;
    io_.stop();
  }

  // ---- input ----

  void read() {
    in_.async_read_some(asio::buffer(buffer_), [this](const error_code& ec, std::size_t size) {
      on_bytes(std::string_view(buffer_.data(), size));
      if (ended_) return;
      if (ec) return resign_and_end();
      read();
    });
  }

  void on_bytes(std::string_view bytes) {
    while (!ended_) {
      const auto line_end = bytes.find('\n');
      line_ += bytes.substr(0, line_end);
      if (line_.size() > max_line_bytes) return end(2, "was told a line that is longer than 64 KiB");
      if (line_end == std::string_view::npos) return;
      bytes.remove_prefix(line_end + 1);
      on_line(std::exchange(line_, {}));
    }
  }

  void on_line(const std::string& text) {
    const auto parsed = to_program::parse(text);
    const bool is_job = parsed && std::holds_alternative<to_program::Job>(*parsed);
    if (!parsed || is_job == (lease_ != nullptr)) {
      return end(2, concat("was told what is not in the protocol",
                           !parsed  ? ""
                           : is_job ? ", a second job"
                                    : " before a job",
                           ": '", cut_line(plain_line(text), 100), "'"));
    }
    std::visit([this](const auto& payload) { on(payload); }, *parsed);
  }

  void on(const to_program::Job& job) {
    if (job.version != 1) {
      return end(2, concat("speaks version 1 of the lease's protocol, and was told version ", job.version));
    }
    const lease::LeaseOptions options{job.job, job.ttl};
    if (const auto right = lease::check_options(options); !right) return end(2, right.error().message);
    lease::Callbacks callbacks;
    callbacks.on_leader = [this](const lease::Leader& leader) {
      // Own leadership is reported with a tick.
      if (!leader.is_self) send_line(concat("leader ", leader.term, " ", percent_encode(leader.address)));
    };
    callbacks.on_no_leader = [this] { send_line("none"); };
    callbacks.on_lost = [this](std::string_view why) {
      send_trouble(why);
      send_line("none");
    };
    callbacks.on_verdict = [this](std::string_view text) { send_line(concat("verdict ", percent_encode(text))); };
    callbacks.on_status = [this](std::string_view text) { send_trouble(text); };
    callbacks.on_unusable = [this](const Error& error) { end(1, error.message); };
    HeldLeaseEvents events;
    events.on_read = [this] { set_synced(); };
    events.on_held = [this](std::uint64_t term, FenceClock::time_point sent) { on_held(term, sent); };
    ttl_ = job.ttl;
    auto made = make_held_lease(io_.get_executor(), options, etcd_, std::move(callbacks), std::move(events));
    if (!made) return end(1, made.error().message);
    lease_ = std::move(*made);
    lease_->start();
  }

  void on(const to_program::Campaign& campaign) { lease_->campaign(campaign.address); }

  void on(const to_program::Tick& tick) {
    if (first_tick_ || (!ticks_.empty() && tick.number <= ticks_.back().number)) {
      return end(2, concat("was told tick ", tick.number, ", which is not due"));
    }
    ticks_.push_back({tick.number, FenceClock::now()});
    if (ticks_.size() > max_ticks) ticks_.pop_front();
    lease_->keep_alive();
    if (synced_) return done(tick.number);
    first_tick_ = tick.number;
    after_ttl([this] {
      if (!trouble_sent_) send_trouble(concat("etcd has not answered for ", format_duration(ttl_)));
      set_synced();
    });
  }

  void on(const to_program::Depose& depose) { lease_->depose(depose.term); }

  void on(const to_program::Resign&) {
    lease_->resign([this](const Result<void>& resigned) {
      if (!resigned) send_trouble(resigned.error().message);
      send_line("resigned");  // each is answered; a lease that was not given back is not renewed
    });
  }

  void on(const to_program::Verdict& verdict) {
    lease_->record_verdict(verdict.text, [this](const Result<void>& recorded) {
      if (recorded) return send_line("recorded");
      // With the lease lost, the outcome is unknown, which is not a refusal.
      if (recorded.error().code == Errc::unavailable && !lease_->is_leader()) send_line("none");
      send_line(concat("refused ", sentence(recorded.error().message)));
    });
  }

  /// End of input, or the reader is gone: lets others lead before the lease expires.
  void resign_and_end() {
    if (std::exchange(resigning_, true)) return;
    error_code ignored;
    in_.close(ignored);
    if (!lease_) return end(0);
    lease_->resign([this](const Result<void>&) { end(0); });
    after_ttl([this] { end(0); });
  }

  // ---- output ----

  /// etcd's state is known, or the time to live has passed: from now on ticks are answered at once.
  void set_synced() {
    synced_ = true;
    if (!first_tick_) return;
    timer_.cancel();
    done(*std::exchange(first_tick_, std::nullopt));
  }

  void done(std::uint64_t tick) { send_line(concat("done ", tick)); }

  void on_held(std::uint64_t term, FenceClock::time_point sent) {
    const auto tick =
        std::find_if(ticks_.rbegin(), ticks_.rend(), [&](const Tick& one) { return one.read_at <= sent; });
    // If the tick is no longer known, the next renewal reports.
    if (tick != ticks_.rend()) send_line(concat("mine ", term, " ", tick->number));
  }

  /// It may contain a proxy's page.
  static std::string sentence(std::string_view why) { return cut_line(plain_line(why), 1000); }

  void send_trouble(std::string_view why) {
    trouble_sent_ = true;
    send_line(concat("trouble ", sentence(why)));
  }

  void send_line(std::string_view line) {
    if (line.size() > max_line_bytes) return send_trouble("etcd holds what is too long for a line");
    if (unsent_.size() + line.size() > max_unread_bytes) return resign_and_end();
    unsent_.append(line).push_back('\n');
    write();
  }

  void write() {
    if (unsent_.empty() || !writing_.empty()) return;
    writing_ = std::exchange(unsent_, {});
    asio::async_write(out_, asio::buffer(writing_), [this](const error_code& ec, std::size_t) {
      if (ec) return resign_and_end();
      writing_.clear();
      write();
    });
  }

  template <class Action>
  void after_ttl(Action what) {
    timer_.expires_after(ttl_);
    timer_.async_wait([this, what](const error_code& ec) {
      if (!ec && !ended_ && Clock::now() >= timer_.expiry()) what();
    });
  }

  struct Tick {
    std::uint64_t number;
    FenceClock::time_point read_at;
  };

  const EtcdOptions& etcd_;
  asio::io_context io_{1};
  asio::posix::stream_descriptor in_, out_;
  asio::steady_timer timer_;
  std::shared_ptr<HeldLease> lease_;
  Milliseconds ttl_{};
  std::deque<Tick> ticks_;
  std::optional<std::uint64_t> first_tick_;  ///< unanswered
  std::array<char, 4096> buffer_{};
  std::string line_, unsent_, writing_;
  bool synced_ = false, trouble_sent_ = false, resigning_ = false, ended_ = false;
  ServeResult end_;
};

}  // namespace

ServeResult serve(const EtcdOptions& etcd, int in, int out) {
  auto own_in = reopen_nonblocking(in, O_RDONLY), own_out = reopen_nonblocking(out, O_WRONLY);
  for (const auto* one : {&own_in, &own_out}) {
    if (!*one) return {1, one->error().message};
  }
  return Service(etcd).run(std::move(*own_in), std::move(*own_out));
}

}  // namespace ddrun::etcd
