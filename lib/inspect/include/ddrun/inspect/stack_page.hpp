#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ddrun/base/text.hpp"

// What the ranks of a job do right now, as values and as text: for each group of ranks with equal stacks its frames,
// the group that holds up the others first. stack_reader.hpp reads it. All text in the values comes from the processes
// and is not to be trusted.

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
  char state = '?';        ///< as in /proc/PID/stat: R S D T t Z
  std::string doing;       ///< "computes", "sleeps", "reads /mnt/x", "receives from 10.0.0.2:4711"
  bool on_futex = false;   ///< it waits for another thread
  bool on_socket = false;  ///< it waits for a peer that may be a rank of the job, or for the store
  /// Addresses at the other ends of TCP connections on which it waits, the first one is in `doing`; an empty one at the
  /// end: there are more.
  std::vector<std::string> peers;
  std::vector<PythonFrame> python;  ///< innermost first
  std::vector<NativeFrame> native;  ///< innermost first
  // Outer frames above the limits, at least.
  std::size_t python_left_out = 0;
  std::size_t native_left_out = 0;
};

/// A TCP socket of a rank.
struct Connection {
  int rank = 0;
  std::string own;  ///< "10.0.0.2:41234"; of one that listens "*:4711"
  bool to_store = false;
};

/// One rank, or several with equal main threads.
struct RankStacks {
  int rank = 0;
  std::vector<int> also;                  ///< further ranks that merge_equal() has put here, ascending
  std::string host;                       ///< empty: this machine, or several
  std::string role;                       ///< of its program, if there are several
  int world = 0;                          ///< ranks wait for those of their world; -1: none, as of a service
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
  std::vector<Connection> connections;  ///< with those of `also`
  enum class Connections { unknown, of_store, all };
  Connections connections_known = Connections::unknown;  ///< those that are listed, of each rank

  [[nodiscard]] pid_t read_pid() const { return child != 0 ? child : pid; }
};

/// Clients of a worker store that wait for the same keys.
struct StoreWait {
  std::string keys;                  ///< "default_pg/0//cpu//0/3", several: "a, b and 7 more"
  std::vector<std::string> clients;  ///< addresses
  std::int64_t milliseconds = 0;     ///< of the one that has waited longest
};

/// All ranks of this machine, or of several, at one moment.
struct StackPage {
  std::string why;  ///< after "where the ranks are": "after 6.0 s (--timeout)"
  std::chrono::system_clock::time_point at;
  std::vector<RankStacks> ranks;  ///< in order of rank, program by program
  bool is_named = true;           ///< false: there was no time for names of native functions
  // Of several machines.
  bool is_whole_job = false;
  std::vector<std::string> notes = {};       ///< what is missing, or awaited: "h2: was lost"
  std::map<int, std::string> machines = {};  ///< by the first rank of each
  std::vector<StoreWait> store_waits = {};
  std::string store_host = {};          ///< of the machine with the stores
  std::vector<RankName> in_store = {};  ///< they wait in a store, by name_store_clients()
  std::vector<RankName> gave_up = {};   ///< they have said that they waited in vain, and are no suspects
};

/// What a rank does for the others, from its main thread. In the order of the page.
enum class Stance {
  halted,   ///< stopped, or in uninterruptible sleep
  apart,    ///< waits for no rank, as far as its frames tell
  waits,    ///< a communication library is innermost; if no rank is in one: on a socket of a rank, or of the store
  unknown,  ///< has ended, or could not be read
};

/// Ranks of one program whose main threads have equal stacks.
struct StackGroup {
  Stance stance = Stance::unknown;
  std::vector<const RankStacks*> ranks;  ///< in order of rank; borrowed from the page
};

/// Whether a communication library is innermost in the stack.
[[nodiscard]] bool is_in_library(const ThreadStack& thread);

/// By stance, then small groups before large ones, then by rank.
[[nodiscard]] std::vector<StackGroup> group_ranks(const StackPage& page);

/// The ranks that the others wait for, after one of them has given up waiting.
struct HeldUp {
  std::vector<RankName> ranks;  ///< empty: not known
  std::string why;  ///< "held up the others: load_batch (train.py:7), sleeps"; "is in barrier (train.py:31), ranks …"
  std::string host = {};  ///< of the first; empty: this machine
  pid_t pid = 0;          ///< of the first; 0: not known
  int local_rank = 0;     ///< of the first, on several machines
};
/// Of ranks of one world, with `world` ranks, but for those that gave up. Those that are halted or apart, if others
/// wait or gave up, and they are no more than half of it: the first group of them. If all wait and a strict majority of
/// the world is in one collective: those in another one. None without names of functions, which tell who waits.
[[nodiscard]] HeldUp find_culprits(StackPage page, std::size_t world);

/// Without the others.
void keep_ranks(StackPage& page, const std::function<bool(const RankName&)>& keep);
/// Ranks of one program and with equal main threads, and without awaited processes, become one; numbers that differ
/// are left out. Of other threads those of the first are kept.
void merge_equal(StackPage& page);

// The page of several machines. Each sends the others its ranks as bytes, which it names by share_of().
/// Each different main thread once; with `all_threads` each rank on its own. At most `max_bytes`, but for some: other
/// threads, then ranks, are left out and counted.
[[nodiscard]] std::string share_text(StackPage page, bool all_threads, std::size_t max_bytes);
/// `ranks`: of share_text().
[[nodiscard]] std::string share_of(const std::vector<RankName>& gave_up, int base_rank, std::string_view ranks);
/// Adds the ranks of `host`. False if the share, which is not to be trusted, cannot be read.
[[nodiscard]] bool add_share(StackPage& page, std::string_view share, const std::string& host);

/// For a console: at most 10 groups and 20 frames of each. First, if that is known, who waits for whom: "ranks 0-2 wait
/// for rank 3: load_batch (train.py:7), sleeps", or which ranks are in which collectives. Lines without "ddrun: ", with
/// '\n', sanitized. `directory`: the job's, which is left out of file names.
[[nodiscard]] std::string short_text(const StackPage& page, const std::string& directory);
/// All groups, then all threads of all ranks with all frames.
[[nodiscard]] std::string full_text(const StackPage& page);
/// Whether full_text() of a page has more than its short_text(), but for addresses of functions without names.
[[nodiscard]] bool adds_to(const std::string& short_page, const std::string& full_page, const StackPage& page);
/// docs/schemas/stacks.schema.json
[[nodiscard]] std::string json_text(const StackPage& page);
/// The groups as short_text() shows them: "stacks" of an attempt in docs/schemas/report.schema.json.
[[nodiscard]] std::string groups_json(const StackPage& page);

}  // namespace ddrun::inspect
