#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ddrun/base/result.hpp"

namespace ddrun::pmi {

// What get_maxes says, and no more is stored.
inline constexpr std::size_t max_key_bytes = 64;
inline constexpr std::size_t max_value_bytes = 1024;
inline constexpr std::size_t max_line_bytes = 64 * 1024;

/// A line of a rank, "cmd=put kvsname=S key=K value=V". Values are kept byte for byte: what `\` escapes is left to the
/// rank that reads the value. Borrows the text.
class PmiLine {
 public:
  /// Nothing for a line that does not begin with a word "cmd=…", or has a control character. `message=` takes the rest
  /// of the line: MPICH 4.1 and 4.2 do not escape the blanks in it.
  [[nodiscard]] static std::optional<PmiLine> parse(std::string_view text);

  [[nodiscard]] std::string_view text() const { return text_; }
  [[nodiscard]] std::string_view command() const { return words_.front().second; }
  /// Of the first word with this name; a word without '=' has an empty value.
  [[nodiscard]] std::optional<std::string_view> find(std::string_view name) const;

 private:
  std::string_view text_;
  std::vector<std::pair<std::string_view, std::string_view>> words_;
};

/// Whether a rank may put it: within the bounds, a key that is not reserved, and no control character, which would end
/// an answer's line.
[[nodiscard]] bool is_storable(std::string_view key, std::string_view value);

/// What a node's ranks have put since the barrier before: key and value in turn, each after its length in 32 bits.
inline constexpr std::size_t max_batch_bytes = 3 * 1024 * 1024;

void append_put(std::string& batch, std::string_view key, std::string_view value);

/// Borrows the batch. Fails with `protocol` for what no rank could have put.
[[nodiscard]] Result<std::vector<std::pair<std::string_view, std::string_view>>> decode_puts(std::string_view batch);

}  // namespace ddrun::pmi
