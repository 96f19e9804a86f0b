#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/post.hpp>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "ddrun/base/alarm.hpp"
#include "ddrun/base/messages.hpp"
#include "ddrun/rendezvous/rendezvous.hpp"
#include "member_machine.hpp"

namespace ddrun::rendezvous {

/// Returns a thread-safe, non-blocking function that logs its argument as a warning on `executor`, whose thread owns
/// the message sink. For servers with a thread each (store, coordinator). Messages after the executor has stopped are
/// dropped; its context must outlive the server.
[[nodiscard]] inline std::function<void(const std::string&)> warn_on(boost::asio::any_io_executor executor) {
  return [executor = std::move(executor)](const std::string& text) {
    boost::asio::post(executor, [text] { say(Level::warning, text); });
  };
}

/// What the drivers of a MemberMachine share: its events in order, its timer, and what it tells the agent. A driver
/// carries out the other actions.
class MemberDriver : public Rendezvous, public std::enable_shared_from_this<MemberDriver> {
 public:
  [[nodiscard]] bool runs_coordinator() const override { return machine_ && machine_->runs_coordinator(); }
  [[nodiscard]] const std::string& run_id() const override { return run_id_; }
  [[nodiscard]] std::string describe_wait() const override { return machine_->describe_wait(); }
  void join() override { step(member_event::Begin{}); }
  void send(const FromAgent& message) override { step(message); }
  void abandon(const std::string& /*why*/) override { step(member_event::Abandon{}); }
  void set_paused(bool /*paused*/) override {}
  void async_close(std::function<void()> done) override {
    done_ = std::move(done);
    step(member_event::Close{});
  }

 protected:
  MemberDriver(boost::asio::any_io_executor executor, RendezvousOptions options, RendezvousListener listener)
      : executor_(std::move(executor)),
        options_(std::move(options)),
        timer_(executor_),
        listener_(std::move(listener)) {}

  /// In open(). `options`: without what is the same for each driver.
  void start_machine(MemberOptions options);
  /// An event that an action causes waits until all actions before are carried out.
  void step(MemberEvent event);
  virtual void carry_out(const MemberAction& action) = 0;
  [[nodiscard]] virtual Clock::time_point now() const { return Clock::now(); }

  // In every driver:
  /// A round that ends before the agent, whose thread was blocked, has heard of it is not begun, but for the reason.
  void carry_out(const ToAgent& what) {
    if (const auto* stop = std::get_if<StopOrder>(&what); stop != nullptr && unheard_round_) {
      const Stopped stopped{*std::exchange(unheard_round_, std::nullopt)};
      if (stop->another_round && options_.spec->rendezvous.several_machines())
        carry_out(ToAgent(Log{LogKind::notice, stop->why}));
      return step(FromAgent(stopped));
    }
    const auto* begins = std::get_if<RoundBegins>(&what);
    if (begins != nullptr) unheard_round_ = begins->round;
    const auto round = begins != nullptr ? std::optional(begins->round) : std::nullopt;
    boost::asio::post(executor_, [self = shared_from_this(), what, round] {
      if (round && self->unheard_round_ != round) return;
      if (round) self->unheard_round_.reset();
      self->listener_(what);
    });
  }
  void carry_out(const member_action::Done&) { boost::asio::post(executor_, std::exchange(done_, {})); }

  boost::asio::any_io_executor executor_;
  RendezvousOptions options_;
  std::string run_id_;
  Alarm timer_;

 private:
  RendezvousListener listener_;
  std::optional<MemberMachine> machine_;
  std::deque<MemberEvent> events_;
  std::optional<Clock::time_point> armed_;  ///< the timer
  std::function<void()> done_;
  std::optional<Round> unheard_round_;  ///< RoundBegins is on its way to the agent
};

// The drivers of one machine (local_rendezvous.cpp) and of several (job_rendezvous.cpp).
[[nodiscard]] std::shared_ptr<Rendezvous> make_local_rendezvous(boost::asio::any_io_executor executor,
                                                                RendezvousOptions options, RendezvousListener listener);
[[nodiscard]] std::shared_ptr<Rendezvous> make_job_rendezvous(boost::asio::any_io_executor executor,
                                                              RendezvousOptions options, RendezvousListener listener);

}  // namespace ddrun::rendezvous
