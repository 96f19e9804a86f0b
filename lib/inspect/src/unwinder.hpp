#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "ddrun/inspect/stack_page.hpp"
#include "memory.hpp"

namespace ddrun::inspect {

/// Numbers of registers in call frame information: System V psABI for x86-64, figure 3.36; DWARF for the Arm 64-bit
/// architecture, section 4.1, with 32 for the program counter.
struct Architecture {
  std::size_t stack_pointer;
  std::size_t return_address;   ///< column
  std::size_t program_counter;  ///< x86-64: the same
  std::uint64_t callee_saved;   ///< a bit for each register that a function without a rule for it leaves as it was
  std::uint64_t code_mask;      ///< of addresses of code: without pointer authentication codes
};

inline constexpr Architecture x86_64{7, 16, 16, 1U << 3U | 1U << 6U | 0xf000U, ~std::uint64_t{0}};
inline constexpr Architecture aarch64{31, 30, 32, 0x7ff80000U, 0x0000ffffffffffffU};
#if defined(__aarch64__)
inline constexpr const Architecture& native_architecture = aarch64;
#else
inline constexpr const Architecture& native_architecture = x86_64;
#endif

/// Of a thread in one of its frames; those without a value are not known.
using Registers = std::array<std::optional<std::uint64_t>, 33>;

/// Of a thread of which no more is known.
[[nodiscard]] inline Registers make_registers(std::uint64_t stack_pointer, std::uint64_t program_counter,
                                              const Architecture& architecture = native_architecture) {
  Registers registers;
  registers[architecture.stack_pointer] = stack_pointer;
  registers[architecture.program_counter] = program_counter;
  return registers;
}

/// A file with code in a process, and its search table of frame descriptions (.eh_frame_hdr, Linux Standard Base,
/// section 10.6.2).
struct CodeImage {
  std::shared_ptr<const Module> module;
  std::uint64_t bias = 0;    ///< address in memory minus address in the file
  std::uint64_t header = 0;  ///< of the table, in memory
  std::uint64_t table = 0;   ///< its first entry; 0: there is no table
  std::uint64_t entries = 0;
};

/// The files with code of one process; each is read once, when an address in it is asked for.
class CodeImages {
 public:
  /// Both are borrowed; `tables` should be cached.
  CodeImages(const Memory& tables, const std::vector<Mapping>& mappings) : tables_(tables), mappings_(mappings) {}
  /// Null: no file has code there.
  [[nodiscard]] const CodeImage* find(std::uint64_t address);
  [[nodiscard]] const Memory& tables() const { return tables_; }

 private:
  const Memory& tables_;
  const std::vector<Mapping>& mappings_;
  std::map<std::uint64_t, CodeImage> images_;  ///< by base address
};

constexpr std::size_t max_native_frames = 128;

/// Frames of a thread, innermost first and without names, from its call frame information (DWARF 5, section 6.4, as the
/// LSB has it in .eh_frame). Ends at the outermost function, at code without such information, and after
/// max_native_frames. A thread that runs meanwhile may give frames that were never together.
[[nodiscard]] std::vector<NativeFrame> unwind(const Memory& stack, CodeImages& images, Registers registers,
                                              const Architecture& architecture = native_architecture);

/// A part of a process's stack as it was at one time; the rest is read when it is asked for.
class StackSnapshot : public Memory {
 public:
  /// Up to 32 KiB from `stack_pointer` on. `live` is borrowed.
  StackSnapshot(const Memory& live, std::uint64_t stack_pointer);
  /// `bytes`: what lies at `begin`.
  StackSnapshot(const Memory& live, std::uint64_t begin, std::vector<std::byte> bytes)
      : live_(live), begin_(begin), bytes_(std::move(bytes)) {}
  [[nodiscard]] bool read(std::uint64_t address, void* to, std::size_t size) const override;

 private:
  const Memory& live_;
  std::uint64_t begin_;
  std::vector<std::byte> bytes_;
};

}  // namespace ddrun::inspect
