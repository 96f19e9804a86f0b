#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "gpu/cuda.hpp"

namespace ddrun::collectives::cuda {

/// Marks in a stream's work, which show its progress: recorded and waited for in the same order. On one thread.
class EventRing {
 public:
  /// Creates events until there are `count`; call it while no mark is open. Events are kept for the next use.
  [[nodiscard]] Result<void> reserve(const std::shared_ptr<Device>& device, std::size_t count) {
    while (events_.size() < count) {
      auto event = Event::make(device, Event::Kind::order);
      if (!event) return tl::unexpected(event.error());
      events_.push_back(std::move(*event));
    }
    return {};
  }

  /// Marks that were recorded and not waited for.
  [[nodiscard]] std::size_t open() const { return recorded_ - passed_; }
  [[nodiscard]] std::size_t size() const { return events_.size(); }

  /// With size() marks open, take the oldest and wait for it first. That limits the work in flight.
  [[nodiscard]] Result<void> record() { return events_[recorded_++ % events_.size()].record(); }
  [[nodiscard]] const Event& take_oldest() { return events_[passed_++ % events_.size()]; }

 private:
  std::vector<Event> events_;
  std::size_t recorded_ = 0;
  std::size_t passed_ = 0;
};

}  // namespace ddrun::collectives::cuda
