#include "ddrun/lease/program_lease.hpp"

#include <algorithm>
#include <atomic>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <deque>
#include <optional>
#include <random>
#include <string>
#include <utility>

#include "ddrun/base/text.hpp"
#include "ddrun/helper/coprocess.hpp"
#include "ddrun/lease/callback_queue.hpp"
#include "ddrun/lease/fence.hpp"
#include "ddrun/lease/lease.hpp"
#include "ddrun/lease/program_lines.hpp"
#include "ddrun/lease/verdict_record.hpp"

// PROTOCOL.md describes the lines. Only the local clock counts: the program's reaction to a `tick` happens after that
// was sent.

namespace ddrun::lease {

namespace {

namespace asio = boost::asio;
using boost::system::error_code;

constexpr Milliseconds max_tick_interval{1000};
constexpr Milliseconds restart_delay{500};

class ProgramLease : public Lease, public std::enable_shared_from_this<ProgramLease> {
 public:
  ProgramLease(const asio::any_io_executor& executor, const LeaseOptions& options, const ProgramOptions& program,
               Callbacks callbacks)
      : executor_(executor),
        job_(options.job),
        argv_(program.argv),
        environment_(program.environment),
        on_start_(program.on_start),
        ttl_(options.ttl),
        tick_interval_(std::min(options.ttl / 4, max_tick_interval)),
        callbacks_(executor, std::move(callbacks)),
        tick_timer_(executor),
        done_timer_(executor),
        resign_timer_(executor),
        record_timer_(executor) {}

  Result<void> prepare() {
    if (argv_.empty() || argv_[0].empty()) return fail(Errc::invalid_argument, "no program for the lease is given");
    auto fence = Fence::make(executor_, [this] { on_fence_expired(); });
    if (!fence) return tl::unexpected(fence.error());
    fence_ = std::move(*fence);
    return {};
  }

  void close() {
    closed_ = true;
    callbacks_.close();
    coprocess_.reset();
    fence_.reset();
    pending_resigns_.clear();
    record_.drop();
    for (auto* timer : {&tick_timer_, &done_timer_, &resign_timer_, &record_timer_}) timer->cancel();
  }

  void start() override { start_program(); }

  void campaign(std::string address) override {
    address_ = std::move(address);
    candidate_ = true;
    send_campaign();
    tick_now();
    if (term_ != 0) callbacks_.leader({term_, address_, true});
  }

  [[nodiscard]] bool is_leader() const override { return term_ != 0 && fence_->is_held(); }

  void depose(std::uint64_t term) override {
    if (coprocess_ && term_ == 0) coprocess_->send_line(concat("depose ", term));
  }

  void resign(Done done) override {
    candidate_ = false;
    record_.fail("gave the lease back before the verdict was recorded");
    step_down();
    if (!coprocess_) return callbacks_.complete(std::move(done), {});
    send_resign(std::move(done));
    after(resign_timer_, ttl_, [this] {
      complete_resigns(
          fail(Errc::unavailable, concat("the lease was not given back: ", argv_[0], " has not answered")));
    });
  }

  void record_verdict(std::string text, Done done) override {
    if (!record_.begin(std::move(text), std::move(done), verdict_, is_leader())) return;
    coprocess_->send_line(concat("verdict ", percent_encode(record_.text())));
    pending_verdicts_.push_back(record_.text());
    after(record_timer_, ttl_,
          [this] { record_.fail(concat(argv_[0], " has not answered for ", format_duration(ttl_)), Errc::timeout); });
  }

 private:
  template <class Action>
  void after(asio::steady_timer& timer, Clock::duration time, Action what) {
    timer.expires_after(time);
    timer.async_wait([weak = weak_from_this(), &timer, what](const error_code& ec) {
      const auto self = weak.lock();
      if (!ec && self && !self->closed_ && Clock::now() >= timer.expiry()) what();
    });
  }

  // ---- the program ----

  void start_program() {
    auto started = helper::Coprocess::start(
        executor_, argv_, environment_, [this](std::string_view text) { on_line(text); },
        [this](std::string why) { on_program_ended(why); });
    if (!started) return on_program_ended(started.error().message);
    coprocess_ = std::move(*started);
    if (on_start_) on_start_(coprocess_->pid());
    ticks_.clear();
    pending_verdicts_.clear();
    awaiting_done_ = false;
    coprocess_->send_line(concat("job 1 ", ttl_.count(), " ", percent_encode(job_)));
    if (candidate_) send_campaign();
    // Spreads the candidates of a job.
    after(tick_timer_, Milliseconds(random_() % 20), [this] { tick(); });
  }

