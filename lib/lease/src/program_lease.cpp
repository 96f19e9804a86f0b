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
#include "ddrun/helper/conversation.hpp"
#include "ddrun/lease/fence.hpp"
#include "ddrun/lease/lease.hpp"
#include "ddrun/lease/program_lines.hpp"
#include "ddrun/lease/teller.hpp"
#include "ddrun/lease/verdict_record.hpp"

// PROTOCOL.md says what is said. The clock is ours alone: a `tick` is sent, and what the program does because of it has
// happened after that.

namespace ddrun::lease {

namespace {

namespace asio = boost::asio;
using boost::system::error_code;

constexpr Milliseconds longest_between_ticks{1000};
constexpr Milliseconds pause_before_restart{500};

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
        between_ticks_(std::min(options.ttl / 4, longest_between_ticks)),
        teller_(executor, std::move(callbacks)),
        tick_timer_(executor),
        patience_(executor),
        resign_timer_(executor),
        record_timer_(executor) {}

  Result<void> prepare() {
    if (argv_.empty() || argv_[0].empty()) return fail(Errc::invalid_argument, "no program for the lease is given");
    auto fence = Fence::make(executor_, [this] { fence_is_over(); });
    if (!fence) return tl::unexpected(fence.error());
    fence_ = std::move(*fence);
    return {};
  }

  void close() {
    closed_ = true;
    teller_.close();
    talk_.reset();
    fence_.reset();
    resigns_.clear();
    record_.drop();
    for (auto* timer : {&tick_timer_, &patience_, &resign_timer_, &record_timer_}) timer->cancel();
  }

  void start() override { begin(); }

  void campaign(std::string address) override {
    address_ = std::move(address);
    candidate_ = true;
    say_campaign();
    tick_again();
    if (term_ != 0) teller_.leader({term_, address_, true});
  }

  [[nodiscard]] bool leads() const override { return term_ != 0 && fence_->holds(); }

  void depose(std::uint64_t term) override {
    if (talk_ && term_ == 0) talk_->say(concat("depose ", term));
  }

  void resign(Done done) override {
    candidate_ = false;
    record_.fail("gave the lease back before the verdict was recorded");
    step_down();
    if (!talk_) return teller_.answer(std::move(done), {});
    say_resign(std::move(done));
    after(resign_timer_, ttl_, [this] {
      all_resigned(fail(Errc::unavailable, concat("the lease was not given back: ", argv_[0], " has not answered")));
    });
  }

  void record_verdict(std::string text, Done done) override {
    if (!record_.begin(std::move(text), std::move(done), verdict_, leads())) return;
    talk_->say(concat("verdict ", to_word(record_.text())));
    asked_.push_back(record_.text());
    after(record_timer_, ttl_,
          [this] { record_.fail(concat(argv_[0], " has not answered for ", format_duration(ttl_)), Errc::timeout); });
  }

 private:
  template <class What>
  void after(asio::steady_timer& timer, Clock::duration time, What what) {
    timer.expires_after(time);
    timer.async_wait([weak = weak_from_this(), &timer, what](const error_code& ec) {
      const auto self = weak.lock();
      if (!ec && self && !self->closed_ && Clock::now() >= timer.expiry()) what();
    });
  }

  // ---- the program ----

  void begin() {
    auto started = helper::Conversation::start(
        executor_, argv_, environment_, [this](std::string_view text) { heard(text); },
        [this](std::string why) { ended(why); });
    if (!started) return ended(started.error().message);
    talk_ = std::move(*started);
    if (on_start_) on_start_(talk_->pid());
    ticks_.clear();
    asked_.clear();
    waiting_ = false;
    talk_->say(concat("job 1 ", ttl_.count(), " ", to_word(job_)));
    if (candidate_) say_campaign();
    // Not all candidates of a job in the same moment.
    after(tick_timer_, Milliseconds(random_() % 20), [this] { tick(); });
  }

  /// What the program has taken because of a tick before this, and tells only now, it gives back as it hears it.
  void say_resign(Done done = nullptr) {
    given_up_at_ = last_tick_;
    resigns_.push_back(std::move(done));
    talk_->say("resign");
  }

  void say_campaign() {
    if (talk_) talk_->say(concat("campaign ", to_word(address_)));
  }

  void tick() {
    after(tick_timer_, between_ticks_ / 2 + Milliseconds(random_() % static_cast<unsigned>(between_ticks_.count())),
          [this] { tick(); });
    if (!talk_ || std::exchange(waiting_, true)) return;
    ticks_.push_back({++last_tick_, FenceClock::now()});
    if (ticks_.size() > ticks_known) ticks_.pop_front();
    talk_->say(concat("tick ", last_tick_));
    after(patience_, 2 * ttl_, [this] { end_it(concat("has not answered for ", format_duration(2 * ttl_))); });
  }

  /// What the program takes because of a tick before `resign` counts for nothing: a candidate does not wait until the
  /// next one is due.
  void tick_again() {
    if (talk_ && candidate_ && last_tick_ != 0 && last_tick_ <= given_up_at_ && !waiting_) tick();
  }

  void ended(const std::string& why) {
    talk_.reset();
    tick_timer_.cancel();
    patience_.cancel();
    all_resigned({});
    if (term_ != 0 || record_.under_way()) lost(why);
    if (!answered_) {
      candidate_ = false;
      return teller_.unusable(Error{Errc::unavailable, concat("the lease's program does not work: ", why)});
    }
    teller_.trouble(concat("the lease's program is started again: ", why));
    teller_.no_leader();
    after(tick_timer_, pause_before_restart, [this] { begin(); });
  }

