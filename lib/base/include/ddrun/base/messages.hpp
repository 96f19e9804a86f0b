#pragma once

#include <bit>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

namespace ddrun {

/// ddrun's own log: one line per message on stderr, "ddrun: error: …". Never mixed into a worker's line.
enum class Level { error, warning, notice, info, debug };

/// Threshold and colour. Set once by main, before any thread starts.
struct MessageSettings {
  Level shown = Level::notice;  ///< -q: warning, -v: info, -v -v: debug
  bool color = false;
};
void set_message_settings(MessageSettings settings);

/// The sink for complete lines, with '\n'. The default writes to stderr, which waits for a slow terminal
/// (shared_output.hpp); while workers run, the agent sets the console's queue as the sink. An empty function restores
/// the default.
///
/// The thread that sets a sink owns it: until it removes the sink, no other thread may call say() or say_text(). Other
/// threads, such as a store's, post their messages to the owner (asio::post). A violation aborts a build with
/// assertions; otherwise the line is written to stderr directly, where it may interleave.
void set_message_sink(std::function<void(std::string_view line)> sink);

/// `text` with '?' for control characters other than tab and newline, continuation lines indented: text from another
/// machine must not move the cursor or imitate a message. Applied by say().
[[nodiscard]] std::string sanitize_for_terminal(std::string_view text);

void say(Level level, std::string_view message);
inline void say_error(std::string_view message) { say(Level::error, message); }

/// stderr ends in an unfinished line: the next message begins with a newline.
void begin_new_line();

/// Writes preformatted text (a report) to the same sink, unchanged. False if writing to stderr failed.
bool say_text(std::string_view text);

/// Rate limit for repeated messages caused by remote clients: the first `log_limit` are shown, then each power of two.
inline constexpr std::uint64_t log_limit = 10;
[[nodiscard]] constexpr bool should_log(std::uint64_t number) {
  return number <= log_limit || std::has_single_bit(number);
}

}  // namespace ddrun
