#pragma once

#include <sys/types.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "ddrun/base/result.hpp"
#include "ddrun/base/unique_fd.hpp"
#include "ddrun/inspect/stack_page.hpp"

namespace ddrun::inspect {

/// Memory of a process that goes on running while it is read: nothing in it can be relied upon. Not for several
/// threads.
class Memory {
 public:
  virtual ~Memory() = default;
  /// False, and `to` is undefined, unless all of it could be read. May block on a page fault.
  [[nodiscard]] virtual bool read(std::uint64_t address, void* to, std::size_t size) const = 0;

  template <class T>
  [[nodiscard]] std::optional<T> get(std::uint64_t address) const {
    T value{};
    if (!read(address, &value, sizeof value)) return std::nullopt;
    return value;
  }
  [[nodiscard]] std::optional<std::uint64_t> pointer(std::uint64_t address) const {
    return get<std::uint64_t>(address);
  }
};

/// /proc/PID/mem: needs the right to trace the process, and no ptrace(2).
class ProcessMemory : public Memory {
 public:
  /// Fails with `unavailable`.
  [[nodiscard]] static Result<ProcessMemory> open(pid_t pid);
  [[nodiscard]] bool read(std::uint64_t address, void* to, std::size_t size) const override;

 private:
  explicit ProcessMemory(UniqueFd file) : file_(std::move(file)) {}
  UniqueFd file_;
};

/// Keeps the pages that were read, 32 MiB at most. For what does not change while the process runs: code and its
/// tables.
class CachedMemory : public Memory {
 public:
  /// `memory` is borrowed.
  explicit CachedMemory(const Memory& memory) : memory_(memory) {}
  [[nodiscard]] bool read(std::uint64_t address, void* to, std::size_t size) const override;

 private:
  static constexpr std::size_t page_size = 4096;
  static constexpr std::size_t max_pages = 8192;
  using Page = std::array<std::byte, page_size>;
  [[nodiscard]] const Page* page(std::uint64_t address) const;

  const Memory& memory_;
  mutable std::unordered_map<std::uint64_t, std::optional<Page>> pages_;
};

/// A line of /proc/PID/maps.
struct Mapping {
  std::uint64_t start = 0;
  std::uint64_t end = 0;
  std::uint64_t offset = 0;  ///< in the file
  bool executable = false;
  std::shared_ptr<const Module> module;  ///< the same object for all mappings of a file that follow each other
};

/// The mappings that have a name and hold code or the beginning of a file, in ascending order; lines that are none are
/// left out. `pid` is for the modules.
[[nodiscard]] std::vector<Mapping> parse_mappings(std::string_view text, pid_t pid);

/// Those of a process; empty if it is gone. May block on the process's memory lock.
[[nodiscard]] std::vector<Mapping> read_mappings(pid_t pid);

/// The mapping with this address, or null.
[[nodiscard]] const Mapping* find_mapping(const std::vector<Mapping>& mappings, std::uint64_t address);

/// Where the file of `mapping` begins in memory: the start of its first mapping, at offset 0; 0 if that is not mapped.
[[nodiscard]] std::uint64_t base_of(const std::vector<Mapping>& mappings, const Mapping& mapping);

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