  /// A lease that the program acquired by an earlier tick, and reports only now, is given back by it when it reads
  /// this.
  void send_resign(Done done = nullptr) {
    resigned_at_tick_ = last_tick_;
    pending_resigns_.push_back(std::move(done));
    coprocess_->send_line("resign");
  }

  void send_campaign() {
    if (coprocess_) coprocess_->send_line(concat("campaign ", percent_encode(address_)));
  }

  void tick() {
    after(tick_timer_, tick_interval_ / 2 + Milliseconds(random_() % static_cast<unsigned>(tick_interval_.count())),
          [this] { tick(); });
    if (!coprocess_ || std::exchange(awaiting_done_, true)) return;
    ticks_.push_back({++last_tick_, FenceClock::now()});
    if (ticks_.size() > tick_window) ticks_.pop_front();
    coprocess_->send_line(concat("tick ", last_tick_));
    after(done_timer_, 2 * ttl_, [this] { fail_program(concat("has not answered for ", format_duration(2 * ttl_))); });
  }

  /// Leases acquired by ticks before `resign` do not count, so a candidate does not wait for the next regular tick.
  void tick_now() {
    if (coprocess_ && candidate_ && last_tick_ != 0 && last_tick_ <= resigned_at_tick_ && !awaiting_done_) tick();
  }

  void on_program_ended(const std::string& why) {
    coprocess_.reset();
    tick_timer_.cancel();
    done_timer_.cancel();
    complete_resigns({});
    if (term_ != 0 || record_.is_pending()) lost(why);
    if (!ever_done_) {
      candidate_ = false;
      return callbacks_.unusable(Error{Errc::unavailable, concat("the lease's program does not work: ", why)});
    }
    callbacks_.status(concat("the lease's program is started again: ", why));
    callbacks_.no_leader();
    after(tick_timer_, restart_delay, [this] { start_program(); });
  }

  void fail_program(const std::string& what) { on_program_ended(concat(argv_[0], " ", what)); }

  void on_line(std::string_view text) {
    const auto parsed = from_program::parse(text);
    if (!parsed)
      return fail_program(concat("says what is not in the protocol: '", cut_line(plain_line(text), 100), "'"));
    std::visit([this](const auto& line) { on(line); }, *parsed);
  }

  void on(const from_program::Done& done) {
    if (done.tick != last_tick_ || !awaiting_done_)
      return fail_program(concat("is done with tick ", done.tick, ", which is not due"));
    awaiting_done_ = false;
    ever_done_ = true;
    done_timer_.cancel();
    tick_now();
  }

  void on(const from_program::Mine& mine) {
    const auto tick = std::find_if(ticks_.begin(), ticks_.end(), [&](const Tick& t) { return t.number == mine.tick; });
    if (tick == ticks_.end())
      return fail_program(concat("speaks of tick ", mine.tick, ", which is not one of the last"));
    // Given up, but the program has not read that yet.
    if (!candidate_ || mine.tick <= resigned_at_tick_ || (term_ == 0 && mine.term <= highest_term_)) return;
    if (term_ != 0 && mine.term != term_) return lost(concat(argv_[0], " holds another term"));
    fence_->renewed(tick->sent, ttl_);
    if (!fence_->is_held()) return on_fence_expired();
    term_ = highest_term_ = mine.term;
    callbacks_.leader({term_, address_, true});
  }

  void on(const from_program::Other& other) {
    if (term_ != 0) lost("another has it");
    // The lease of this machine's former program: it expires.
    if (other.term == previous_term_) return callbacks_.no_leader();
    if (other.term < highest_term_) {
      callbacks_.status(concat("a leader of term ", other.term, " is not obeyed after one of term ", highest_term_));
      return callbacks_.no_leader();
    }
    highest_term_ = other.term;
    callbacks_.leader({other.term, other.address, false});
  }

  void on(const from_program::None&) {
    if (term_ != 0) lost("it is gone");
    callbacks_.no_leader();
  }

