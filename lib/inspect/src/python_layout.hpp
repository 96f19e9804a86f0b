#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

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

}  // namespace ddrun::inspect
