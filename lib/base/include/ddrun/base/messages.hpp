#pragma once

#include <bit>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

namespace ddrun {

/// ddrun's own messages to its user: one line each on stderr, "ddrun: error: …". Never mixed into a worker's line.
enum class Level { error, warning, notice, info, debug };

/// How much is shown and whether it is coloured. Set once by main, before any thread starts.
struct MessageSettings {
  Level shown = Level::notice;  ///< -q: warning, -v: info, -v -v: debug
  bool color = false;
};
void set_message_settings(MessageSettings settings);

/// Where finished lines (with their '\n') go. By default they are written to stderr at once, which may block
/// on a slow terminal; while workers run, the agent puts the console's queue here so that it never waits.
/// An empty function restores the default.
///
/// The thread that sets a sink owns it: until that thread takes it away, no other one may say anything. A thread of its
/// own, such as a store's, hands its words to the owner (asio::post). Where one speaks all the same, a build with
/// assertions aborts; any other writes the line straight to stderr, where it may stand amid another line.
void set_message_sink(std::function<void(std::string_view line)> sink);

/// `text` with '?' for each control character but tabs and line ends, behind which it is indented: a name that comes
/// from another machine is not to move the cursor or to pass for a message. Whatever is said goes through it.
[[nodiscard]] std::string sanitize_for_terminal(std::string_view text);

void say(Level level, std::string_view message);
inline void say_error(std::string_view message) { say(Level::error, message); }

/// stderr stands in the middle of a line that will not be finished: what is said next starts on a line of its own.
void begin_new_line();

/// Text that is already formatted (a report) and fit for a terminal: written as it is, to the same place. False if
/// stderr did not take it.
bool say_text(std::string_view text);

/// Strangers that try the same again and again are not to fill the user's screen: so many are told, then fewer and
/// fewer.
inline constexpr std::uint64_t log_limit = 10;
[[nodiscard]] constexpr bool should_log(std::uint64_t number) {
  return number <= log_limit || std::has_single_bit(number);
}

}  // namespace ddrun