  void on(const from_program::Verdict& verdict) {
    if (verdict_ == verdict.text) return;
    verdict_ = verdict.text;
    callbacks_.verdict(verdict.text);
    record_.on_existing(verdict.text);
  }

  /// Each `verdict` is answered, in order: a late answer is about the earlier text.
  void on(const from_program::Recorded&) {
    if (pending_verdicts_.empty()) return;
    const std::string text = std::move(pending_verdicts_.front());
    pending_verdicts_.pop_front();
    on(from_program::Verdict{text});
  }

  /// The verdict may be recorded all the same; another one is then reported as `verdict`.
  void on(const from_program::Refused& refused) {
    if (!pending_verdicts_.empty()) pending_verdicts_.pop_front();
    if (pending_verdicts_.empty()) record_.fail(refused.why);
  }
  /// Each `resign` is answered, in order.
  void on(const from_program::Resigned&) {
    if (pending_resigns_.empty()) return;
    Done done = std::move(pending_resigns_.front());
    pending_resigns_.pop_front();
    if (pending_resigns_.empty()) resign_timer_.cancel();
    callbacks_.complete(std::move(done), {});
  }
  void on(const from_program::Trouble& trouble) { callbacks_.status(trouble.text); }

  // ---- leadership ----

  void complete_resigns(const Result<void>& result) {
    resign_timer_.cancel();
    for (auto& done : std::exchange(pending_resigns_, {})) callbacks_.complete(std::move(done), result);
  }

  void on_fence_expired() {
    if (closed_ || fence_->is_held()) return;
    if (term_ == 0) return;
    lost(concat(argv_[0], " could not renew it within ", format_duration(ttl_ - fence_margin(ttl_))));
  }

  void lost(const std::string& why) {
    record_.fail(concat("the lease is lost: ", why));
    const bool led = term_ != 0;
    step_down();
    if (led) callbacks_.lost(concat("the lease is lost: ", why));
    // The program gives up whatever it holds; the next lease has a new term.
    if (coprocess_ && led) send_resign();
    if (candidate_) send_campaign();
    tick_now();
  }

  void step_down() {
    if (term_ != 0) previous_term_ = term_;
    term_ = 0;
    fence_->drop();
    callbacks_.clear_self();
  }

  struct Tick {
    std::uint64_t number;
    FenceClock::time_point sent;
  };

  asio::any_io_executor executor_;
  std::string job_;
  std::vector<std::string> argv_;
  std::string environment_;
  std::function<void(pid_t)> on_start_;
  Milliseconds ttl_, tick_interval_;
  CallbackQueue callbacks_;
  std::unique_ptr<Fence> fence_;
  std::unique_ptr<helper::Coprocess> coprocess_;
  asio::steady_timer tick_timer_, done_timer_, resign_timer_, record_timer_;
  std::minstd_rand random_{std::random_device()()};
  std::deque<Tick> ticks_;
  std::uint64_t last_tick_ = 0;
  std::uint64_t resigned_at_tick_ = 0;  ///< last tick before `resign`
  bool awaiting_done_ = false;          ///< for `done` of the last tick
  bool ever_done_ = false;              ///< at least once
  bool candidate_ = false, closed_ = false;
  std::string address_;
  std::atomic<std::uint64_t> term_ = 0;
  std::uint64_t highest_term_ = 0;
  std::uint64_t previous_term_ = 0;  ///< of this machine's last leadership
  std::optional<std::string> verdict_;
  VerdictRecord record_{callbacks_};
  std::deque<std::string> pending_verdicts_;  ///< sent, unanswered
  std::deque<Done> pending_resigns_;          ///< sent, unanswered
};

}  // namespace

Result<std::shared_ptr<Lease>> make_program_lease(const asio::any_io_executor& executor, const LeaseOptions& options,
                                                  const ProgramOptions& program, Callbacks callbacks) {
  if (const auto right = check_options(options); !right) return tl::unexpected(right.error());
  auto lease = std::make_shared<ProgramLease>(executor, options, program, std::move(callbacks));
  if (const auto ready = lease->prepare(); !ready) return tl::unexpected(ready.error());
  return std::shared_ptr<Lease>(lease.get(), [lease](Lease*) { lease->close(); });
}

}  // namespace ddrun::lease
