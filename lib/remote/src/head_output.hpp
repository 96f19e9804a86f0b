#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "ddrun/logs/console.hpp"
#include "ddrun/logs/line_assembler.hpp"

namespace ddrun::remote {

/// Our standard output and error, where the lines of all hosts and our own messages end. Never makes its caller wait.
/// Lives as long as the event loop.
class HeadOutput {
 public:
  /// The two streams of one host, as far as their last lines are not complete.
  struct HostLines {
    std::string own_prefix;  ///< stands instead of the "ddrun: " of its ddrun's own lines; empty: they stay
    logs::LineAssembler out, err;
  };
  enum class Stream { out, err };

  /// `on_room` is called when some of what was queued has been written.
  HeadOutput(const boost::asio::any_io_executor& executor, const std::function<void()>& on_room);
  ~HeadOutput();
  HeadOutput(const HeadOutput&) = delete;
  HeadOutput& operator=(const HeadOutput&) = delete;

  /// Puts our own messages here too, until close().
  void take_messages();
  void show(HostLines& host, Stream stream, std::string_view bytes);
  /// Also the last line, if it has no newline.
  void finish(HostLines& host);
  void flush();
  [[nodiscard]] std::size_t queued() const { return out_->queued() + err_->queued(); }
  /// More should not come until some of it is written.
  [[nodiscard]] bool crowded() const { return out_->crowded() || err_->crowded(); }
  /// Drops what is still queued. Says what was lost, unless it was because nobody wanted to read on.
  [[nodiscard]] std::optional<std::string> close();

 private:
  void add(HostLines& host, Stream stream, logs::Piece piece);

  std::shared_ptr<logs::Console> out_;
  std::shared_ptr<logs::Console> err_;  ///< the same one, if both streams lead to the same place
};

}  // namespace ddrun::remote
