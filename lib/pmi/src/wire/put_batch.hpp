#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ddrun/base/result.hpp"

namespace ddrun::pmi {

/// What a node's ranks have put since the barrier before: key and value in turn, each after its length in 32 bits.
inline constexpr std::size_t max_batch_bytes = 3 * 1024 * 1024;

void append_put(std::string& batch, std::string_view key, std::string_view value);

/// Borrows the batch. Fails with `protocol` for what no rank could have put.
[[nodiscard]] Result<std::vector<std::pair<std::string_view, std::string_view>>> decode_puts(std::string_view batch);

}  // namespace ddrun::pmi
