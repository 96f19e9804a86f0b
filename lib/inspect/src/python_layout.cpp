#include "python_layout.hpp"

#include <array>
#include <bit>
#include <cstring>

#include "ddrun/base/text.hpp"

namespace ddrun::inspect {

namespace {

// Measured with offsetof() on CPython's headers. Public releases of a minor version do not change them.
constexpr PythonLayout layout_3_11{
    {40, 0, 16, 8, 56, 160, 48, 32, 56, 72, 69, 112, 128, 136, 72, 96, 104, 184, 16, 32, 32, 16, 48, 24, 16, 24},
    8,
    24,
    true};
constexpr PythonLayout layout_3_12{
    {40, 0, 72, 8, 56, 144, 8, 0, 56, 72, 70, 112, 128, 136, 68, 96, 104, 192, 16, 32, 32, 16, 40, 24, 16, 24},
    0,
    16,
    false};

// From 3.13 on _PyRuntime begins with _Py_DebugOffsets (pycore_debug_offsets.h): these are indices of its 64-bit words.
constexpr PythonOffsets words_3_13{5,  8,  9,  21, 23, 25, 29, 30, 31, 32, 33, 35, 37,
                                   38, 39, 41, 42, 43, 65, 66, 68, 69, 70, 51, 62, 63};
constexpr PythonOffsets words_3_14{5,  8,  9,  24, 26, 28, 32, 33, 34, 35, 36, 40, 42,
                                   43, 44, 46, 47, 48, 75, 76, 78, 79, 80, 57, 72, 73};
constexpr PythonOffsets words_3_15{5,  8,  9,  24, 26, 31, 40, 41, 42, 43, 44, 48, 50,
                                   51, 52, 54, 55, 56, 87, 88, 90, 91, 92, 69, 84, 85};
constexpr std::size_t table_words = 93;
constexpr std::size_t version_word = 1;
constexpr std::size_t free_threaded_word = 2;

using Fields = std::array<std::uint16_t, sizeof(PythonOffsets) / sizeof(std::uint16_t)>;

const PythonOffsets* words_of(unsigned minor) {
  if (minor == 13) return &words_3_13;
  if (minor == 14) return &words_3_14;
  return minor == 15 ? &words_3_15 : nullptr;
}

}  // namespace

std::string read_python_layout(const Memory& memory, std::uint64_t runtime, std::uint64_t version,
                               PythonLayout& layout) {
  const auto minor = static_cast<unsigned>(version >> 16U & 0xffU);
  const bool is_3 = version >> 24U == 3;
  if (is_3 && (minor == 11 || minor == 12)) {
    layout = minor == 11 ? layout_3_11 : layout_3_12;
    return {};
  }
  const std::string name = concat("Python ", version >> 24U & 0xffU, '.', minor);
  const PythonOffsets* const words = is_3 ? words_of(minor) : nullptr;
  if (words == nullptr) return concat(name, ": native frames only");
  // Before its first release candidate a version's table changes from one pre-release to the next.
  if ((version >> 4U & 0xfU) < 0xc) return concat(name, " pre-release: native frames only");
  std::array<std::uint64_t, table_words> table{};
  if (!memory.read(runtime, table.data(), sizeof table) || std::memcmp(table.data(), "xdebugpy", 8) != 0 ||
      table[version_word] != version) {
    return concat(name, " without a table of offsets: native frames only");
  }
  if (table[free_threaded_word] != 0) return concat(name, " free-threaded: native frames only");
  auto fields = std::bit_cast<Fields>(*words);
  for (std::uint16_t& field : fields) {
    const std::uint64_t offset = table[field];
    if (offset > 0xffff) return concat(name, " with unknown offsets: native frames only");
    field = static_cast<std::uint16_t>(offset);
  }
  layout = {std::bit_cast<PythonOffsets>(fields), PythonLayout::no_cframe, 16, false};
  return {};
}

}  // namespace ddrun::inspect
