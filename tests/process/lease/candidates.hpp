#pragma once

#include <stdlib.h>

#include <boost/asio/io_context.hpp>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ddrun/base/text.hpp"
#include "ddrun/lease/lease.hpp"
#include "ddrun/test/catch.hpp"
#include "ddrun/test/files.hpp"

namespace ddrun::test {

/// The minimum.
inline constexpr Milliseconds ttl = lease::min_ttl;

#ifdef DDRUN_SANITIZED
inline constexpr int slowness = 4;
#else
inline constexpr int slowness = 1;
#endif

using MakeLease =
    std::function<Result<std::unique_ptr<lease::Lease>>(const boost::asio::any_io_executor&, lease::Listener)>;

inline MakeLease by_program(std::vector<std::string> argv, lease::LeaseOptions options = {"a job/ü%", ttl},
                            std::function<void(pid_t)> on_start = {}) {
  return [program = lease::ProgramOptions{std::move(argv), {}, {}, std::move(on_start)}, options = std::move(options)](
             const boost::asio::any_io_executor& executor, lease::Listener listener) {
    return lease::Lease::make(executor, options, program, std::move(listener), lease::RunOn::executor);
  };
}

/// `argv`, to be run with this directory before all others in PATH.
inline std::vector<std::string> first_in_path(const TemporaryDirectory& directory, std::vector<std::string> argv) {
  argv.insert(argv.begin(), {"env", concat("PATH=", directory.path(), ":", ::getenv("PATH"))});
  return argv;
}

/// A machine with a lease, their event loop, which can be suspended separately, and a log of what the lease tells.
class Candidate {
 public:
  Candidate(std::string name, const MakeLease& make) : name_(std::move(name)) {
    auto made = make(io.get_executor(),
                     [this](const lease::Tell& what) { std::visit([this](const auto& told) { on(told); }, what); });
    if (!made) throw std::runtime_error(made.error().message);
    lease = std::move(*made);
    (void)lease->start();
  }

  [[nodiscard]] const std::string& name() const { return name_; }
  [[nodiscard]] bool is_leader() const { return lease && lease->is_leader(); }
  [[nodiscard]] bool follows(const std::string& address) const {
    return leader && !leader->is_self && leader->address == address;
  }
  [[nodiscard]] bool has_logged(const std::string& what) const {
    for (const auto& line : log) {
      if (line.find(what) != std::string::npos) return true;
    }
    return false;
  }
  void crash() { lease.reset(); }
  lease::Lease::Done into(std::optional<Result<void>>& result) {
    return [&result](Result<void> got) { result = std::move(got); };
  }

  boost::asio::io_context io{1};
  bool frozen = false;  ///< its loop does not run
  std::unique_ptr<lease::Lease> lease;
  std::optional<lease::Leader> leader;
  std::optional<std::string> verdict, unusable;
  std::vector<std::string> log;

 private:
  void on(const lease::Leader& to) {
    leader = to;
    log.push_back(concat(to.is_self ? "lead " : "follow ", to.term, " ", to.address));
  }
  void on(const lease::tell::NoLeader& /*none*/) {
    leader.reset();
    log.emplace_back("no leader");
  }
  void on(const lease::tell::Lost& lost) {
    leader.reset();
    log.push_back(concat("lost: ", lost.why));
  }
  void on(const lease::tell::Verdict& recorded) {
    verdict = recorded.text;
    log.push_back(concat("verdict: ", recorded.text));
  }
  void on(const lease::tell::Status& status) { log.push_back(concat("status: ", status.text)); }
  void on(const lease::tell::Unusable& why) {
    unusable = why.error.message;
    log.push_back(concat("unusable: ", why.error.message));
  }

  std::string name_;
};

/// Candidates of one job. In each step at most one leads, and terms rise from one leader to the next.
class Candidates {
 public:
  Candidate& add(const std::string& name, const MakeLease& make) {
    all_.push_back(std::make_unique<Candidate>(name, make));
    return *all_.back();
  }

  bool run_until(const std::function<bool()>& condition, std::chrono::milliseconds limit = std::chrono::seconds(30)) {
    const auto end = Clock::now() + limit;
    while (!condition()) {
      if (Clock::now() >= end) {
        for (const auto& one : all_) UNSCOPED_INFO(one->name() << ": " << join(one->log, " | "));
        return false;
      }
      for (const auto& one : all_) {
        if (!one->frozen) one->io.poll();
        check();
      }
      const timespec pause{0, 500'000};
      ::nanosleep(&pause, nullptr);
    }
    return true;
  }
  void run_for(std::chrono::milliseconds time) {
    const auto end = Clock::now() + time;
    run_until([&] { return Clock::now() >= end; }, time + std::chrono::seconds(60));
  }

  [[nodiscard]] Candidate* leader() const {
    for (const auto& one : all_) {
      if (one->is_leader()) return one.get();
    }
    return nullptr;
  }
  /// All running candidates agree on the leader, and it leads.
  [[nodiscard]] bool agreed() const {
    const Candidate* found = leader();
    if (found == nullptr || !found->leader) return false;
    for (const auto& one : all_) {
      if (one->lease && !one->frozen && (!one->leader || one->leader->term != found->leader->term)) return false;
    }
    return true;
  }
  [[nodiscard]] const std::vector<std::unique_ptr<Candidate>>& all() const { return all_; }

 private:
  void check() {
    // Time passes during the check, so a candidate counts as leader only if it leads twice.
    std::vector<const Candidate*> first;
    for (const auto& one : all_) {
      if (one->is_leader()) first.push_back(one.get());
    }
    if (first.size() > 1) {
      for (const auto& one : all_) INFO(one->name() << ": " << join(one->log, " | "));
      int still = 0;
      for (const auto* one : first) still += one->is_leader() ? 1 : 0;
      REQUIRE(still <= 1);
    }
    for (const auto* one : first) {
      if (!one->leader || !one->leader->is_self) continue;
      if (one->leader->term < highest_) FAIL("a term that is not above " << highest_);
      highest_ = one->leader->term;
    }
  }

  std::vector<std::unique_ptr<Candidate>> all_;
  std::uint64_t highest_ = 0;
};

}  // namespace ddrun::test
