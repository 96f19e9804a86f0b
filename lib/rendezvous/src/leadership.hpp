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

/// This machine's part in who leads a job: a lease, renewed by a thread of its own, "ddrun-lease", which does nothing
/// that can block: a coordinator whose main thread waits for a disk still leads.
///
/// Used from one thread, that of the executor, where nothing else is said: all callbacks and answers come there, never
/// from within a call. What the calls and callbacks mean says lease.hpp.
class Leadership {
 public:
  /// The lease of the job of `spec`; `on_program` as in RendezvousOptions. Starts nothing yet. Fails as
  /// make_program_lease() does.
  [[nodiscard]] static Result<std::unique_ptr<Leadership>> make(boost::asio::any_io_executor executor,
                                                                const RendezvousSpec& spec,
                                                                std::function<void(pid_t)> on_program,
                                                                lease::Callbacks callbacks);
  /// Nothing is called any more. A lease that is held is not given back: it runs out.
  ~Leadership();
  Leadership(const Leadership&) = delete;
  Leadership& operator=(const Leadership&) = delete;

  /// Once. Fails with `unavailable` if the system has no thread to give.
  Result<void> start();
  void campaign(std::string address);
  void depose(std::uint64_t term);
  /// `done` may be empty.
  void resign(lease::Lease::Done done);

  // By any thread.
  [[nodiscard]] bool is_leader() const { return lease_->is_leader(); }
  /// `done` comes on the owner's thread as ever.
  void record_verdict(std::string text, lease::Lease::Done done);
  [[nodiscard]] bool has_recorded() const { return has_recorded_; }
  /// For a coordinator that has stood down, whose owner's thread may wait for a disk: the lease is given back if
  /// campaign() or resign() does not come before the time is over.
  void resign_after(Milliseconds time);

  /// The last of campaign() and resign() was the former.
  [[nodiscard]] bool is_candidate() const { return is_candidate_; }
  /// Who leads, as callbacks have told; nothing while it is not known, or while this machine has just lost the lease.
  [[nodiscard]] const std::optional<lease::Leader>& leader() const { return leader_; }
  /// What keeps the engine from saying who leads, as callbacks have told; empty if nothing does.
  [[nodiscard]] const std::string& last_error() const { return last_error_; }

 private:
  explicit Leadership(boost::asio::any_io_executor executor);
  [[nodiscard]] lease::Callbacks track_state(lease::Callbacks callbacks);

  /// The owner's thread.
  boost::asio::any_io_executor executor_;
  /// Gone when the owner wants to hear nothing any more.
  std::shared_ptr<const lease::Callbacks> callbacks_;
  bool is_candidate_ = false;
  std::optional<lease::Leader> leader_;
  std::string last_error_;
  std::atomic<bool> has_recorded_ = false;
  boost::asio::io_context context_{1};
  boost::asio::steady_timer resign_timer_{context_};  ///< of the lease's thread
  std::shared_ptr<lease::Lease> lease_;
  std::thread thread_;
};

}  // namespace ddrun::rendezvous
