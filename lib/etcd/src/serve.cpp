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
#include "ddrun/helper/conversation.hpp"
#include "ddrun/lease/lease.hpp"
#include "ddrun/lease/program_lines.hpp"
#include "held_lease.hpp"

// Who talks to us counts its time to live from when it said a tick, and may have stopped since. So a lease is tried for
// and renewed because of ticks alone, and each `mine` names the last one that was read before the request that brought
// it about was sent.

namespace ddrun::etcd {

namespace {

namespace asio = boost::asio;
namespace said = lease::said;
using boost::system::error_code;
using lease::FenceClock;
using lease::to_word;

constexpr std::size_t longest_line = helper::Conversation::longest_line;
/// So much may wait for a reader.
constexpr std::size_t most_unread = 16 * longest_line;
/// One more may be under way when the line that names a tick is read.
constexpr std::size_t ticks_kept = lease::ticks_known - 1;

/// That open file for us alone where that can be: O_NONBLOCK belongs to the open file, which a shell may share.
Result<UniqueFd> own(int fd, int mode) {
  struct stat what {};
  // Opened anew a file begins at its beginning.
  if (::fstat(fd, &what) == 0 && !S_ISREG(what.st_mode)) {
    UniqueFd anew(::open(concat("/proc/self/fd/", fd).c_str(), mode | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
    if (anew) return anew;
  }
  return duplicate(fd);
}

class Service {
 public:
  explicit Service(const EtcdOptions& etcd) : etcd_(etcd), in_(io_), out_(io_), timer_(io_) {}

  ServeEnd run(UniqueFd in, UniqueFd out) {
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
    over_ = true;
    io_.stop();
  }

  // ---- what is said to us ----

  void read() {
    in_.async_read_some(asio::buffer(room_), [this](const error_code& ec, std::size_t size) {
      take(std::string_view(room_.data(), size));
      if (over_) return;
      if (ec) return give_back();
      read();
    });
  }

  void take(std::string_view bytes) {
    while (!over_) {
      const auto line_end = bytes.find('\n');
      line_ += bytes.substr(0, line_end);
      if (line_.size() > longest_line) return end(2, "was told a line that is longer than 64 KiB");
      if (line_end == std::string_view::npos) return;
      bytes.remove_prefix(line_end + 1);
      hear(std::exchange(line_, {}));
    }
  }

  void hear(const std::string& text) {
    const auto parsed = said::parse(text);
    const bool is_job = parsed && std::holds_alternative<said::Job>(*parsed);
    if (!parsed || is_job == (lease_ != nullptr)) {
      return end(2, concat("was told what is not in the protocol",
                           !parsed  ? ""
                           : is_job ? ", a second job"
                                    : " before a job",
                           ": '", cut_line(plain_line(text), 100), "'"));
    }
    std::visit([this](const auto& what) { on(what); }, *parsed);
  }

  void on(const said::Job& job) {
    if (job.version != 1) {
      return end(2, concat("speaks version 1 of the lease's protocol, and was told version ", job.version));
    }
    const lease::LeaseOptions options{job.job, job.ttl};
    if (const auto right = lease::check_options(options); !right) return end(2, right.error().message);
    lease::Callbacks callbacks;
    callbacks.on_leader = [this](const lease::Leader& leader) {
      // That it is me is told with a tick.
      if (!leader.is_me) say(concat("leader ", leader.term, " ", to_word(leader.address)));
    };
    callbacks.on_no_leader = [this] { say("none"); };
    callbacks.on_lost = [this](std::string_view why) {
      say_trouble(why);
      say("none");
    };
    callbacks.on_verdict = [this](std::string_view text) { say(concat("verdict ", to_word(text))); };
    callbacks.on_trouble = [this](std::string_view text) { say_trouble(text); };
    callbacks.on_unusable = [this](const Error& error) { end(1, error.message); };
    HeldLeaseEvents events;
    events.on_read = [this] { settle(); };
    events.on_held = [this](std::uint64_t term, FenceClock::time_point sent) { held(term, sent); };
    ttl_ = job.ttl;
    auto made = make_held_lease(io_.get_executor(), options, etcd_, std::move(callbacks), std::move(events));
    if (!made) return end(1, made.error().message);
    lease_ = std::move(*made);
    lease_->start();
  }

  void on(const said::Campaign& campaign) { lease_->campaign(campaign.address); }

  void on(const said::Tick& tick) {
    if (first_tick_ || (!ticks_.empty() && tick.number <= ticks_.back().number)) {
      return end(2, concat("was told tick ", tick.number, ", which is not due"));
    }
    ticks_.push_back({tick.number, FenceClock::now()});
    if (ticks_.size() > ticks_kept) ticks_.pop_front();
    lease_->keep();
    if (settled_) return done(tick.number);
    first_tick_ = tick.number;
    after_ttl([this] {
      if (!troubled_) say_trouble(concat("etcd has not answered for ", format_duration(ttl_)));
      settle();
    });
  }

  void on(const said::Depose& depose) { lease_->depose(depose.term); }

  void on(const said::Resign&) {
    lease_->resign([this](const Result<void>& resigned) {
      if (!resigned) say_trouble(resigned.error().message);
      say("resigned");  // each is answered: what was not given back is not renewed either
    });
  }

  void on(const said::Verdict& verdict) {
    lease_->record_verdict(verdict.text, [this](const Result<void>& recorded) {
      if (recorded) return say("recorded");
      // With the lease it is lost whether it was: that is no refusal.
      if (recorded.error().code == Errc::unavailable && !lease_->leads()) say("none");
      say(concat("refused ", sentence(recorded.error().message)));
    });
  }

  /// The end of what is said, or nobody to hear us: others need not wait until the lease runs out.
  void give_back() {
    if (std::exchange(giving_back_, true)) return;
    error_code ignored;
    in_.close(ignored);
    if (!lease_) return end(0);
    lease_->resign([this](const Result<void>&) { end(0); });
    after_ttl([this] { end(0); });
  }

  // ---- what we say ----

  /// What etcd has is known, or it has had its time: from here on ticks are answered at once.
  void settle() {
    settled_ = true;
    if (!first_tick_) return;
    timer_.cancel();
    done(*std::exchange(first_tick_, std::nullopt));
  }

  void done(std::uint64_t tick) { say(concat("done ", tick)); }

  void held(std::uint64_t term, FenceClock::time_point sent) {
    const auto tick =
        std::find_if(ticks_.rbegin(), ticks_.rend(), [&](const Tick& one) { return one.read_at <= sent; });
    // An answer so late that its tick is forgotten: the next renewal will tell.
    if (tick != ticks_.rend()) say(concat("mine ", term, " ", tick->number));
  }

  /// A proxy's page may be in it.
  static std::string sentence(std::string_view why) { return cut_line(plain_line(why), 1000); }

  void say_trouble(std::string_view why) {
    troubled_ = true;
    say(concat("trouble ", sentence(why)));
  }

  void say(std::string_view line) {
    if (line.size() > longest_line) return say_trouble("etcd holds what is too long for a line");
    if (waiting_.size() + line.size() > most_unread) return give_back();
    waiting_.append(line).push_back('\n');
    write();
  }

  void write() {
    if (waiting_.empty() || !being_written_.empty()) return;
    being_written_ = std::exchange(waiting_, {});
    asio::async_write(out_, asio::buffer(being_written_), [this](const error_code& ec, std::size_t) {
      if (ec) return give_back();
      being_written_.clear();
      write();
    });
  }

  template <class What>
  void after_ttl(What what) {
    timer_.expires_after(ttl_);
    timer_.async_wait([this, what](const error_code& ec) {
      if (!ec && !over_ && Clock::now() >= timer_.expiry()) what();
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
  std::optional<std::uint64_t> first_tick_;  ///< that is not answered yet
  std::array<char, 4096> room_{};
  std::string line_, waiting_, being_written_;
  bool settled_ = false, troubled_ = false, giving_back_ = false, over_ = false;
  ServeEnd end_;
};

}  // namespace

ServeEnd serve(const EtcdOptions& etcd, int in, int out) {
  auto own_in = own(in, O_RDONLY), own_out = own(out, O_WRONLY);
  for (const auto* one : {&own_in, &own_out}) {
    if (!*one) return {1, one->error().message};
  }
  return Service(etcd).run(std::move(*own_in), std::move(*own_out));
}

}  // namespace ddrun::etcd
