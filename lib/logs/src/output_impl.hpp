#pragma once

#include <array>
#include <boost/asio/steady_timer.hpp>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ddrun/logs/console.hpp"
#include "ddrun/logs/line_assembler.hpp"
#include "ddrun/logs/log_file.hpp"
#include "ddrun/logs/log_layout.hpp"
#include "ddrun/logs/output.hpp"
#include "ddrun/logs/stream_plan.hpp"
#include "ddrun/logs/tail_buffer.hpp"
#include "pseudo_terminal.hpp"
#include "ready_set.hpp"

namespace ddrun::logs {

struct WorkerStream;

/// A console and the streams that wait until it has room.
struct Lane {
  std::shared_ptr<Console> console;
  std::vector<std::shared_ptr<WorkerStream>> held_back;
};

/// Copies lines that contain one of the filters to a file that all workers of the attempt share.
struct Duplicate {
  const std::vector<std::string>* filters;
  LogFile* file;
  LineAssembler lines;
};

/// The reading end of one pipe or pseudo-terminal. Small while idle: there are tens of thousands. Held by shared_ptr,
/// because lists of those that wait for something may outlast their worker.
struct WorkerStream : std::enable_shared_from_this<WorkerStream> {
  static constexpr std::size_t unbounded = SIZE_MAX;

  UniqueFd pipe;         ///< empty once it is at its end
  Lane* lane = nullptr;  ///< nullptr: not shown
  std::string prefix;
  LineAssembler lines;
  std::unique_ptr<LogFile> file;
  std::unique_ptr<Duplicate> duplicate;
  std::unique_ptr<TailBuffer> tail;
  bool held_back = false;
  bool pty = false;        ///< `pipe` is a pseudo-terminal's master
  bool has_ended = false;  ///< the worker: nobody is left who could be hung up by closing a pseudo-terminal
  bool silent = false;     ///< nobody has the pseudo-terminal open at present
  bool in_quiet_list = false;
  std::size_t held = 0;  ///< bytes of its unfinished lines, as counted in the total
  int rank = 0;
  std::size_t rest = unbounded;  ///< so much is still read from it, then it is closed
  Deadline quiet_at{};
};

/// The end of a file that somebody else writes, as far as it was read.
struct FileTail {
  TailBuffer tail;
  off_t read_to = 0;
};

/// Bytes that can be read from it now; from a pseudo-terminal, which does not tell, not more than these.
[[nodiscard]] std::size_t unread_in(const WorkerStream& stream);

class Output::Impl {
 public:
  Impl(boost::asio::any_io_executor executor, OutputOptions options);
  void shut_down();

  // output.cpp: attempts
  Result<void> prepare();
  Result<void> begin_attempt(int attempt, const std::vector<WorkerIdentity>& identities);
  Result<ChildStreams> open_streams(int local_rank);
  [[nodiscard]] int descriptors_of(int local_rank) const;
  void async_end_attempt(std::function<void()> done);
  void async_flush(std::function<void()> done) { add_waiter(false, std::move(done)); }
  void hurry(Milliseconds patience);
  void give_up();
  bool close();
  void read_file_tails();
  [[nodiscard]] std::vector<TailLine> stderr_tail(int local_rank, std::size_t lines) const;
  [[nodiscard]] std::uint64_t lines_shown() const { return lines_shown_; }
  [[nodiscard]] StreamPlan plan_of(StreamId id, int local_rank) const;
  [[nodiscard]] std::string log_of(StreamId id, int local_rank) const;
  [[nodiscard]] LossReport losses() const;
  void drain(int local_rank);
  void drain_all();
  void screen_resized();
  void console_line(std::string_view text, StreamId id);

  LogLayout layout;

 private:
  struct Worker {
    WorkerIdentity identity;
    std::array<std::shared_ptr<WorkerStream>, 2> streams;  ///< by StreamId; empty unless piped
    std::unique_ptr<FileTail> file_tail;                   ///< of a stderr file that the worker writes itself
  };
  struct Waiter {
    bool for_attempt;
    std::function<void()> done;
  };

