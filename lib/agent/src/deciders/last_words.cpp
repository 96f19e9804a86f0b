#include "evidence.hpp"

#include <algorithm>
#include <cctype>
#include <span>
#include <string_view>
#include <utility>

#include "ddrun/base/text.hpp"

namespace ddrun::agent {

// ---- messages about failures of peers

namespace {

/// Parts of messages, by library; long enough not to match a failure of the worker itself.
constexpr std::string_view peer_failure_phrases[] = {
    // Gloo
    "Connection closed by peer", "Connection reset by peer", "Application timeout caused pair closure",
    "Timed out waiting",  // "… 1800000ms for recv operation to complete", and TCPStore's clients
    "Gloo connectFullMesh failed", "Socket closed",
    // strerror() of a lost connection
    "Broken pipe", "Connection refused", "Connection aborted", "Connection timed out",
    "Software caused connection abort", "Transport endpoint is not connected", "No route to host",
    // Python's exceptions for the same
    "ConnectionResetError", "ConnectionAbortedError", "ConnectionRefusedError", "BrokenPipeError",
    // TCPStore
    "Connection was likely closed", "failed to recv, got 0 bytes", "Failed to recv, got 0 bytes", "wait timeout after ",
    "DistNetworkError", "The client socket has timed out", "recvValue failed on SocketImpl",
    "sendBytes failed on SocketImpl", "Stop_waiting response is expected",
    // PyTorch's process groups
    "Watchdog caught collective operation timeout", "Some NCCL operations have failed or timed out",
    "NCCL communicator was aborted", "Another rank reported timeout",
    "Observed flight recorder dump signal from another rank", "failed to pass monitoredBarrier", "monitoredBarrier in",
    // NCCL and RCCL
    "ncclRemoteError", "remote process exited or there was a network error", "a remote process exiting prematurely",
    "Connection closed by remote peer", "peer closed the connection",
    // UCX, libfabric, MPI
    "Connection reset by remote peer", "Endpoint timeout", "Endpoint is not connected", "MPI_ERR_PROC_FAILED",
    "MPIX_ERR_PROC_FAILED"};

bool contains(std::string_view text, std::string_view part) { return text.find(part) != std::string_view::npos; }

}  // namespace

bool is_peer_failure_message(std::string_view text) {
  if (text.starts_with("ddrun-allreduce: error: ")) return contains(text, " is gone");
  return std::any_of(std::begin(peer_failure_phrases), std::end(peer_failure_phrases),
                     [&](std::string_view phrase) { return contains(text, phrase); });
}

// ---- the last words

namespace {

using Time = std::chrono::system_clock::time_point;

constexpr std::size_t max_reason_lines = 3;
/// Failures of one worker within this time are one: the later is a consequence of the earlier.
constexpr std::chrono::seconds same_failure_window{10};

constexpr std::string_view traceback_header = "Traceback (most recent call last):";
constexpr std::string_view group_header = "+ Exception Group Traceback (most recent call last):";

/// Beginnings of fatal messages.
constexpr std::string_view fatal_beginnings[] = {"terminate called",  // libstdc++
                                                 "libc++abi: ",
                                                 "Fatal Python error: ",  // faulthandler as well
                                                 "free(): ",              // glibc
                                                 "malloc(): ",
                                                 "malloc_consolidate(): ",
                                                 "realloc(): ",
                                                 "munmap_chunk(): ",
                                                 "double free or corruption",
                                                 "corrupted size vs. prev_size",
                                                 "corrupted double-linked list",
                                                 "Fatal glibc error: ",
                                                 "panic: ",        // Go
                                                 "fatal error: ",  // Go, compilers
                                                 "ERROR STOP",     // Fortran
                                                 "Fortran runtime error: ",
                                                 "ERROR: LoadError",  // Julia
                                                 "ddrun: error: ",
                                                 "ddrun-allreduce: error: "};

/// Parts of fatal messages.
constexpr std::string_view fatal_parts[] = {
    "*** stack smashing detected ***",
    "*** buffer overflow detected ***",
    "' failed.",  // assert(3): "prog: file.c:3: f: Assertion `x' failed."
    "ERROR: AddressSanitizer: ",
    "ERROR: LeakSanitizer: ",
    "ERROR: ThreadSanitizer: ",
    "MemorySanitizer: use-of-uninitialized-value",
    "CUDA error",
    "CUDA failure",
    "HIP error",
    "NCCL failure",
    "NCCL error",
    "' panicked at ",  // Rust
    "Check failed: ",  // glog
    "error while loading shared libraries: ",
    "symbol lookup error: ",
    "Segmentation fault",  // shells
};

bool is_fatal_message(std::string_view line) {
  const auto begins = [&](std::string_view words) { return line.starts_with(words); };
  const auto has = [&](std::string_view words) { return line.find(words) != std::string_view::npos; };
  return std::any_of(std::begin(fatal_beginnings), std::end(fatal_beginnings), begins) ||
         std::any_of(std::begin(fatal_parts), std::end(fatal_parts), has);
}

/// "package.Name: text" or "Name" alone.
bool is_exception_line(std::string_view line) {
  const std::string_view name = line.substr(0, line.find(':'));
  if (name.empty() || std::isdigit(static_cast<unsigned char>(name.front())) != 0) return false;
  if (name.size() < line.size() && line.size() > name.size() + 1 && line[name.size() + 1] != ' ') return false;
  return std::all_of(name.begin(), name.end(), [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '.' ||
           (static_cast<unsigned char>(c) & 0x80U) != 0;
  });
}

/// Lines before tracebacks that an interpreter ignores, or prints while it ends.
constexpr std::string_view ignored_headers[] = {"Exception ignored in", "Error in atexit._run_exitfuncs"};
/// Beginnings of lines that follow a failure and belong to it, such as PyTorch's log
/// ("[W1125 12:00:00.1 ProcessGroupNCCL.cpp:1250] …").
constexpr std::string_view aftermath[] = {
    // CUDA
    "CUDA kernel errors might be", "For debugging consider passing", "Compile with `TORCH_USE_CUDA_DSA`",
    "Search for `cuda",
    // C++ stacks of PyTorch and glog
    "Exception raised from ", "frame #", "    @ ", "\t",
    // NCCL, PyTorch's log, wandb, Rust, shells
    "nccl", "Last error:", "[W0", "[W1", "[E0", "[E1", "wandb: ", "note: run with `RUST_BACKTRACE", "Aborted"};

bool begins_with_any(std::string_view line, std::span<const std::string_view> beginnings) {
  return std::any_of(beginnings.begin(), beginnings.end(), [&](auto words) { return line.starts_with(words); });
}

/// Lines before tracebacks of other threads or child processes, which do not end the interpreter.
bool is_thread_or_child_header(std::string_view line) {
  return (line.starts_with("Exception in thread ") || line.starts_with("Process ")) && line.ends_with(':');
}

bool is_chain_line(std::string_view line) {
  return line.find("During handling of the above exception, another exception occurred:") != std::string_view::npos ||
         line.find("The above exception was the direct cause of the following exception:") != std::string_view::npos;
}

/// Strips PyTorch's "[rank12]: ".
std::string_view without_rank(std::string_view line) {
  if (!line.starts_with("[rank")) return line;
  std::size_t at = 5;
  while (at < line.size() && std::isdigit(static_cast<unsigned char>(line[at])) != 0) ++at;
  if (at == 5 || line.substr(at, 2) != "]:") return line;
  line.remove_prefix(at + 2);
  if (line.starts_with(' ')) line.remove_prefix(1);
  return line;
}

/// The text after the bars of an exception group; nothing if there are none.
std::optional<std::string_view> strip_group_bars(std::string_view line) {
  const std::size_t at = line.find_first_not_of(' ');
  if (at == std::string_view::npos || (line[at] != '|' && line[at] != '+')) return std::nullopt;
  line.remove_prefix(at + 1);
  if (line.starts_with(' ')) line.remove_prefix(1);
  return line;
}

/// One failure in the tail: lines [begin, end).
struct Block {
  std::size_t begin = 0;
  std::size_t end = 0;
  std::size_t reason_end = 0;  ///< the line that completes the reason
  std::vector<std::string> reason;
  bool blames_peer = false;
  bool python_chain = false;     ///< chained to the exception before it
  bool is_faulthandler = false;  ///< has the place, not the reason
  bool is_traceback = false;     ///< Python's
  bool of_other_thread = false;  ///< of another thread or a child, by its header
};

class TailParser {
 public:
  explicit TailParser(const std::vector<logs::TailLine>& tail) : tail_(tail) {
    for (const auto& line : tail) lines_.emplace_back(without_rank(plain_line(line.text)));
  }

