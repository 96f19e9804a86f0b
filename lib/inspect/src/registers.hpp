#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>

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

}  // namespace ddrun::inspect
