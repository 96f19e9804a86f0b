#pragma once

#include <boost/asio/awaitable.hpp>
#include <functional>
#include <list>
#include <string_view>

#include "ddrun/base/alarm.hpp"
#include "ddrun/base/duration.hpp"
#include "ddrun/base/result.hpp"
#include "group_machine.hpp"
#include "job.hpp"
#include "participant.hpp"
#include "worker_group.hpp"

namespace ddrun::agent {

/// Fails with `unavailable` unless every port of the job's programs is free to listen on, over IPv4 and IPv6. What only
/// waits for the end of old connections (TIME_WAIT) does not count.
[[nodiscard]] Result<void> check_ports(const Preparation& prepared);

/// From one probe of a service to the next, `waited` after its start: 1/64 of that, so that the delay is in proportion,
/// but from 20 ms, or from 100 ms where it has answered that it is not ready, to 500 ms.
[[nodiscard]] Milliseconds probe_pause(Milliseconds waited, bool has_answered);

/// Whether a first line of HTTP has a status of 2xx (RFC 9112, section 4).
[[nodiscard]] bool is_ready_answer(std::string_view line);

/// Waits for services (--ready): connects to each worker's port on 127.0.0.1, ::1 and this machine's other addresses,
/// and with http sends a GET. A listener that is no process of the job does not count. Nothing is asked of a worker
/// that was ready once. All is borrowed; no call blocks.
class Readiness : public Participant {
 public:
  /// `dispatch` gets ServicesReady or ReadyExpired, once after each begin() unless cancel() comes first; also from
  /// within.
  Readiness(Job& job, WorkerGroup& group, std::function<void(const Event&)> dispatch);
  ~Readiness() override;

  void begin();
  void cancel();
  void set_paused(bool paused) override;

  /// "server ranks 0,1", of those that are not ready.
  [[nodiscard]] std::string describe() const;

 private:
  struct Probe;
  /// Asks until it is ready or has ended.
  boost::asio::awaitable<void> watch(Probe& probe);
  void end(Probe& probe);
  void on_ready(Probe& probe);
  void expire(const Probe& late);

  Job& job_;
  WorkerGroup& group_;
  std::function<void(const Event&)> dispatch_;
  std::list<Probe> waiting_;
  std::list<Probe> ended_;  ///< of the attempt: their last turn may be queued
  Alarm notice_;
};

}  // namespace ddrun::agent