  std::vector<Block> blocks() {
    std::vector<Block> found;
    bool chained = false;
    for (std::size_t at = 0; at < lines_.size();) {
      const std::string& line = lines_[at];
      std::optional<Block> block;
      if (line.find(group_header) != std::string::npos) block = group(at);
      else if (line.find(traceback_header) != std::string::npos) block = traceback(at, at + 1);
      else if (line.starts_with("  File \"")) block = bare_syntax_error(at);
      else if (line.starts_with("Fatal Python error: ")) block = faulthandler(at);
      else if (is_fatal_message(line)) block = fatal_message(at);
      if (!block) {
        if (is_chain_line(line)) chained = true;
        else if (!trim(line).empty()) chained = false;
        ++at;
        continue;
      }
      block->python_chain = std::exchange(chained, false);
      block->is_traceback = !is_fatal_message(line);
      block->of_other_thread = at > 0 && is_thread_or_child_header(lines_[at - 1]);
      const bool ignored = at > 0 && begins_with_any(lines_[at - 1], ignored_headers);
      at = block->end;
      if (ignored) ignored_.emplace_back(block->begin - 1, block->end);
      else found.push_back(std::move(*block));
    }
    return found;
  }

  [[nodiscard]] std::vector<std::string> text(const Block& block) const {
    return {lines_.begin() + static_cast<std::ptrdiff_t>(block.begin),
            lines_.begin() + static_cast<std::ptrdiff_t>(block.end)};
  }

