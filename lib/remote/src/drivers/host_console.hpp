#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "ddrun/base/alarm.hpp"
#include "ddrun/base/background_writer.hpp"
#include "ddrun/logs/line_assembler.hpp"
#include "ddrun/logs/rank_console.hpp"
#include "ddrun/spec/launch_spec.hpp"

namespace ddrun::remote {

/// Stdout and stderr for the lines of all hosts and ddrun's own messages. Never blocks the caller, not even on a disk:
/// blocked pings would make all hosts treat the connection as lost. Must live as long as the event loop.
class HostConsole {
 public:
  /// What a host has sent.
  struct HostLines {
    struct Worker {
      logs::RankStream label{};                        ///< of both
      std::unique_ptr<logs::RankStream> out{}, err{};  ///< from the first line on
    };
    std::string own_prefix;  ///< replaces the "ddrun: " of its ddrun's messages; empty: unchanged
    logs::LineAssembler out, err;
    std::map<std::uint32_t, Worker> workers;  ///< by key
  };
  enum class Stream { out, err };

  /// `on_change` is called when is_congested() or is_empty() may have changed.
  HostConsole(const boost::asio::any_io_executor& executor, const LogSpec& log, std::function<void()> on_change);
  ~HostConsole();
  HostConsole(const HostConsole&) = delete;
  HostConsole& operator=(const HostConsole&) = delete;

  /// Sets this as the message sink until close().
  void redirect_messages();
  void show(HostLines& host, Stream stream, std::string_view bytes);
  // Frames of logs/piece_frames.hpp; others are ignored.
  static void add_worker(HostLines& host, std::string_view payload);
  void show_piece(HostLines& host, std::string_view payload);
  /// Writes the last line, also without a newline.
  void finish(HostLines& host);
  void flush();

  /// So much is queued that the hosts should wait.
  [[nodiscard]] bool is_congested() const;
  [[nodiscard]] bool is_empty() const { return queued() == 0; }
  /// For a second the hosts are read although the console takes nothing: their words about a time limit may be among
  /// what waits. `on_end` is called afterwards.
  void read_ahead(std::function<void()> on_end);
  /// From now on the console is waited for only as long as it takes some output each second.
  void bound_wait();

  struct Loss {
    std::uint64_t bytes = 0;
    std::string why;  ///< empty: nothing was lost
  };
  /// Drops queued output. What a reader that has closed does not get is not lost.
  [[nodiscard]] Loss close();

 private:
  enum class Patience { waits, reads_ahead, bounded };
  using Ranks = std::shared_ptr<logs::RankConsole>;
  void add_own(HostLines& host, Stream stream, logs::Piece piece);
  [[nodiscard]] Ranks console_on(const boost::asio::any_io_executor& executor, int fd, const LogSpec& log);
  [[nodiscard]] std::size_t queued() const { return out_->console().queued() + err_->console().queued(); }
  void watch_progress();

  std::function<void()> on_change_;
  Patience patience_ = Patience::waits;
  Alarm patience_alarm_;
  std::vector<std::unique_ptr<BackgroundWriter>> disks_;  ///< for streams that are files
  Ranks out_;
  Ranks err_;  ///< the same object if both streams are the same file
};

}  // namespace ddrun::remote
