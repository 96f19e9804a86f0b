#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "ddrun/base/duration.hpp"
#include "ddrun/inspect/stacks.hpp"
#include "mappings.hpp"
#include "memory.hpp"
#include "python_layout.hpp"

namespace ddrun::inspect {

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
