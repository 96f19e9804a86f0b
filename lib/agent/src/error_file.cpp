#include "evidence.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
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

/// Completes a text that ends inside a string, and replaces bytes that JSON forbids.
std::string repaired(std::string_view text) {
  // nlohmann's serializer replaces invalid UTF-8.
  std::string repaired =
      json::parse(json(text).dump(-1, ' ', false, json::error_handler_t::replace)).get<std::string>();
  for (char& c : repaired) {
    if (static_cast<unsigned char>(c) < ' ') c = ' ';
  }
  // It may end with half an escape: "\u12".
  if (const std::size_t escape = repaired.rfind('\\'); escape != std::string::npos && repaired.size() - escape < 6)
    repaired.resize(escape);
  while (repaired.ends_with('\\')) repaired.pop_back();
  return repaired + '"';
}

std::string last_line(std::string_view text) {
  text = trim(text);
  const std::size_t end = text.rfind('\n');
  return std::string(end == std::string_view::npos ? text : text.substr(end + 1));
}

}  // namespace

std::optional<WorkerError> read_error_file(const std::string& path) {
  timespec written{};
  auto text = read_regular_file(path, &written);
  if (!text) return std::nullopt;
  MessagePicker picker;
  const auto parse = [&] {
    picker = {};
    return json::sax_parse(*text, &picker) || !picker.found.message.empty() || !picker.found.traceback.empty();
  };
  if (!parse()) {
    *text = repaired(*text);
    if (!parse() && picker.broke_at > 0) {
      *text = repaired(std::string_view(*text).substr(0, picker.broke_at - 1));
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
  json content = json::parse(*text, nullptr, false);
  if (content.is_discarded() || !content.is_object())
    return fail(Errc::protocol, concat(from, " is not complete JSON"));
  if (const auto message = content.find("message"); message != content.end() && message->is_object()) {
    const auto* signaled = std::get_if<Signaled>(&status);
    (*message)["errorCode"] = signaled != nullptr ? -signaled->signal : std::get<Exited>(status).code;
  }
  return write_file_atomically(to, content.dump(-1, ' ', false, json::error_handler_t::replace));
}

}  // namespace ddrun::agent
