#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "ddrun/base/result.hpp"
#include "ddrun/base/text.hpp"
#include "log_files.hpp"
#include "pseudo_terminal.hpp"

struct epoll_event;

namespace ddrun::logs {

/// An epoll set of descriptors to read, which Asio watches as one descriptor. A pipe costs one system call to add and
/// none for each read; watched by Asio itself, three and one: with two pipes for each of a thousand workers that is a
/// tenth of the time it takes to start them.
///
/// Used on the executor's thread only. Descriptors are borrowed, and must be removed before they are closed: a worker
/// between clone and exec may hold a copy, which would keep the descriptor in the set.
class ReadySet {
 public:
  /// `on_ready` is called in each turn for each descriptor that is readable or at its end, with the tag of add(). It
  /// may add and remove descriptors, also that one.
  ReadySet(boost::asio::any_io_executor executor, std::function<void(void* tag)> on_ready);
  ~ReadySet();
  ReadySet(const ReadySet&) = delete;
  ReadySet& operator=(const ReadySet&) = delete;

  /// Fails with `unavailable` if no descriptor or no epoll watch of the user is left.
  Result<void> add(int fd, void* tag);
  void remove(int fd, void* tag);
  /// Until resume() it is not reported, but for its end, once. Cannot fail: it stays in the set.
  void pause(int fd, void* tag);
  void resume(int fd, void* tag);
  /// Until resume() it is watched edge-triggered: its present state is reported once, then each change.
  void watch_edges(int fd, void* tag);
  /// The number of the present epoll_wait(), from 1. The order of writes that were read in the same turn is unknown.
  [[nodiscard]] std::uint64_t turns() const { return turns_; }
  /// No call of `on_ready` comes after this.
  void close();

 private:
  Result<void> open();
  void change(int fd, void* tag, unsigned events);
  void wait();
  void dispatch_events();

  boost::asio::posix::stream_descriptor epoll_;
  std::function<void(void*)> on_ready_;
  std::unique_ptr<epoll_event[]> events_;
  int event_count_ = 0;  ///< events of the last epoll_wait(), those before `next_` are done
  int next_ = 0;
  std::uint64_t turns_ = 1;
  std::shared_ptr<ReadySet*> self_;  ///< null after close(), for a pending handler
};

/// The reading end of one pipe or pseudo-terminal. Small while idle: there are tens of thousands.
struct WorkerStream {
  static constexpr std::size_t unbounded = SIZE_MAX;

  int slot = 0;                    ///< of its worker
  UniqueFd pipe;                   ///< empty once it is at its end
  RankConsole* console = nullptr;  ///< nullptr: not shown
  RankStream shown;
  WorkerStream* echo_of = nullptr;  ///< this stream's bytes are shown as those of that one, while it is open
  std::unique_ptr<LogFile> file;
  std::unique_ptr<Duplicate> duplicate;
  std::unique_ptr<TailBuffer> tail;
  LastWrite last;
  bool paused = false;
  bool pty = false;                      ///< `pipe` is a pseudo-terminal's master
  bool closes_unread = false;            ///< closed once the reader of `console` has
  bool is_large = false;                 ///< the pipe counts in large_pipes_
  bool worker_exited = false;            ///< the pseudo-terminal may be closed: no worker would get SIGHUP
  bool has_no_writer = false;            ///< no process has the pseudo-terminal open at present
  std::size_t unread_limit = unbounded;  ///< bytes that are still read before it is closed
};

/// The reading ends of the workers' output in one attempt. Their bytes go to log files, to consoles in whole lines and
/// to filtered logs. While a console's queue is full, the streams that it shows are not read (back pressure). Used on
/// the executor's thread only; blocks on log files at most.
class WorkerStreams {
 public:
  /// `options`, `consoles` and `files` are borrowed. `on_all_closed` is called when the last open stream is closed.
  WorkerStreams(boost::asio::any_io_executor executor, const OutputOptions& options, const Consoles& consoles,
                AttemptFiles& files, std::function<void()> on_all_closed);

  /// As Output::open_streams(). `shared`: one stream for both.
  [[nodiscard]] Result<ChildStreams> open(const WorkerIdentity& worker, const StreamPlan& out, const StreamPlan& err,
                                          bool shared);
  /// nullptr: it was not opened. Until reset().
  [[nodiscard]] const WorkerStream* find(int slot, StreamId id) const;