  void end_it(const std::string& what) { ended(concat(argv_[0], " ", what)); }

  void heard(std::string_view text) {
    const auto parsed = line::parse(text);
    if (!parsed) return end_it(concat("says what is not in the protocol: '", cut_line(plain_line(text), 100), "'"));
    std::visit([this](const auto& said) { on(said); }, *parsed);
  }

  void on(const line::Done& done) {
    if (done.tick != last_tick_ || !waiting_)
      return end_it(concat("is done with tick ", done.tick, ", which is not due"));
    waiting_ = false;
    answered_ = true;
    patience_.cancel();
    tick_again();
  }

  void on(const line::Mine& mine) {
    const auto tick = std::find_if(ticks_.begin(), ticks_.end(), [&](const Tick& t) { return t.number == mine.tick; });
    if (tick == ticks_.end()) return end_it(concat("speaks of tick ", mine.tick, ", which is not one of the last"));
    // Given up, but it has not heard of that yet.
    if (!candidate_ || mine.tick <= given_up_at_ || (term_ == 0 && mine.term <= highest_term_)) return;
    if (term_ != 0 && mine.term != term_) return lost(concat(argv_[0], " holds another term"));
    fence_->renewed(tick->sent, ttl_);
    if (!fence_->holds()) return fence_is_over();
    term_ = highest_term_ = mine.term;
    teller_.leader({term_, address_, true});
  }

  void on(const line::Other& other) {
    if (term_ != 0) lost("another has it");
    // Mine, of a program before this one: it runs out.
    if (other.term == former_term_) return teller_.no_leader();
    if (other.term < highest_term_) {
      teller_.trouble(concat("a leader of term ", other.term, " is not obeyed after one of term ", highest_term_));
      return teller_.no_leader();
    }
    highest_term_ = other.term;
    teller_.leader({other.term, other.address, false});
  }

  void on(const line::None&) {
    if (term_ != 0) lost("it is gone");
    teller_.no_leader();
  }

  void on(const line::Verdict& verdict) {
    if (verdict_ == verdict.text) return;
    verdict_ = verdict.text;
    teller_.verdict(verdict.text);
    record_.there_is(verdict.text);
  }

  /// Each `verdict` is answered, in order: what comes too late is not about the text that is asked for meanwhile.
  void on(const line::Recorded&) {
    if (asked_.empty()) return;
    const std::string text = std::move(asked_.front());
    asked_.pop_front();
    on(line::Verdict{text});
  }

  /// Whether it was recorded all the same is not known: another verdict that the job has is told of as such.
  void on(const line::Refused& refused) {
    if (!asked_.empty()) asked_.pop_front();
    if (asked_.empty()) record_.fail(refused.why);
  }
  /// Each `resign` is answered, in order.
  void on(const line::Resigned&) {
    if (resigns_.empty()) return;
    Done done = std::move(resigns_.front());
    resigns_.pop_front();
    if (resigns_.empty()) resign_timer_.cancel();
    teller_.answer(std::move(done), {});
  }
  void on(const line::Trouble& trouble) { teller_.trouble(trouble.text); }

  // ---- leading ----

  void all_resigned(const Result<void>& result) {
    resign_timer_.cancel();
    for (auto& done : std::exchange(resigns_, {})) teller_.answer(std::move(done), result);
  }

  void fence_is_over() {
    if (closed_ || fence_->holds()) return;
    if (term_ == 0) return;
    lost(concat(argv_[0], " could not renew it within ", format_duration(ttl_ - fence_margin(ttl_))));
  }

  void lost(const std::string& why) {
    record_.fail(concat("the lease is lost: ", why));
    const bool led = term_ != 0;
    step_down();
    if (led) teller_.lost(concat("the lease is lost: ", why));
    // Whatever it believes to hold is given up; the next time is a new term.
    if (talk_ && led) say_resign();
    if (candidate_) say_campaign();
    tick_again();
  }

  void step_down() {
    if (term_ != 0) former_term_ = term_;
    term_ = 0;
    fence_->drop();
    teller_.forget_me();
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
  Milliseconds ttl_, between_ticks_;
  Teller teller_;
  std::unique_ptr<Fence> fence_;
  std::unique_ptr<helper::Conversation> talk_;
  asio::steady_timer tick_timer_, patience_, resign_timer_, record_timer_;
  std::minstd_rand random_{std::random_device()()};
  std::deque<Tick> ticks_;
  std::uint64_t last_tick_ = 0;
  std::uint64_t given_up_at_ = 0;  ///< the last tick before `resign`
  bool waiting_ = false;           ///< for `done` of the last tick
  bool answered_ = false;          ///< ever
  bool candidate_ = false, closed_ = false;
  std::string address_;
  std::atomic<std::uint64_t> term_ = 0;
  std::uint64_t highest_term_ = 0;
  std::uint64_t former_term_ = 0;  ///< the last one that I led in
  std::optional<std::string> verdict_;
  VerdictRecord record_{teller_};
  std::deque<std::string> asked_;  ///< verdicts that were said, and are not answered yet
  std::deque<Done> resigns_;       ///< said, and not answered yet
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
