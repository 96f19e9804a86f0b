#pragma once

#include <sys/types.h>

#include <boost/asio/any_io_executor.hpp>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "ddrun/base/text.hpp"
#include "ddrun/inspect/stack_page.hpp"

namespace ddrun::inspect {

/// Reads the stacks of a job's ranks on threads of its own, because memory of a process, its files and a disk may
/// block. No thread exists between readings. Processes are neither stopped nor signalled, and no other process is
/// started: the caller is their ancestor, which Yama's scope 1 asks for.
///
/// Only for the thread of the executor. The executor's context must outlive the process's other threads: one that is
/// blocked is given up, not joined.
class StackReader {
 public:
  struct Target {
    RankName name;
    pid_t pid = 0;  ///< must not have been reaped when async_read() is called; 0: has ended
    int world = 0;  ///< RankStacks::world
  };
  struct Request {
    std::string why;              ///< StackPage::why
    std::vector<Target> targets;  ///< in the order of the page
    /// "logs/attempt_0/stacks-": the page is written to stacks-1.txt, up to 10; empty: to no file.
    std::string file_prefix;
    enum class Format { text, all_threads, json, share };
    Format format = Format::text;         ///< short_text(), full_text(), json_text(), or share_text()
    std::string directory = {};           ///< for short_text()
    std::vector<std::string> notes = {};  ///< StackPage::notes
    bool is_whole = true;                 ///< false: the job has ranks elsewhere, whom one of these may wait for
    std::set<int> store_ports = {};       ///< of the job's worker stores
    std::vector<StoreWait> store_waits = {};
    bool all_threads = false;   ///< for share_text()
    std::size_t max_bytes = 0;  ///< for share_text()
    bool needs_file = true;     ///< false: a file that adds nothing to short_text() is left out
    std::function<bool(const RankName&)> includes = {};  ///< of async_merge(), on another thread; null: all ranks
  };
  /// What one machine has sent.
  struct Share {
    std::string host;
    std::string text;  ///< of share_of()
  };
  struct Answer {
    std::string text;        ///< in the format of the request
    StackPage page;          ///< with the main threads only
    std::string file;        ///< its path; empty: none was written
    std::string file_error;  ///< why not
  };
  explicit StackReader(boost::asio::any_io_executor executor);

  /// Calls `done`, never from within, when all is read, named and written; with what there is, and a note in what is
  /// not, after 2.5 s, or once the text is made, on another thread. For a short text alone only main threads are read,
  /// and with one that waits for a thread some that do too.
  void async_read(Request request, std::function<void(Answer)> done);
  /// The same from what machines have sent.
  void async_merge(Request request, std::vector<Share> shares, std::function<void(Answer)> done);

 private:
  struct Work;
  struct Reading;
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace ddrun::inspect
