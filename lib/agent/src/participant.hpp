#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "group_machine.hpp"

namespace ddrun::agent {

/// A part of a job on this machine beside its workers. Each call does not block and may come in any state.
class Participant {
 public:
  virtual ~Participant() = default;
  virtual void begin_attempt() {}
  /// Ctrl-Z and its end: time does not count meanwhile.
  virtual void set_paused(bool /*paused*/) {}
  /// Guard or sweeper is lost.
  virtual void stop(int /*signal*/) {}
  /// No event follows.
  virtual void close() {}
};

/// A step on this machine before the workers of an attempt are spawned. Steps run one after the other.
class StartStep {
 public:
  /// The failure, or none.
  using Done = std::function<void(std::optional<event::SpawnFailed>)>;

  virtual ~StartStep() = default;
  /// `done` is called once, also from within.
  virtual void begin(Done done) = 0;
  /// `done` is called soon: after SIGKILL at once, else when what was begun has ended.
  virtual void cancel(int signal) = 0;
};

/// The steps of an attempt, in the order of add().
class StartSteps {
 public:
  /// `step` is borrowed.
  void add(StartStep& step) { steps_.push_back(&step); }
  /// Until one fails, or cancel().
  void begin(StartStep::Done done) {
    done_ = std::move(done);
    next_ = 0;
    begin_next();
  }
  /// `done` is called when the present step has ended.
  void cancel(int signal) {
    next_ = steps_.size();
    present_->cancel(signal);
  }

 private:
  void begin_next() {
    if (next_ == steps_.size()) return done_({});
    present_ = steps_[next_++];
    present_->begin([this](std::optional<event::SpawnFailed> failure) {
      if (failure) done_(std::move(failure));
      else begin_next();
    });
  }

  std::vector<StartStep*> steps_;
  StartStep::Done done_;
  std::size_t next_ = 0;          ///< all: the last has begun, or cancel() was called
  StartStep* present_ = nullptr;  ///< the last that was begun
};

}  // namespace ddrun::agent
