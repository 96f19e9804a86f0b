#include "ddrun/lease/lease.hpp"

#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/post.hpp>
#include <cerrno>
#include <random>
#include <utility>

#include "ddrun/base/event_thread.hpp"
#include "ddrun/base/io_context.hpp"
#include "ddrun/base/text.hpp"
#include "ddrun/base/unique_fd.hpp"

namespace ddrun::lease {

namespace {

namespace asio = boost::asio;
using boost::system::error_code;

constexpr std::size_t max_job_bytes = 512;

template <class... Functions>
struct Overloaded : Functions... {
  using Functions::operator()...;
};
template <class... Functions>
Overloaded(Functions...) -> Overloaded<Functions...>;

Result<void> check_options(const LeaseOptions& options, const ProgramOptions& program) {
  if (options.job.empty() || options.job.size() > max_job_bytes) {
    return fail(Errc::invalid_argument, concat("a job's id has 1 to ", max_job_bytes, " bytes"));
  }
  if (options.ttl < min_ttl || options.ttl.count() % 1000 != 0) {
    return fail(Errc::invalid_argument,
                concat("a lease's time to live is ", duration_text(min_ttl),
                       " seconds or more, and whole seconds, not ", duration_text(options.ttl)));
  }
  if (program.argv.empty() || program.argv[0].empty()) {
    return fail(Errc::invalid_argument, "no program for the lease is given");
  }
  return {};
}

UniqueFd make_timer() {
  UniqueFd timer(::timerfd_create(CLOCK_BOOTTIME, TFD_CLOEXEC | TFD_NONBLOCK));
  if (!timer && errno == EINVAL) timer = UniqueFd(::timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK));
  return timer;
}

}  // namespace

FenceClock::time_point FenceClock::now() noexcept {
  timespec time{};
  ::clock_gettime(CLOCK_BOOTTIME, &time);
  return time_point(std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec));
}

void Callbacks::report(const Tell& what) const {
  const auto call = [](const auto& callback, const auto&... arguments) {
    if (callback) callback(arguments...);
  };
  std::visit(Overloaded{[&](const Leader& leader) { call(on_leader, leader); },
                        [&](const tell::NoLeader&) { call(on_no_leader); },
                        [&](const tell::Lost& lost) { call(on_lost, lost.why); },
                        [&](const tell::Verdict& verdict) { call(on_verdict, verdict.text); },
                        [&](const tell::Status& status) { call(on_status, status.text); },
                        [&](const tell::Unusable& unusable) { call(on_unusable, unusable.error); }},
             what);
}

Result<std::unique_ptr<Lease>> Lease::make(asio::any_io_executor executor, const LeaseOptions& options,
                                           ProgramOptions program, Callbacks callbacks, RunOn run_on) {
  if (auto right = check_options(options, program); !right) return tl::unexpected(std::move(right.error()));
  std::unique_ptr<asio::io_context> context;
  if (run_on == RunOn::own_thread) {
    auto made = make_io_context();
    if (!made) return tl::unexpected(std::move(made.error()));
    context = std::move(*made);
  }
  std::unique_ptr<Lease> lease(
      new Lease(std::move(executor), std::move(context), options, std::move(program), std::move(callbacks)));
  if (const int error = assign_descriptor(lease->timer_, make_timer()); error != 0) {
    return fail_errno(Errc::unavailable, "no timer for the lease", error);
  }
  return lease;
}

Lease::Lease(asio::any_io_executor owner, std::unique_ptr<asio::io_context> context, const LeaseOptions& options,
             ProgramOptions program, Callbacks callbacks)
    : owner_(std::move(owner)),
      callbacks_(std::make_shared<const Callbacks>(std::move(callbacks))),
      context_(std::move(context)),
      executor_(context_ ? asio::any_io_executor(context_->get_executor()) : owner_),
      program_(std::move(program)),
      candidate_(options, program_.argv[0], std::random_device()()),
      timer_(executor_) {}

Lease::~Lease() {
  callbacks_.reset();
  if (!thread_.joinable()) return;
  context_->stop();
  thread_.join();
}

/// Not after destruction, which happens on the same thread, or within a callback.
template <class Action>
void Lease::post_to_owner(Action what) {
  asio::post(owner_, [weak = alive_, what = std::move(what)] {
    if (const auto callbacks = weak.lock()) what(*callbacks);
  });
}

/// With a thread, the functions that are left are dropped with its context; else they see that the callbacks are gone.
template <class Action>
void Lease::post_to_lease(Action what) {
  asio::post(executor_, [weak = alive_, what = std::move(what)]() mutable {
    if (!weak.expired()) what();
  });
}

// ---- the owner