  /// As the functions of Output.
  void drain(int slot);
  void drain_all();
  void resize_screens();
  /// Reads what is there now and closes what is at its end. The others are closed after the bytes that they have now.
  void end_attempt(std::set<int> still_running);
  /// Reads what is there now, to consoles as far as their queues permit, and closes all.
  void close_all();
  /// close_all(), and forgets the streams.
  void reset();

  /// Reads streams again whose console has no back pressure any more.
  void resume_paused();
  [[nodiscard]] std::size_t open_count() const { return open_count_; }
  /// As LossReport::closed_unread.
  [[nodiscard]] bool has_closed_unread() const { return has_closed_unread_; }
  /// Frees memory that only a burst of output needs.
  void trim() { read_buffer_.reset(); }

 private:
  using Key = std::pair<int, StreamId>;  ///< slot and stream
  /// Instead of the slot: a pseudo-terminal for input alone, as stdout.
  [[nodiscard]] static int echo_key(int slot) { return -1 - slot; }
  [[nodiscard]] const WorkerPlace& place_of(const WorkerIdentity& worker) const {
    return options_.places[static_cast<std::size_t>(worker.slot < 0 ? echo_key(worker.slot) : worker.slot)];
  }

  // opening
  [[nodiscard]] Result<UniqueFd> open_stream(const WorkerIdentity& worker, StreamId id, const StreamPlan& plan);
  [[nodiscard]] Result<UniqueFd> open_pipe(const WorkerIdentity& worker, StreamId id, const StreamPlan& plan);
  /// A pseudo-terminal, or if `pty` is false or set to false, a pipe.
  [[nodiscard]] Result<Pipe> make_ends(ScreenSize screen, bool& pty, const termios* input);
  [[nodiscard]] bool is_input(const WorkerIdentity& worker) const {
    return worker.rank == options_.input_rank &&
           place_of(worker).program == static_cast<int>(first_main(options_.programs));
  }
  /// Through a pseudo-terminal. A single worker does if ddrun shows its stdout: its echo has to be known.
  [[nodiscard]] bool reads_terminal(const WorkerIdentity& worker, const StreamPlan& out) const {
    const bool shows = out.kind == StreamPlan::Kind::piped && out.console;
    return is_input(worker) && (shows || options_.workers() > 1);
  }
  [[nodiscard]] Result<ChildStreams> open_input(const WorkerIdentity& worker, ChildStreams ends);
  [[nodiscard]] std::string prefix_of(const WorkerIdentity& worker) const;
  [[nodiscard]] RankStream shown_stream(const WorkerIdentity& worker, StreamId id) const;

  // reading
  void on_readable(WorkerStream& stream);
  /// The number of bytes, 0 if there is none now; empty at the end of the stream.
  std::optional<std::size_t> read_once(WorkerStream& stream);
  void enlarge(WorkerStream& stream);
  void process_chunk(WorkerStream& stream, std::string_view chunk);
  /// True if all bytes that were in the pipe at the call have been read.
  bool drain_stream(WorkerStream& stream);

  // closing
  void on_end_of_stream(WorkerStream& stream);
  /// From here on the end of its pseudo-terminal is the end of the stream.
  void on_worker_exit(WorkerStream& stream);
  void close_unread();
  void close_after_bytes(WorkerStream& stream, std::size_t rest);
  void discard_rest(WorkerStream& stream);
  void close(WorkerStream& stream);
  void warn_leaked_pipes();

  const OutputOptions& options_;
  const Consoles& consoles_;
  AttemptFiles& files_;
  std::function<void()> on_all_closed_;
  ReadySet pipes_;
  std::map<Key, WorkerStream> streams_;  ///< a shared one is that of stdout
  std::vector<WorkerStream*> paused_;    ///< by back pressure
  std::size_t open_count_ = 0;
  std::size_t large_pipes_ = 0;
  bool is_stopping_ = false;  ///< the attempt's workers are being stopped, and may write because of that
  bool has_closed_unread_ = false;
  bool ptys_unavailable_ = false;  ///< the system has none, and a notice was printed
  std::set<int> still_running_;
  std::map<int, RankName> leaked_;  ///< by slot; whose pipes are held open by a process outside of the job
  std::unique_ptr<char[]> read_buffer_;
};

}  // namespace ddrun::logs