  [[nodiscard]] const Worker* find(int local_rank) const;
  [[nodiscard]] Result<UniqueFd> open_stream(Worker& worker, StreamId id);
  [[nodiscard]] Result<UniqueFd> open_pipe(Worker& worker, StreamId id, const StreamPlan& plan);
  void drain_worker(const Worker& worker);
  static void read_file_tail(FileTail& file, const std::string& path);
  void add_to_console(WorkerStream& stream, std::string_view prefix, const Piece& piece);
  /// Both ends of what the worker writes to; `pty` tells whether it is a pseudo-terminal.
  [[nodiscard]] Result<Pipe> make_ends(const Worker& worker, StreamId id, const StreamPlan& plan, bool& pty);
  [[nodiscard]] ScreenSize screen_of(const Worker& worker, StreamId id, bool teed) const;
  [[nodiscard]] Error too_many_descriptors(const std::string& what, int err) const;
  [[nodiscard]] std::string prefix_of(const Worker& worker, bool teed) const;
  void forget_pipes();
  void forget_attempt();
  void add_waiter(bool for_attempt, std::function<void()> done);
  [[nodiscard]] bool consoles_done() const;
  [[nodiscard]] std::uint64_t taken_bytes() const;
  void watch_progress();
  void check_waiters();
  void finish(Waiter waiter);

  // output_streams.cpp: bytes
  void readable(WorkerStream& stream);
  enum class ReadResult { data, nothing, end };
  ReadResult read_once(WorkerStream& stream, std::size_t& count);
  void take(WorkerStream& stream, std::string_view chunk);
  void show(WorkerStream& stream, std::string_view chunk);
  void copy_matching(WorkerStream& stream, std::string_view chunk, bool last);
  void write_file(LogFile& file, std::string_view chunk);
  /// True if all that was there when it began has been read.
  bool drain_stream(WorkerStream& stream);
  void at_end(WorkerStream& stream);
  /// Its worker has: from here on the end of its terminal is the end of the stream.
  void ended(WorkerStream& stream);
  void close_stream(WorkerStream& stream);
  void give_up(WorkerStream& stream);
  void count_held(WorkerStream& stream);
  void break_line_if_too_much_is_held(WorkerStream& stream, std::string_view prefix);
  void close_when_read(WorkerStream& stream, std::size_t rest);
  void say_who_is_held_open();
  void say_if_reader_left();
  void console_has_room();
  void expect_quiet(WorkerStream& stream);
  void arm_quiet_timer(Deadline at);
  void show_quiet_lines();
  [[nodiscard]] std::string_view stamped(const WorkerStream& stream);
  void say_first_loss(const std::string& error);

  boost::asio::any_io_executor executor_;
  OutputOptions options_;
  ReadySet pipes_;
  std::array<Lane, 2> lane_storage_;
  std::array<Lane*, 2> lanes_{};  ///< by StreamId; both the same if both consoles are the same place
  std::vector<Worker> workers_;
  std::vector<int> index_of_local_rank_;
  std::array<std::unique_ptr<LogFile>, 2> filtered_logs_;
  bool began_ = false;
  bool ptys_refused_ = false;  ///< the system has none, and that was said
  std::size_t open_streams_ = 0;
  std::size_t held_ = 0;  ///< bytes of all streams' unfinished lines
  bool said_reader_left_ = false;
  std::vector<int> held_open_;  ///< ranks whose pipes somebody holds who is not of the job
  std::unique_ptr<char[]> read_buffer_;
  std::string scratch_prefix_;
  std::string scratch_lines_;
  std::vector<std::shared_ptr<WorkerStream>> quiet_list_;
  boost::asio::steady_timer quiet_timer_;
  bool quiet_timer_armed_ = false;
  std::vector<Waiter> waiters_;
  std::optional<Milliseconds> patience_;  ///< with consoles that take nothing
  bool gave_up_ = false;
  boost::asio::steady_timer patience_timer_;
  std::uint64_t earlier_losses_ = 0;
  std::uint64_t lines_shown_ = 0;
  std::string first_file_error_;
  bool said_rotation_error_ = false;
  bool shut_down_ = false;
  std::weak_ptr<Impl> self_;
  friend class Output;
};

}  // namespace ddrun::logs
