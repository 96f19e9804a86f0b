#include "shared_screen.hpp"

#include <algorithm>
#include <cstdlib>

#include "ddrun/base/text.hpp"

namespace ddrun::logs {

namespace {

constexpr char escape = '\033';

/// A control sequence, "\033[" parameters, final byte.
struct ControlSequence {
  std::string_view whole;
  std::string_view parameters;
  char final = '\0';
  [[nodiscard]] int number(int otherwise) const {
    const int given = std::atoi(std::string(parameters.substr(0, 9)).c_str());
    return given > 0 ? given : otherwise;
  }
};

/// What a terminal does otherwise than its text shows: it answers to ENQ, moves down at VT and FF, changes the
/// character set at SO and SI, and takes U+0080 to U+009F for escape sequences.
constexpr std::string_view special = "\x05\v\f\x0e\x0f\xc2";

/// Without these, or with the escape sequences instead.
std::string without_special(std::string_view text) {
  std::string plain;
  for (std::size_t at = 0; at < text.size(); ++at) {
    const bool is_pair =
        text[at] == '\xc2' && at + 1 < text.size() && static_cast<unsigned char>(text[at + 1]) >> 5U == 4;
    if (is_pair) plain += {escape, static_cast<char>(text[++at] - 0x40)};
    else if (text[at] == '\xc2' || special.find(text[at]) == std::string_view::npos) plain += text[at];
  }
  return plain;
}

class Filter {
 public:
  Filter(std::string& out, std::string_view prefix, ScreenState& state, bool in_row = false)
      : out_(out), prefix_(prefix), state_(state), in_row_(in_row) {}
  [[nodiscard]] bool moved() const { return moved_; }

  void add(std::string_view text) {
    std::string plain;
    if (text.find_first_of(special) != std::string_view::npos) text = plain = without_special(text);
    while (!text.empty()) {
      const std::size_t size = std::min(text.find(escape), text.size());
      add_plain(text.substr(0, size));
      text.remove_prefix(size);
      if (!text.empty()) text.remove_prefix(parse_escape(text));
    }
  }

 private:
  void add_plain(std::string_view text) {
    out_ += text;
    const auto newlines = static_cast<int>(std::count(text.begin(), text.end(), '\n'));
    state_.above += newlines;
    state_.below = std::max(0, state_.below - newlines);
  }

  /// Size of the escape sequence at the start of `text`; all of it if the sequence is cut off.
  std::size_t parse_escape(std::string_view text) {
    if (text.size() < 2) return text.size();
    switch (text[1]) {
      case '[': return parse_control(text);
      case ']':
      case 'P':
      case 'X':
      case '^':
      case 'k':  // the title of screen and tmux
      case '_': return parse_string(text);
      case '(': {
        if (text.substr(0, 3) == "\033(B") out_ += "\033(B";  // part of what `tput sgr0` gives
        return std::min<std::size_t>(3, text.size());
      }
      default: return 2;
    }
  }

  std::size_t parse_string(std::string_view text) {
    const std::size_t bell = text.find('\a');
    const std::size_t terminator = text.find("\033\\", 2);
    if (bell == std::string_view::npos && terminator == std::string_view::npos) return text.size();
    const std::size_t size = bell < terminator ? bell + 1 : terminator + 2;
    if (text.substr(0, 4) == "\033]8;") out_ += text.substr(0, size);  // a link
    return size;
  }

  std::size_t parse_control(std::string_view text) {
    std::size_t at = 2;
    while (at < text.size() && text[at] >= 0x20 && text[at] < 0x40) ++at;
    if (at == text.size()) return at;
    filter_control({text.substr(0, at + 1), text.substr(2, at - 2), text[at]});
    return at + 1;
  }

  void filter_control(const ControlSequence& control) {
    moved_ = moved_ || std::string_view("mKhlnc").find(control.final) == std::string_view::npos;
    if (in_row_ && control.final != 'm') return;
    switch (control.final) {
      case 'm':
        state_.styled = !(control.parameters.empty() || control.parameters == "0");
        out_ += control.whole;
        break;
      case 'C':
      case 'D':
      case 'P':
      case 'X':
      case '@': out_ += control.whole; break;
      case 'K':
        if (control.number(0) == 0) out_ += control.whole;
        else if (control.number(0) == 2) to_line_start(), out_ += "\033[K";
        break;
      case 'J':
        if (control.number(0) == 0) out_ += control.whole;
        break;
      case 'G':
        to_line_start();
        if (const int column = control.number(1); column > 1) out_ += concat("\033[", column - 1, 'C');
        break;
      case 'A':
      case 'F':
        move(std::min(control.number(1), state_.above), -1);
        if (control.final == 'F') to_line_start();
        break;
      case 'B':
      case 'E':
        move(std::min(control.number(1), state_.below), 1);
        if (control.final == 'E') to_line_start();
        break;
      case 'h':
      case 'l':
        if (control.parameters == "?25") state_.hidden = control.final == 'l';
        else if (control.parameters != "?2004" && control.parameters != "?2026") break;
        out_ += control.whole;
        break;
      default: break;
    }
  }

  void to_line_start() {
    out_ += '\r';
    out_ += prefix_;
  }

  void move(int lines, int down) {
    if (lines == 0) return;
    out_ += concat("\033[", lines, down > 0 ? 'B' : 'A');
    state_.above += down * lines;
    state_.below -= down * lines;
  }

  std::string& out_;
  std::string_view prefix_;
  ScreenState& state_;
  bool in_row_;
  bool moved_ = false;
};

}  // namespace

bool moves_cursor(std::string_view text) {
  if (text.find_first_of("\033\xc2") == std::string_view::npos) return false;
  std::string ignored;
  ScreenState state;
  Filter filter(ignored, {}, state);
  filter.add(text);
  return filter.moved();
}

std::string without_erasing(std::string_view text) {
  std::string out;
  ScreenState state;
  Filter(out, {}, state, true).add(text);
  return out;
}

void append_filtered(std::string& out, std::string_view text, std::string_view prefix, ScreenState& state) {
  Filter(out, prefix, state).add(text);
}

}  // namespace ddrun::logs
