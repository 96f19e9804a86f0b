#include "evidence.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <vector>

#include "atomic_file.hpp"
#include "ddrun/base/text.hpp"
#include "ddrun/base/unique_fd.hpp"

namespace ddrun::agent {

namespace {

using nlohmann::json;
using Time = std::chrono::system_clock::time_point;

constexpr std::size_t max_file_bytes = std::size_t{4} << 20U;
/// Later times do not fit into a time_point.
constexpr double max_seconds = 9e9;
/// Limit for a message and for a traceback; each worker of each attempt may have both.
constexpr std::size_t max_text_bytes = std::size_t{64} << 10U;

std::optional<std::string> read_regular_file(const std::string& path, timespec* written = nullptr) {
  // Opening a device may have an effect. O_NONBLOCK: a worker may replace the file by a FIFO meanwhile.
  struct stat there {};
  if (::stat(path.c_str(), &there) != 0 || !S_ISREG(there.st_mode)) return std::nullopt;
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  struct stat info {};
  if (!fd || ::fstat(fd.get(), &info) != 0 || !S_ISREG(info.st_mode)) return std::nullopt;
  if (written != nullptr) *written = info.st_mtim;
  std::string text(std::min(static_cast<std::size_t>(info.st_size), max_file_bytes), '\0');
  std::size_t have = 0;
  while (have < text.size()) {
    const ssize_t size = ::read(fd.get(), text.data() + have, text.size() - have);
    if (size <= 0) break;
    have += static_cast<std::size_t>(size);
  }
  text.resize(have);
  return text;
}

/// Collects the strings while parsing, so that text before a break in a truncated file is kept.
class MessagePicker : public nlohmann::json_sax<json> {
 public:
  WorkerError found;
  std::int64_t seconds = 0;  ///< "timestamp"; 0: none
  std::size_t broke_at = 0;  ///< bytes up to and including the first invalid one; 0: valid JSON

  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(number_integer_t) override { return true; }
  bool number_unsigned(number_unsigned_t value) override { return number(static_cast<double>(value)); }
  bool number_float(number_float_t value, const string_t&) override { return number(value); }
  bool binary(binary_t&) override { return true; }
  bool string(string_t& value) override {
    const std::string path = join(keys_, ".");
    if (path == "message" || path == "message.message") found.message = std::move(value);
    else if (path == "message.extraInfo.py_callstack") found.traceback = std::move(value);
    else if (is_time(path)) return number(std::strtod(value.c_str(), nullptr));
    return true;
  }
  bool start_object(std::size_t) override { return enter(); }
  bool start_array(std::size_t) override { return enter(); }
  bool end_object() override { return leave(); }
  bool end_array() override { return leave(); }
  bool key(string_t& name) override {
    keys_.back() = std::move(name);
    return true;
  }
  bool parse_error(std::size_t at, const std::string&, const json::exception&) override {
    broke_at = at;
    return false;
  }

 private:
  static bool is_time(const std::string& path) { return path == "timestamp" || path == "message.extraInfo.timestamp"; }
  bool number(double value) {
    if (value >= 1 && value < max_seconds && is_time(join(keys_, "."))) seconds = static_cast<std::int64_t>(value);
    return true;
  }
  bool enter() {
    keys_.emplace_back();
    return keys_.size() <= 64;  // bounds memory; PyTorch nests three levels
  }
  bool leave() {
    keys_.pop_back();
    return true;
  }

