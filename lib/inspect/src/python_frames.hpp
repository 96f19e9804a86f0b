#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "ddrun/base/duration.hpp"
#include "ddrun/inspect/stack_page.hpp"
#include "memory.hpp"

namespace ddrun::inspect {

/// Offsets in bytes in the structs of CPython on 64-bit machines, built with the GIL.
struct PythonOffsets {
  using Offset = std::uint16_t;
  Offset runtime_interpreters;
  Offset interpreter_next, interpreter_threads;
  Offset thread_next, thread_frame, thread_id;  ///< the last: native_thread_id
  Offset frame_previous, frame_code, frame_instruction, frame_locals, frame_owner;
  Offset code_file, code_function, code_lines, code_first_line;  ///< co_filename, co_qualname, co_linetable
  Offset code_names, code_kinds, code_instructions;              ///< co_localsplusnames, co_localspluskinds
  Offset bytes_size, bytes_data;
  Offset string_state, string_length, string_data;  ///< the last: of ASCII text
  Offset tuple_items;
  Offset int_size, int_digit;  ///< the first: ob_size in 3.11, lv_tag from 3.12 on
};

struct PythonLayout {
  static constexpr std::uint16_t no_cframe = 0xffff;

  PythonOffsets at;
  std::uint16_t cframe_frame;  ///< up to 3.12 thread_frame leads to a _PyCFrame with the frame at this offset
  std::uint16_t wide_head;     ///< by how much text that is not ASCII begins later than ASCII text
  bool int_size_is_signed;     ///< 3.11: number of digits, negative for negative numbers
};

/// Fills `layout` for the interpreter of this Py_Version whose _PyRuntime is at `runtime`. Returns why it cannot:
/// "Python 3.16: native frames only"; empty: it could.
[[nodiscard]] std::string read_python_layout(const Memory& memory, std::uint64_t runtime, std::uint64_t version,
                                             PythonLayout& layout);

struct PythonStack {
  std::vector<PythonFrame> frames;  ///< innermost first
  std::size_t left_out = 0;         ///< outer ones above the limits, at least
};

/// The Python interpreter in a process: CPython 3.11 to 3.15, read without stopping it. All text comes from that
/// process as it is, also with control characters: the caller makes it fit for a terminal.
class PythonReader {
 public:
  /// nullopt: there is none. Looked at are modules whose file name begins with python or libpython, and the program.
  /// Both arguments are used during the call only.
  [[nodiscard]] static std::optional<PythonReader> find(const Memory& cached, const std::vector<Mapping>& mappings);

  /// Why there are no Python frames: "Python 3.10: native frames only". Empty: there are.
  [[nodiscard]] const std::string& unsupported_reason() const { return unsupported_reason_; }

  /// The frames of each thread by its thread id, at most 512, and `max_bytes` of all threads, the main one first; those
  /// of a nested subinterpreter precede those of its creator, and what is read after `deadline` is left out. Frames of
  /// ddrun's preload server and what called it are left out. `live` is the process's memory, not cached. The number of
  /// reads is limited whatever is in it (about two million).
  [[nodiscard]] std::map<pid_t, PythonStack> read(const Memory& live, std::size_t max_bytes = std::size_t{16} << 20U,
                                                  Deadline deadline = Deadline::max()) const;

 private:
  std::string unsupported_reason_;
  PythonLayout layout_{};
  // Addresses in the process.
  std::uint64_t runtime_ = 0;
  std::uint64_t code_type_ = 0;
  std::uint64_t int_type_ = 0;
};

}  // namespace ddrun::inspect