  [[nodiscard]] std::string last_line() const {
    const auto last =
        std::find_if(lines_.rbegin(), lines_.rend(), [](const auto& line) { return !trim(line).empty(); });
    return last == lines_.rend() ? std::string() : std::string(trim(*last));
  }

  /// The first and the last of lines [begin, end) that belong to no failure: the program continued.
  [[nodiscard]] std::optional<std::pair<std::size_t, std::size_t>> later_output(std::size_t begin,
                                                                                std::size_t end) const {
    std::optional<std::pair<std::size_t, std::size_t>> found;
    for (std::size_t at = begin; at < end; ++at) {
      const std::string& line = lines_[at];
      const bool ignored = std::any_of(ignored_.begin(), ignored_.end(),
                                       [&](const auto& part) { return at >= part.first && at < part.second; });
      if (ignored || trim(line).empty() || is_peer_failure_message(line) || is_chain_line(line) ||
          begins_with_any(line, aftermath) || is_thread_or_child_header(line))
        continue;
      found = {found ? found->first : at, at};
    }
    return found;
  }

 private:
  Block traceback(std::size_t begin, std::size_t at) const {
    while (at < lines_.size() && (lines_[at].empty() || lines_[at].front() == ' ')) ++at;
    // Output of another thread may come between.
    std::size_t exception = at;
    while (exception < lines_.size() && exception < at + 5 && !is_exception_line(lines_[exception])) ++exception;
    if (exception >= lines_.size() || exception == at + 5) exception = std::min(at, lines_.size() - 1);
    return simple_block(begin, exception);
  }

  std::optional<Block> bare_syntax_error(std::size_t begin) const {
    std::size_t at = begin + 1;
    while (at < lines_.size() && lines_[at].starts_with(' ')) ++at;
    if (at == lines_.size() || lines_[at].substr(0, lines_[at].find(':')).find("Error") == std::string::npos)
      return std::nullopt;
    return simple_block(begin, at);
  }

  Block group(std::size_t begin) const {
    Block block;
    block.begin = begin;
    block.reason_end = begin;
    std::size_t at = begin + 1;
    bool all_victims = true;
    for (; at < lines_.size(); ++at) {
      const auto content = strip_group_bars(lines_[at]);
      if (!content) break;
      if (content->starts_with(' ') || !is_exception_line(*content) || content->find(traceback_header) == 0) continue;
      // The first line is the group's, then come its members.
      if (!block.reason.empty()) all_victims = all_victims && is_peer_failure_message(*content);
      if (block.reason.size() < max_reason_lines) block.reason.emplace_back(*content);
      block.reason_end = at;
    }
    block.end = at;
    block.blames_peer = block.reason.size() > 1 && all_victims;
    if (block.reason.empty()) block.reason.push_back(lines_[begin]);
    return block;
  }

  Block fatal_message(std::size_t begin) const {
    Block block = simple_block(begin, begin);
    const std::string& line = lines_[begin];
    const bool more = begin + 1 < lines_.size();
    if (more && lines_[begin + 1].starts_with("  what():")) {
      // terminate called after throwing an instance of 'std::runtime_error'
      const std::size_t open = line.find('\'');
      const std::size_t close = line.rfind('\'');
      const std::string type = open < close ? line.substr(open + 1, close - open - 1) : line;
      block.reason = {concat(type, ": ", trim(std::string_view(lines_[begin + 1]).substr(9)))};
      block.reason_end = begin + 1;
      block.end = begin + 2;
      block.blames_peer = reason_blames_peer(begin, begin + 1);
    } else if (more && line.find("' panicked at ") != std::string::npos) {
      block.reason.push_back(lines_[begin + 1]);
      block.reason_end = begin + 1;
      block.end = begin + 2;
    }
    // Stacks of sanitizers and of Go.
    while (block.end < lines_.size() && lines_[block.end].starts_with("    #")) ++block.end;
    return block;
  }

