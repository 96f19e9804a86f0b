#pragma once

#include <atomic>
#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "ddrun/base/duration.hpp"
#include "ddrun/base/result.hpp"
#include "ddrun/lease/lease.hpp"
#include "ddrun/spec/launch_spec.hpp"

namespace ddrun::rendezvous {

/// This machine's candidacy for a job's lease, renewed on the thread "ddrun-lease", which never blocks: a coordinator
/// whose main thread waits for a disk keeps the lease.
///
/// To be used from the executor's thread. Callbacks and completions come there, never from within a call; their meaning
/// is that of lease.hpp.
class Leadership {
 public:
  /// `on_program` as in RendezvousOptions. Starts nothing yet. Errors: as for make_program_lease().
  [[nodiscard]] static Result<std::unique_ptr<Leadership>> make(boost::asio::any_io_executor executor,
                                                                const RendezvousSpec& spec,
                                                                std::function<void(pid_t)> on_program,
                                                                lease::Callbacks callbacks);
  /// No callback follows. A held lease is not given back: it expires.
  ~Leadership();
  Leadership(const Leadership&) = delete;
  Leadership& operator=(const Leadership&) = delete;

  /// Once. Errors: `unavailable` if no thread can be created.
  Result<void> start();
  void campaign(std::string address);
  void depose(std::uint64_t term);
  /// `done` may be empty.
  void resign(lease::Lease::Done done);

  // Thread-safe:
  [[nodiscard]] bool is_leader() const { return lease_->is_leader(); }
  /// `done` is called on the executor.
  void record_verdict(std::string text, lease::Lease::Done done);
  [[nodiscard]] bool has_recorded() const { return has_recorded_; }
  /// For a coordinator that has stepped down while the owner's thread may be blocked: gives the lease back after this
  /// time, unless campaign() or resign() comes first.
  void resign_after(Milliseconds time);

  /// Whether campaign() was called after the last resign().
  [[nodiscard]] bool is_candidate() const { return is_candidate_; }
  /// As of the last callback; empty if unknown, and after losing the lease.
  [[nodiscard]] const std::optional<lease::Leader>& leader() const { return leader_; }
  /// Why the leader is unknown, as of the last callback; empty if the engine works.
  [[nodiscard]] const std::string& last_error() const { return last_error_; }

 private:
  explicit Leadership(boost::asio::any_io_executor executor);
  [[nodiscard]] lease::Callbacks track_state(lease::Callbacks callbacks);

  /// Of the owner.
  boost::asio::any_io_executor executor_;
  /// Reset in the destructor: no callback follows.
  std::shared_ptr<const lease::Callbacks> callbacks_;
  bool is_candidate_ = false;
  std::optional<lease::Leader> leader_;
  std::string last_error_;
  std::atomic<bool> has_recorded_ = false;
  boost::asio::io_context context_{1};
  boost::asio::steady_timer resign_timer_{context_};  ///< on the lease's thread
  std::shared_ptr<lease::Lease> lease_;
  std::thread thread_;
};

}  // namespace ddrun::rendezvous
