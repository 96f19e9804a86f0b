#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

// What the ranks of a job do right now. Values only; they are read by stack_reader.hpp and shown by stack_page.hpp.
// All text in them comes from the processes and is not to be trusted.

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
  char state = '?';                 ///< as in /proc/PID/stat: R S D T t Z
  std::string doing;                ///< "computes", "sleeps", "reads /mnt/x", "receives from 10.0.0.2:4711"
  bool on_socket = false;           ///< it waits for a peer: on a socket, or for events of sockets
  std::vector<PythonFrame> python;  ///< innermost first
  std::vector<NativeFrame> native;  ///< innermost first
  // Outer frames above the limits, at least.
  std::size_t python_left_out = 0;
  std::size_t native_left_out = 0;
};

/// One rank of this machine.
struct RankStacks {
  int rank = 0;
  std::string role;                       ///< of its program, if there are several
  pid_t pid = 0;                          ///< of its worker; 0: has ended
  pid_t child = 0;                        ///< read instead, as the worker only started this process; 0: none
  std::string program;                    ///< name of the process that was read
  double cpu = 0;                         ///< CPUs in use while the page was made
  std::chrono::nanoseconds cpu_before{};  ///< CPU time at first_seen
  std::chrono::steady_clock::time_point first_seen;
  std::vector<ThreadStack> threads;  ///< the main thread first; empty: the process has ended
  std::size_t threads_left_out = 0;  ///< above the limit
  std::string note;                  ///< what is missing, and why; empty: nothing
  /// Processes that it waits for, by their end or by a pipe, with their main threads.
  std::vector<RankStacks> awaited;

  [[nodiscard]] pid_t read_pid() const { return child != 0 ? child : pid; }
};

/// All ranks of this machine at one moment.
struct StackPage {
  std::string why;  ///< after "where the ranks are": "after 6.0 s (--timeout)"
  std::chrono::system_clock::time_point at;
  std::vector<RankStacks> ranks;  ///< in order of rank, program by program
  bool is_named = true;           ///< false: there was no time for names of native functions
};

}  // namespace ddrun::inspect
