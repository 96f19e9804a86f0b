#pragma once

#include <cstddef>

namespace ddrun::collectives {

inline constexpr std::size_t kPage = 4096;

constexpr std::size_t whole_pages(std::size_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }

}  // namespace ddrun::collectives