Result<void> Lease::start() {
  if (context_) {
    auto thread = start_thread_signals_blocked("ddrun-lease", [this] {
      const auto work = asio::make_work_guard(*context_);
      context_->run();
    });
    if (!thread) return tl::unexpected(std::move(thread.error()));
    thread_ = std::move(*thread);
  }
  post_to_lease([this] { await_timer(); });
  call(event::Begin{});
  return {};
}

void Lease::call(Event event) {
  post_to_lease([this, event = std::move(event)] { step(event); });
}

void Lease::campaign(std::string address) {
  is_candidate_ = true;
  call(event::WantLead{std::move(address)});
}

void Lease::depose(std::uint64_t term) { call(event::Depose{term}); }

void Lease::resign(Done done) {
  is_candidate_ = false;
  if (!done) return call(event::WantResign{});
  post_to_lease([this, done = std::move(done)]() mutable {
    calls_[++last_id_] = {std::move(done)};
    step(event::WantResign{last_id_});
  });
}

void Lease::resign_after(Milliseconds time) { call(event::WantResign{0, time}); }

void Lease::record_verdict(std::string text, Done done) {
  post_to_lease([this, text = std::move(text), done = std::move(done)]() mutable {
    calls_[++last_id_] = {std::move(done), true};
    step(event::Record{std::move(text), last_id_});
  });
}

/// The callback comes last: it may destroy this.
void Lease::report(const Callbacks& callbacks, const Tell& what) {
  std::visit(Overloaded{[&](const Leader& leader) {
                          leader_ = leader;
                          last_error_.clear();
                        },
                        [&](const tell::NoLeader&) { leader_.reset(); }, [&](const tell::Lost&) { leader_.reset(); },
                        [&](const tell::Status& status) { last_error_ = status.text; },
                        [&](const tell::Unusable& unusable) { last_error_ = unusable.error.message; },
                        [](const tell::Verdict&) {}},
             what);
  callbacks.report(what);
}

// ---- the lease's thread

void Lease::step(const Event& event) {
  const auto actions = candidate_.step(event, FenceClock::now());
  held_until_ = candidate_.held_until();
  std::optional<std::string> not_started;
  for (const Action& action : actions) {
    std::visit(Overloaded{[&](const action::Start&) { not_started = start_program(); },
                          [&](const action::Kill&) { coprocess_.reset(); },
                          [&](const action::Write& write) {
                            if (coprocess_) coprocess_->send_line(to_program::serialize(write.line));
                          },
                          [&](const Tell& what) {
                            post_to_owner([this, what](const Callbacks& callbacks) { report(callbacks, what); });
                          },
                          [&](const action::Complete& call) { complete(call); }},
               action);
  }
  arm_timer();
  if (not_started) step(event::ProgramEnded{*std::move(not_started)});
}

/// Returns why it could not be started.
std::optional<std::string> Lease::start_program() {
  auto started = helper::Coprocess::start(
      executor_, program_.argv, program_.environment,
      [this](std::string_view text) {
        const auto line = from_program::parse(text);
        step(line ? Event(*line) : Event(event::Unparsable{std::string(text)}));
      },
      [this](std::string why) {
        coprocess_.reset();
        step(event::ProgramEnded{std::move(why)});
      });
  if (!started) return std::move(started.error().message);
  coprocess_ = std::move(*started);
  if (program_.on_start) program_.on_start(coprocess_->pid());
  return std::nullopt;
}

void Lease::complete(const action::Complete& call) {
  const auto found = calls_.extract(call.id);
  if (found.mapped().records && call.result) has_recorded_ = true;
  post_to_owner([done = std::move(found.mapped().done), result = call.result](const Callbacks&) { done(result); });
}

void Lease::await_timer() {
  timer_.async_wait(asio::posix::stream_descriptor::wait_read, [this, weak = alive_](const error_code& ec) {
    if (ec || weak.expired()) return;
    std::uint64_t times = 0;
    [[maybe_unused]] const auto size = ::read(timer_.native_handle(), &times, sizeof times);
    await_timer();
    step(event::TimeIsUp{});
  });
}

void Lease::arm_timer() {
  itimerspec when{};
  if (const auto next = candidate_.next_deadline()) {
    // Not 0, which would disarm it. Relative, which works for both clocks.
    const auto left = std::max<FenceClock::duration>(*next - FenceClock::now(), std::chrono::nanoseconds(1));
    when.it_value.tv_sec = static_cast<time_t>(left / std::chrono::seconds(1));
    when.it_value.tv_nsec = static_cast<long>((left % std::chrono::seconds(1)).count());
  }
  ::timerfd_settime(timer_.native_handle(), 0, &when, nullptr);
}

}  // namespace ddrun::lease
