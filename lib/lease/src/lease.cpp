#include "ddrun/lease/lease.hpp"

#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/post.hpp>
#include <random>
#include <utility>

#include "ddrun/base/boot_time.hpp"
#include "ddrun/base/event_thread.hpp"
#include "ddrun/base/io_context.hpp"
#include "ddrun/base/text.hpp"

namespace ddrun::lease {

namespace {

namespace asio = boost::asio;
using boost::system::error_code;

constexpr std::size_t max_job_bytes = 512;

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

}  // namespace

FenceClock::time_point FenceClock::now() noexcept { return time_point(boot_time()); }

Result<std::unique_ptr<Lease>> Lease::make(asio::any_io_executor executor, const LeaseOptions& options,
                                           ProgramOptions program, Listener listener, RunOn run_on) {
  TRY(check_options(options, program));
  std::unique_ptr<asio::io_context> context;
  if (run_on == RunOn::own_thread) context = TRY(make_io_context());
  std::unique_ptr<Lease> lease(
      new Lease(std::move(executor), std::move(context), options, std::move(program), std::move(listener)));
  if (const int error = assign_descriptor(lease->timer_, make_boot_timer()); error != 0) {
    return fail_errno(Errc::unavailable, "no timer for the lease", error);
  }
  return lease;
}

Lease::Lease(asio::any_io_executor owner, std::unique_ptr<asio::io_context> context, const LeaseOptions& options,
             ProgramOptions program, Listener listener)
    : owner_(std::move(owner)),
      listener_(std::make_shared<const Listener>(std::move(listener))),
      context_(std::move(context)),
      executor_(context_ ? asio::any_io_executor(context_->get_executor()) : owner_),
      program_(std::move(program)),
      candidate_(options, program_.name.empty() ? program_.argv[0] : program_.name, std::random_device()()),
      timer_(executor_) {}

Lease::~Lease() {
  listener_.reset();
  if (!thread_.joinable()) return;
  context_->stop();
  thread_.join();
}

/// Not after destruction, which happens on the same thread, or within a call of the listener.
void Lease::post_to_owner(std::function<void(const Listener&)> what) {
  asio::post(owner_, [weak = alive_, what = std::move(what)] {
    if (const auto listener = weak.lock()) what(*listener);
  });
}

/// With a thread, calls that are left are dropped with its context; else they see that the listener is gone.
void Lease::call(Event event, std::uint64_t id, Call call) {
  asio::post(executor_, [this, weak = alive_, event = std::move(event), id, call = std::move(call)] {
    if (weak.expired()) return;
    if (id != 0) calls_[id] = call;
    step(event);
  });
}

// ---- the owner

Result<void> Lease::start() {
  await_timer();
  if (context_) {
    thread_ = TRY(start_thread_signals_blocked("ddrun-lease", [this] {
      const auto work = asio::make_work_guard(*context_);
      context_->run();
    }));
  }
  call(event::TimeIsUp{});
  return {};
}

void Lease::campaign(std::string address) { call(event::WantLead{std::move(address)}); }

void Lease::depose(std::uint64_t term) { call(event::Depose{term}); }

void Lease::resign(Done done) {
  const std::uint64_t id = ++last_id_;
  call(event::WantResign{id}, id, {std::move(done), false});
}

void Lease::resign_after(Milliseconds time) { call(event::WantResign{0, time}); }

void Lease::record_verdict(std::string text, Done done) {
  const std::uint64_t id = ++last_id_;
  call(event::Record{std::move(text), id}, id, {std::move(done), true});
}

// ---- the lease's thread

void Lease::step(const Event& event) {
  const auto actions = candidate_.step(event, FenceClock::now());
  held_until_ = candidate_.held_until();
  std::optional<std::string> not_started;
  for (const Action& action : actions) {
    if (const auto* what = std::get_if<Tell>(&action)) {
      post_to_owner([what = *what](const Listener& listener) { listener(what); });
    } else if (const auto* write = std::get_if<action::Write>(&action)) {
      if (coprocess_) coprocess_->send_line(to_program::serialize(write->line));
    } else if (const auto* complete = std::get_if<action::Complete>(&action)) {
      const auto call = calls_.extract(complete->id);
      if (call.mapped().records && complete->result) has_recorded_ = true;
      post_to_owner([done = call.mapped().done, result = complete->result](const Listener&) {
        if (done) done(result);
      });
    } else if (std::holds_alternative<action::Start>(action)) {
      not_started = start_program();
    } else if (std::holds_alternative<action::Kill>(action)) {
      coprocess_.reset();
    }
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
