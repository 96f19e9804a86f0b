#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace ddrun::logs {

/// Shows equal lines of several sources (ranks) once. A decider: it has no clock and no descriptor.
///
/// A line is held until each open source holds the same one, for `hold` at most, while a source holds at most
/// `max_source_bytes` or one batch, and all together `max_bytes`. Lines of one source keep their order. A line that
/// another source holds behind other lines is shown after those, so that lines which only one source has do not part
/// equal ones. Two limits keep the cost of a call proportional to what it shows: only `max_lines` are compared, and of
/// more the source that holds most shows all its lines alone; and a source that writes much which no other one does, or
/// which others write in another order, is not held for the time `pass`.
class Fold {
 public:
  using Time = std::chrono::steady_clock::time_point;
  static constexpr std::chrono::milliseconds hold{100};
  static constexpr std::chrono::milliseconds pass{1000};
  static constexpr std::size_t max_source_bytes = std::size_t{64} << 10U;
  static constexpr std::size_t max_bytes = std::size_t{1} << 20U;
  static constexpr std::size_t max_lines = std::size_t{1} << 15U;  ///< that are compared with each other

  /// `emit(sources, lines, at)`: one or more whole lines that all of `sources` (ascending) have written, the first of
  /// them at `at`. Must not call this object.
  using Emit = std::function<void(const std::vector<int>& sources, std::string_view lines, Time at)>;
  explicit Fold(Emit emit) : emit_(std::move(emit)) {}

  /// Returns the number of a new source; numbers of sources that are closed and empty are used again.
  [[nodiscard]] int open();
  /// No more lines come; those that are held are still shown.
  void close(int source, Time now);

  /// The lines of this source need not be added now: they would be shown at once.
  [[nodiscard]] bool passes(int source, Time now) const { return sources_[index(source)].pass_until > now; }
  /// Adds a whole line, with its newline. Lines of one time are a batch, after which settle() shows what need not wait.
  void add(int source, std::string_view line, Time now);
  void settle(int source, Time now);

  /// When expire() has something to do; unset: nothing is held.
  [[nodiscard]] std::optional<Time> deadline() const;
  void expire(Time now);
  /// Shows what this source, or all, hold.
  void release(int source);
  void release_all();

 private:
  /// Bytes that came at one time.
  struct Batch {
    std::size_t size;
    Time at;
  };
  struct Holder {
    std::size_t source;
    int copies;  ///< of the line
  };
  struct Source {
    std::string text;                   ///< whole lines; those before `begin` were shown
    std::size_t begin = 0;              ///< offset in `text`
    std::vector<Batch> batches;         ///< of what is held
    std::vector<std::uint64_t> hashes;  ///< of the lines before `hashed`
    std::size_t first_hash = 0;         ///< index of that of the first line that is held
    std::size_t hashed = 0;             ///< offset in `text`
    std::size_t unmatched = 0;          ///< bytes shown with not all holders of the line, less those shown with all
    Time pass_until{};
    bool open = false;
    [[nodiscard]] bool has_hash() const { return first_hash < hashes.size(); }
    [[nodiscard]] std::uint64_t first() const { return hashes[first_hash]; }
    [[nodiscard]] std::size_t held() const { return text.size() - begin; }
    [[nodiscard]] std::string_view head() const;
  };

  [[nodiscard]] static std::size_t index(int source) { return static_cast<std::size_t>(source); }
  void consume(Source& source, std::size_t size, bool matched);
  /// Shows what all open sources begin with, if each holds something.
  void show_common(Time now);
  /// Hashes the lines that are held and not hashed yet; false if they are more than `max_lines`.
  [[nodiscard]] bool index_lines();
  void count_line(std::size_t source, std::uint64_t hash, int change);
  /// Shows the first line of `source` with all that begin with the same, after what stands before it elsewhere.
  void show_head(std::size_t source);
  [[nodiscard]] std::vector<int> group_of(std::size_t source) const;
  /// A source that holds the first line of `source` behind others.
  [[nodiscard]] std::optional<std::size_t> holder_behind(std::size_t source) const;
  void show_source(std::size_t source);
  /// Shows what this source holds because it is too much.
  void relieve(std::size_t source, Time now);
  void relieve_most(Time now);
  /// Does not hold this source for a while if it has shown too much unmatched.
  void pass_unmatched(Source& source, Time now) const;

  Emit emit_;
  std::vector<Source> sources_;
  std::size_t held_ = 0;
  std::size_t last_shown_ = 0;
  std::size_t indexed_ = 0;                                         ///< lines in `holders_`
  std::unordered_map<std::uint64_t, std::vector<Holder>> holders_;  ///< by hash of a line, ascending by source
};

}  // namespace ddrun::logs
