#include "ddrun/base/messages.hpp"

#include <unistd.h>

#include <string>
#include <utility>

#include "ddrun/base/unique_fd.hpp"

namespace ddrun {

namespace {

MessageSettings settings_;
std::function<void(std::string_view)> sink_;

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

void set_message_settings(MessageSettings settings) { settings_ = settings; }
void set_message_sink(std::function<void(std::string_view)> sink) { sink_ = std::move(sink); }

void say(Level level, std::string_view message) {
  if (level > settings_.shown) return;
  const Style style = style_of(level);
  std::string line = "ddrun: ";
  if (settings_.color && *style.color != '\0') line += std::string(style.color) + style.word + "\033[0m";
  else line += style.word;
  line += message;
  line += '\n';
  say_text(line);
}

void say_text(std::string_view text) {
  if (sink_) sink_(text);
  else write_all(STDERR_FILENO, text.data(), text.size());
}

}  // namespace ddrun
