#include "ddrun/base/messages.hpp"

#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <utility>

#include "ddrun/base/shared_output.hpp"
#include "ddrun/base/text.hpp"

namespace ddrun {

namespace {

MessageSettings settings_;
std::function<void(std::string_view)> sink_;  // used by its owner only

/// Its address identifies the thread.
thread_local char thread_tag;
/// &thread_tag of the sink's owner; null: no sink.
std::atomic<const char*> sink_owner{nullptr};
std::atomic<bool> in_partial_line{false};

bool write_to_stderr(std::string_view text) {
  if (in_partial_line.exchange(false)) write_shared(STDERR_FILENO, "\n");
  return write_shared(STDERR_FILENO, text);
}

/// The sink belongs to another thread and must not be used.
void report_wrong_thread(std::string_view text) {
  write_to_stderr(text);
#ifndef NDEBUG
  write_to_stderr("ddrun: error: the line above was said on a thread that may not (base/messages.hpp)\n");
  std::abort();
#endif
}

struct Style {
  const char* word;
  const char* color;
};

Style style_of(Level level) {
  switch (level) {
    case Level::error: return {"error: ", "\033[1;31m"};
    case Level::warning: return {"warning: ", "\033[1;33m"};
    case Level::notice: return {"", ""};
    case Level::info: return {"", ""};
    case Level::debug: return {"debug: ", "\033[2m"};
  }
  return {"", ""};
}

}  // namespace

std::string sanitize_for_terminal(std::string_view text) {
  std::string fit;
  fit.reserve(text.size());
  for (std::size_t at = 0; at < text.size(); ++at) {
    const auto c = static_cast<unsigned char>(text[at]);
    const auto next = static_cast<unsigned char>(at + 1 < text.size() ? text[at + 1] : '\0');
    const bool eight_bit = c == 0xC2 && next >= 0x80 && next < 0xA0;
    const std::size_t hidden = hidden_character(text, at);
    const bool control = eight_bit || hidden > 0 || (c < ' ' && c != '\n' && c != '\t') || c == 0x7F;
    fit += control ? '?' : text[at];
    if (c == '\n' && next != '\0' && next != ' ' && next != '\n') fit += "  ";
    if (eight_bit) ++at;
    if (hidden > 0) at += hidden - 1;
  }
  return fit;
}

void set_message_settings(MessageSettings settings) { settings_ = settings; }

void set_message_sink(std::function<void(std::string_view)> sink) {
  const char* const owner = sink_owner.load();
  if (owner != nullptr && owner != &thread_tag)
    return report_wrong_thread("ddrun: error: another thread owns the sink\n");
  sink_ = std::move(sink);
  sink_owner = sink_ ? &thread_tag : nullptr;
}

void say(Level level, std::string_view message) {
  if (level > settings_.shown) return;
  const Style style = style_of(level);
  std::string line = "ddrun: ";
  if (settings_.color && *style.color != '\0') line += std::string(style.color) + style.word + "\033[0m";
  else line += style.word;
  line += sanitize_for_terminal(message);
  line += '\n';
  say_text(line);
}

void begin_new_line() { in_partial_line = true; }

bool say_text(std::string_view text) {
  const char* const owner = sink_owner.load(std::memory_order_relaxed);
  if (owner == nullptr) return write_to_stderr(text);
  if (owner == &thread_tag) sink_(text);
  else report_wrong_thread(text);
  return true;
}

}  // namespace ddrun
