#pragma once

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

// What a process does right now. Values only; who makes them is in reader.hpp.

namespace ddrun::inspect {

/// A file with code that is mapped in a process.
struct Module {
  std::string path;  ///< as the process sees it; "[vdso]" and the like for no file
  pid_t pid = 0;     ///< a process that has it mapped
  dev_t device = 0;
  ino_t inode = 0;
};

struct PythonFrame {
  std::string function;  ///< its qualified name
  std::string file;      ///< co_filename
  int line = 0;
  std::vector<std::pair<std::string, std::int64_t>> numbers;  ///< local variables that are small ints
};

struct NativeFrame {
  std::shared_ptr<const Module> module;  ///< null: the code lies in no file
  std::uint64_t address = 0;             ///< in the file's own addresses (st_value); without a module as in memory
  std::string function;                  ///< demangled, without parameters; empty: not known
};

struct ThreadStack {
  pid_t tid = 0;
  std::string name;
  char state = '?';                 ///< as in /proc/PID/stat
  std::string waits_in;             ///< the system call and what it is about: "read /mnt/x"; empty: it computes
  std::vector<PythonFrame> python;  ///< innermost first
  std::vector<NativeFrame> native;  ///< innermost first
};

}  // namespace ddrun::inspect