  std::vector<std::string> keys_;
};

/// The time in the file has whole seconds. If the file was written in that second or soon after, its own time is more
/// exact; else the end of the second, so that rounding does not make this worker the first.
Time time_of(std::int64_t seconds, const timespec& written) {
  // utimensat() accepts any time.
  const std::chrono::seconds file_seconds(std::clamp<time_t>(written.tv_sec, 0, static_cast<time_t>(max_seconds)));
  const Time file(std::chrono::duration_cast<Time::duration>(file_seconds + std::chrono::nanoseconds(written.tv_nsec)));
  const Time inside{std::chrono::seconds(seconds)};
  if (seconds == 0 || (file >= inside && file - inside < std::chrono::seconds(2))) return file;
  return inside + std::chrono::milliseconds(999);
}

/// Without half surrogate pairs, which nlohmann's parser refuses: one that Python's os.fsdecode() made of a byte is
/// that byte again, others become U+FFFD.
std::string without_half_pairs(std::string_view text) {
  /// Of the escape at `at`; 0: there is none.
  const auto code = [&](std::size_t at) {
    unsigned value = 0;
    if (at + 6 > text.size() || text.substr(at, 2) != "\\u") return value;
    const char* const end = text.data() + at + 6;
    return std::from_chars(text.data() + at + 2, end, value, 16).ptr == end ? value : 0;
  };
  std::string whole;
  for (std::size_t at = 0, size; at < text.size(); at += size) {
    const unsigned first = code(at);
    const bool pair = first >> 10U == 0x36 && code(at + 6) >> 10U == 0x37;
    size = pair ? 12 : first >> 11U == 0x1B ? 6 : text[at] == '\\' ? 2 : 1;
    if (size != 6) whole += text.substr(at, size);
    else if (first >= 0xDC80 && first <= 0xDCFF) whole += static_cast<char>(first & 0xFFU);
    else whole += replacement_character;
  }
  return whole;
}

/// Completes a text that ends inside a string, maybe with half an escape: "\u12".
std::string completed(std::string text) {
  if (const std::size_t escape = text.rfind('\\'); escape != std::string::npos && text.size() - escape < 6)
    text.resize(escape);
  while (text.ends_with('\\')) text.pop_back();
  return text + '"';
}

std::string last_line(std::string_view text) {
  text = trim(text);
  const std::size_t end = text.rfind('\n');
  return std::string(end == std::string_view::npos ? text : text.substr(end + 1));
}

}  // namespace

std::string readable_json(std::string_view text) {
  const std::string whole = without_half_pairs(text);
  std::string readable;
  for (std::size_t at = 0; at < whole.size();) {
    const std::size_t size = utf8_size(whole, at);
    if (size == 0) readable += replacement_character;
    else if (static_cast<unsigned char>(whole[at]) < ' ') readable += ' ';
    else readable.append(whole, at, size);
    at += std::max<std::size_t>(size, 1);
  }
  return readable;
}

std::optional<WorkerError> read_error_file(const std::string& path) {
  timespec written{};
  const auto content = read_regular_file(path, &written);
  if (!content) return std::nullopt;
  std::string text = readable_json(*content);
  if (trim(text).empty()) return std::nullopt;  // of a large file of NULs the parser would take long
  MessagePicker picker;
  const auto parse = [&] {
    picker = {};
    return json::sax_parse(text, &picker) || (!picker.found.message.empty() && !picker.found.traceback.empty());
  };
  if (!parse()) {
    text = completed(std::move(text));
    if (!parse() && picker.broke_at > 0) {
      text = completed(text.substr(0, picker.broke_at - 1));
      (void)parse();
    }
  }
  WorkerError error = std::move(picker.found);
  if (trim(error.message).empty()) error.message = last_line(error.traceback);
  if (error.message.empty()) return std::nullopt;
  for (std::string* part : {&error.message, &error.traceback}) *part = cut_line(std::move(*part), max_text_bytes);
  error.file = path;
  error.at = time_of(picker.seconds, written);
  return error;
}

Result<void> forward_error_file(const std::string& from, const ExitStatus& status, const std::string& to) {
  const auto text = read_regular_file(from);
  if (!text) return fail(Errc::protocol, concat("cannot read ", from));
  json content = json::parse(readable_json(*text), nullptr, false);
  if (content.is_discarded() || !content.is_object())
    return fail(Errc::protocol, concat(from, " is not complete JSON"));
  if (const auto message = content.find("message"); message != content.end() && message->is_object()) {
    const auto* signaled = std::get_if<Signaled>(&status);
    (*message)["errorCode"] = signaled != nullptr ? -signaled->signal : std::get<Exited>(status).code;
  }
  return write_file_atomically(to, content.dump(-1, ' ', false, json::error_handler_t::replace));
}

}  // namespace ddrun::agent