  Block faulthandler(std::size_t begin) const {
    Block block = simple_block(begin, begin);
    block.is_faulthandler = true;
    std::size_t at = begin + 1;
    bool current = false;
    for (; at < lines_.size(); ++at) {
      const std::string& line = lines_[at];
      const bool thread = line.starts_with("Thread 0x") || line.starts_with("Current thread ");
      if (thread) current = line.starts_with("Current thread ");
      if (line.starts_with("  File \"")) {
        if (current && block.reason.size() == 1) block.reason.push_back(std::string(trim(line)));
      } else if (!thread && !line.empty() && !line.starts_with("  ") && !line.starts_with("Extension modules: ") &&
                 !line.starts_with("Python runtime state: ")) {
        break;
      }
    }
    block.end = at;
    block.reason_end = at - 1;
    return block;
  }

  Block simple_block(std::size_t begin, std::size_t reason) const {
    Block block;
    block.begin = begin;
    block.end = reason + 1;
    block.reason_end = reason;
    block.reason = {std::string(trim(lines_[reason]))};
    block.blames_peer = reason_blames_peer(begin, reason);
    return block;
  }

  /// Checks the reason and the lines that belong to its text.
  [[nodiscard]] bool reason_blames_peer(std::size_t begin, std::size_t reason) const {
    if (is_peer_failure_message(lines_[reason])) return true;
    for (std::size_t at = reason + 1; at < lines_.size() && at < reason + 7; ++at) {
      const std::string& line = lines_[at];
      if (line.empty() || line.find(traceback_header) != std::string::npos || is_chain_line(line)) break;
      if (begin != reason && is_fatal_message(line)) break;
      if (tail_[at].at - tail_[reason].at > std::chrono::milliseconds(20)) break;
      if (is_peer_failure_message(line)) return true;
    }
    return false;
  }

  const std::vector<logs::TailLine>& tail_;
  std::vector<std::string> lines_;
  std::vector<std::pair<std::size_t, std::size_t>> ignored_;  ///< ignored tracebacks with their headers
};

}  // namespace

std::optional<LastWords> find_last_words(const std::vector<logs::TailLine>& tail) {
  TailParser parser(tail);
  std::vector<Block> blocks = parser.blocks();
  if (blocks.empty()) return std::nullopt;
  std::size_t chosen = blocks.size() - 1;
  const auto time_of = [&](std::size_t block) { return tail[blocks[block].reason_end].at; };
  const auto near = [&](std::size_t block) {
    const Block& next = blocks[block + 1];
    if (next.python_chain) return true;
    // An interpreter ends with one exception; the program survived those before.
    const bool survived = (next.is_traceback && !next.of_other_thread && !blocks[block].of_other_thread) ||
                          parser.later_output(blocks[block].end, next.begin).has_value();
    return !survived && time_of(blocks.size() - 1) - time_of(block) <= same_failure_window;
  };
  // A message about a peer soon after a failure of the worker itself is a consequence, unless the program continued in
  // between.
  for (std::size_t i = chosen; blocks[chosen].blames_peer && i-- > 0 && near(i);) {
    if (!blocks[i].blames_peer) chosen = i;
  }
  Block block = blocks[chosen];
  // faulthandler prints the place; the reason of the abort is before it.
  if (block.is_faulthandler && chosen > 0 && near(chosen - 1) && !blocks[chosen - 1].is_faulthandler &&
      blocks[chosen - 1].end + 2 >= block.begin) {
    const Block& why = blocks[chosen - 1];
    std::vector<std::string> reason = why.reason;
    if (block.reason.size() > 1) reason.push_back(block.reason[1]);
    block.begin = why.begin;
    block.blames_peer = why.blames_peer;
    block.reason = std::move(reason);
  }
  // The exception it was raised from, on a separate line.
  if (block.python_chain && chosen > 0 && block.reason.size() < max_reason_lines) {
    std::size_t first = chosen;
    while (first > 0 && blocks[first].python_chain) --first;
    block.begin = blocks[first].begin;
    if (!blocks[first].blames_peer && blocks[first].reason.front() != block.reason.front()) {
      block.reason.push_back(concat("after ", blocks[first].reason.front()));
    }
  }
  LastWords words;
  words.text = parser.text(block);
  words.reason = std::move(block.reason);
  words.at = tail[block.reason_end].at;
  words.shown = tail[block.reason_end].shown;
  words.lines_after = tail.size() - blocks.back().end;
  if (const auto later = parser.later_output(blocks.back().end, tail.size())) {
    // The last line reports the failure of a peer.
    if (const std::string last = parser.last_line(); is_peer_failure_message(last))
      return LastWords{.reason = {last},
                       .text = {last},
                       .at = tail.back().at,
                       .shown = tail.back().shown,
                       .turn = tail.back().turn,
                       .continued = true,
                       .blames_peer = true};
    words.continued = true;
    words.span = tail[later->second].at - tail[later->first].at;
  }
  words.turn = tail[block.reason_end].turn;
  words.is_main_traceback = block.is_traceback && !block.of_other_thread;
  words.blames_peer = block.blames_peer;
  return words;
}

}  // namespace ddrun::agent
