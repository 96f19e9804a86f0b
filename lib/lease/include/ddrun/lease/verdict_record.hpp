#pragma once

#include <optional>
#include <string>
#include <utility>

#include "ddrun/base/text.hpp"
#include "ddrun/lease/lease.hpp"
#include "ddrun/lease/teller.hpp"

namespace ddrun::lease {

/// The verdict that a leader has asked to be recorded, until it is known what came of that.
class VerdictRecord {
 public:
  explicit VerdictRecord(Teller& teller) : teller_(teller) {}

  /// False if there is nothing to do, and `done` hears why. `recorded`: the job's verdict, if it has one. An earlier
  /// attempt whose answer was lost may have recorded this very text.
  [[nodiscard]] bool begin(std::string text, Lease::Done done, const std::optional<std::string>& recorded, bool leads) {
    const auto refuse = [&](Errc code, const char* why) {
      teller_.answer(std::move(done), ddrun::fail(code, why));
      return false;
    };
    if (text.empty() || text.size() > longest_verdict) {
      return refuse(Errc::invalid_argument, "a verdict has 1 byte to 16 KiB");
    }
    if (recorded == text) {
      teller_.answer(std::move(done), {});
      return false;
    }
    if (recorded) return refuse(Errc::invalid_argument, "the job has a verdict already");
    if (under_way()) return refuse(Errc::unavailable, "a verdict is being recorded");
    if (!leads) return refuse(Errc::cancelled, "only the leader can record a verdict");
    text_ = std::move(text);
    done_ = std::move(done);
    return true;
  }

  [[nodiscard]] bool under_way() const { return done_ != nullptr; }
  [[nodiscard]] const std::string& text() const { return text_; }

  /// The job has this verdict.
  void there_is(const std::string& text) {
    if (!under_way()) return;
    if (text == text_) succeed();
    else fail("the job has another one already", Errc::invalid_argument);
  }
  void succeed() { teller_.answer(std::exchange(done_, nullptr), {}); }
  /// Nothing if none is under way.
  void fail(const std::string& why, Errc code = Errc::unavailable) {
    if (!under_way()) return;
    teller_.answer(std::exchange(done_, nullptr), ddrun::fail(code, concat("the verdict was not recorded: ", why)));
  }
  /// Nothing is said about it any more.
  void drop() { done_ = nullptr; }

 private:
  Teller& teller_;
  std::string text_;
  Lease::Done done_;
};

}  // namespace ddrun::lease
