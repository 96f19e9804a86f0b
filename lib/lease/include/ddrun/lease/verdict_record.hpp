#pragma once

#include <optional>
#include <string>
#include <utility>

#include "ddrun/base/text.hpp"
#include "ddrun/lease/callback_queue.hpp"
#include "ddrun/lease/lease.hpp"

namespace ddrun::lease {

/// A pending request of the leader to record the verdict.
class VerdictRecord {
 public:
  explicit VerdictRecord(CallbackQueue& callbacks) : callbacks_(callbacks) {}

  /// False if nothing has to be sent, and `done` gets the result. `existing`: the job's recorded verdict, if any; equal
  /// text is a success, as an earlier response may have been lost.
  [[nodiscard]] bool begin(std::string text, Lease::Done done, const std::optional<std::string>& existing,
                           bool is_leader) {
    const auto refuse = [&](Errc code, const char* why) {
      callbacks_.complete(std::move(done), ddrun::fail(code, why));
      return false;
    };
    if (text.empty() || text.size() > max_verdict_bytes) {
      return refuse(Errc::invalid_argument, "a verdict has 1 byte to 16 KiB");
    }
    if (existing == text) {
      callbacks_.complete(std::move(done), {});
      return false;
    }
    if (existing) return refuse(Errc::invalid_argument, "the job has a verdict already");
    if (is_pending()) return refuse(Errc::unavailable, "a verdict is being recorded");
    if (!is_leader) return refuse(Errc::cancelled, "only the leader can record a verdict");
    text_ = std::move(text);
    done_ = std::move(done);
    return true;
  }

  [[nodiscard]] bool is_pending() const { return done_ != nullptr; }
  [[nodiscard]] const std::string& text() const { return text_; }

  /// The job has this verdict.
  void on_existing(const std::string& text) {
    if (!is_pending()) return;
    if (text == text_) succeed();
    else fail("the job has another one already", Errc::invalid_argument);
  }
  void succeed() { callbacks_.complete(std::exchange(done_, nullptr), {}); }
  /// Ignored if no request is pending.
  void fail(const std::string& why, Errc code = Errc::unavailable) {
    if (!is_pending()) return;
    callbacks_.complete(std::exchange(done_, nullptr),
                        ddrun::fail(code, concat("the verdict was not recorded: ", why)));
  }
  /// Discards the request; `done` is not called.
  void drop() { done_ = nullptr; }

 private:
  CallbackQueue& callbacks_;
  std::string text_;
  Lease::Done done_;
};

}  // namespace ddrun::lease
