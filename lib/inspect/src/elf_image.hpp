#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "memory.hpp"

namespace ddrun::inspect {

/// The tables of a 64-bit ELF file as they are mapped in a process (generic ABI, chapter 5, with GNU's hash table).
/// Read from memory, so that a file that was deleted, replaced or lies in another mount namespace is no different.
class ElfImage {
 public:
  /// `base`: where the file begins in memory. `memory` is borrowed and should be cached.
  [[nodiscard]] static std::optional<ElfImage> read(const Memory& memory, std::uint64_t base);

  /// To be added to an address in the file for the one in memory.
  [[nodiscard]] std::uint64_t bias() const { return bias_; }
  /// Where PT_GNU_EH_FRAME (.eh_frame_hdr) begins in memory; 0: none.
  [[nodiscard]] std::uint64_t eh_frame_header() const { return eh_frame_header_; }
  /// The address in memory of a defined dynamic symbol; 0: none.
  [[nodiscard]] std::uint64_t symbol(std::string_view name) const;

 private:
  explicit ElfImage(const Memory& memory) : memory_(&memory) {}
  void read_dynamic(std::uint64_t address, std::uint64_t size);
  /// The value of the symbol with this index if it is defined and has this name; else 0.
  [[nodiscard]] std::uint64_t value_if_named(std::uint64_t index, std::string_view name) const;

  const Memory* memory_;
  std::uint64_t bias_ = 0;
  std::uint64_t eh_frame_header_ = 0;
  // Of the dynamic section, in memory; 0: none.
  std::uint64_t symbols_ = 0;
  std::uint64_t strings_ = 0;
  std::uint64_t gnu_hash_ = 0;
};

}  // namespace ddrun::inspect
