#include "worker_json.hpp"

#include <time.h>

#include <algorithm>
#include <array>
#include <cstdio>

#include "ddrun/base/exit_status.hpp"
#include "ddrun/base/text.hpp"
#include "evidence.hpp"

namespace ddrun::agent {

Json utc(std::chrono::system_clock::time_point time) {
  if (time == std::chrono::system_clock::time_point()) return nullptr;
  const auto ms = std::chrono::floor<std::chrono::milliseconds>(time).time_since_epoch().count();
  const auto whole = static_cast<time_t>(ms / 1000);
  struct tm parts {};
  ::gmtime_r(&whole, &parts);
  char text[64];
  const std::size_t length = ::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%S", &parts);
  std::snprintf(text + length, sizeof text - length, ".%03dZ", static_cast<int>(ms % 1000));
  return text;
}

Json text_or_null(const std::string& text) { return text.empty() ? Json(nullptr) : Json(text); }

Json signal_json(int signal) { return {{"number", signal}, {"name", signal_name(signal)}}; }

Json worker_json(const WorkerEnd& worker) {
  Json json;
  json["role"] = text_or_null(worker.role);
  json["rank"] = worker.rank;
  json["local_rank"] = worker.local_rank;
  json["pid"] = worker.pid;
  const auto* exited = std::get_if<Exited>(&worker.status);
  const auto* signaled = std::get_if<Signaled>(&worker.status);
  const bool started = worker.pid != 0;
  const bool ended = started && !worker.still_runs;
  json["exit_code"] = ended && exited != nullptr ? Json(exited->code) : Json(nullptr);
  json["signal"] = ended && signaled != nullptr ? signal_json(signaled->signal) : Json(nullptr);
  json["core_dumped"] = signaled != nullptr && signaled->core_dumped;
  json["ended_how"] = ended ? describe(worker.status) : started ? "still runs: cannot be ended" : "not started";
  json["success"] = worker.success;
  json["stopped_by_ddrun"] = worker.stopped_by_ddrun && !worker.still_runs;
  json["why"] = text_or_null(worker.why);
  json["shm"] = text_or_null(worker.shm);
  json["python"] = text_or_null(worker.python);
  json["started"] = utc(worker.started);
  json["ended"] = worker.still_runs ? Json(nullptr) : utc(worker.ended);
  json["ran_s"] = seconds(worker.ran);
  json["max_rss_kib"] = worker.use.max_rss_kib;
  json["user_time_s"] = seconds(worker.use.user_time);
  json["system_time_s"] = seconds(worker.use.system_time);
  if (worker.declared) {
    json["declared"] = {
        {"code", worker.declared->code}, {"what", worker.declared->what}, {"time", utc(worker.declared->at)}};
  }
  if (worker.error) {
    json["error"] = {{"message", worker.error->message},
                     {"traceback", text_or_null(worker.error->traceback)},
                     {"file", text_or_null(worker.error->file_stays ? worker.error->file : "")},
                     {"time", utc(worker.error->at)}};
  } else {
    json["error"] = nullptr;
  }
  if (worker.last_words) {
    json["last_words"] = {{"reason", join(worker.last_words->reason, "\n")},
                          {"text", worker.last_words->text},
                          {"time", utc(worker.last_words->at)},
                          {"of_a_victim", worker.last_words->blames_peer}};
  } else {
    json["last_words"] = nullptr;
  }
  json["stderr_tail"] = worker.stderr_tail;
  json["stdout_log"] = text_or_null(worker.stdout_log);
  json["stderr_log"] = text_or_null(worker.stderr_log);
  return json;
}

std::string json_for_terminal(std::string json) {
  const auto byte = [&](std::size_t at) { return static_cast<unsigned char>(json[at]); };
  /// Of a control character with several bytes; else 0.
  const auto size_of = [&](std::size_t at) -> std::size_t {
    const bool c1 = byte(at) == 0xC2 && at + 1 < json.size() && byte(at + 1) >= 0x80 && byte(at + 1) < 0xA0;
    return c1 ? 2 : hidden_character(json, at);
  };
  const auto is_control = [&](std::size_t at) {
    return (byte(at) < ' ' && json[at] != '\n') || byte(at) == 0x7F || size_of(at) > 0;
  };
  std::size_t at = 0;
  while (at < json.size() && !is_control(at)) ++at;
  if (at == json.size()) return json;
  std::string fit = json.substr(0, at);
  for (; at < json.size(); ++at) {
    if (!is_control(at)) {
      fit += json[at];
    } else if (byte(at) < ' ') {
      fit += ' ';
    } else {
      const std::size_t size = size_of(at);
      unsigned code = size == 0 ? byte(at) : byte(at) & (0xFFU >> (size + 1));
      for (std::size_t i = 1; i < size; ++i) code = code << 6U | (byte(++at) & 63U);
      std::array<char, 16> escape{};
      if (size == 4)
        std::snprintf(escape.data(), escape.size(), "\\u%04x\\u%04x", 0xD7C0 + (code >> 10U), 0xDC00 + (code & 0x3FFU));
      else std::snprintf(escape.data(), escape.size(), "\\u%04x", code);
      fit += escape.data();
    }
  }
  return fit;
}

std::string one_line(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace); }

std::string text_at(const Json& json, const char* key) {
  const auto found = json.find(key);
  return found != json.end() && found->is_string() ? found->get<std::string>() : std::string();
}

namespace {

std::vector<std::string> texts_of(const Json& json, const char* key) {
  std::vector<std::string> texts;
  const auto found = json.find(key);
  if (found == json.end() || !found->is_array()) return texts;
  for (const auto& text : *found) {
    if (text.is_string()) texts.push_back(text.get<std::string>());
  }
  return texts;
}

template <class Number>
Number number_of(const Json& json, const char* key, Number otherwise) {
  const auto found = json.find(key);
  return found != json.end() && found->is_number() ? found->get<Number>() : otherwise;
}

std::optional<WorkerEnd> read_worker(const Json& json) {
  if (!json.is_object()) return std::nullopt;
  WorkerEnd worker;
  worker.rank = number_of(json, "rank", -1);
  worker.local_rank = number_of(json, "local_rank", -1);
  worker.pid = number_of(json, "pid", 0);
  if (worker.rank < 0 || worker.local_rank < 0) return std::nullopt;
  const auto signal = json.find("signal");
  if (signal != json.end() && signal->is_object()) {
    const auto core = json.find("core_dumped");
    worker.status = Signaled{number_of(*signal, "number", 0), core != json.end() && *core == true};
  } else {
    worker.status = Exited{number_of(json, "exit_code", 1)};
  }
  worker.why = text_at(json, "why");
  worker.shm = text_at(json, "shm");
  worker.python = text_at(json, "python");
  worker.ran =
      std::chrono::nanoseconds(static_cast<long long>(std::clamp(number_of(json, "ran_s", 0.0), 0.0, 9e9) * 1e9));
  worker.use.max_rss_kib = number_of(json, "max_rss_kib", 0L);
  if (const auto declared = json.find("declared"); declared != json.end() && declared->is_object()) {
    worker.declared = DeclaredFailure{number_of(*declared, "code", 1), text_at(*declared, "what"), {}};
  }
  const auto error = json.find("error");
  if (error != json.end() && error->is_object()) {
    worker.error = WorkerError{text_at(*error, "message"), text_at(*error, "traceback"), text_at(*error, "file"), {}};
  }
  const auto words = json.find("last_words");
  if (words != json.end() && words->is_object()) {
    worker.last_words.emplace();
    worker.last_words->reason = split(text_at(*words, "reason"), '\n');
    worker.last_words->text = texts_of(*words, "text");
  }
  worker.stderr_tail = texts_of(json, "stderr_tail");
  worker.stdout_log = text_at(json, "stdout_log");
  worker.stderr_log = text_at(json, "stderr_log");
  return worker;
}

}  // namespace

std::optional<WorkerEnd> worker_from_json(const std::string& text) {
  return read_worker(Json::parse(text, nullptr, false));
}

Json preload_json(const PreloadResult& preload) {
  return {{"modules", preload.modules},
          {"import_s", seconds(preload.took)},
          {"memory_kib", preload.memory_kib},
          {"imports", preload.imports}};
}

rendezvous::Failure evidence_for_coordinator(const Evidence& evidence, const WorkerEnd& of) {
  rendezvous::Failure failure;
  failure.own = evidence.own;
  failure.stopped = of.stopped_by_ddrun;
  failure.explained = is_explained(of);
  failure.time_us = std::chrono::duration_cast<std::chrono::microseconds>(evidence.at.time_since_epoch()).count();
  if (evidence.own && evidence.kind != EvidenceKind::end) failure.key = cause_key(of);
  return failure;
}

void add_failed_before(Json& worker, const WorkerEnd& failed_first, const Evidence& evidence) {
  Json before = worker_json(failed_first);
  before["failed_after_s"] = seconds(evidence.at - failed_first.started);
  before["held_up"] = evidence.kind == EvidenceKind::stack;
  worker["failed_first"] = std::move(before);
}

std::optional<FailedBefore> read_failed_first(const rendezvous::VerdictMessage& verdict) {
  const auto& other = verdict.failed_first;
  const Json json = Json::parse(other.failure.empty() ? verdict.cause : other.failure, nullptr, false);
  // The other node's own report may name a worker that failed before the one that ended first.
  const bool names_another = json.is_object() && json.contains("failed_first") && json["failed_first"].is_object();
  if (other.failure.empty() && !names_another) return std::nullopt;
  const Json& before = names_another ? json["failed_first"] : json;
  auto worker = read_worker(before);
  if (!worker) return std::nullopt;
  worker->stopped_by_ddrun = true;  // it did not end by itself
  const std::chrono::duration<double> after(number_of(before, "failed_after_s", 0.0));
  Evidence evidence;
  if (const auto held_up = before.find("held_up"); held_up != before.end() && *held_up == true)
    evidence.kind = EvidenceKind::stack;
  evidence.at = worker->started + std::chrono::duration_cast<std::chrono::system_clock::duration>(after);
  return FailedBefore{std::move(*worker), evidence, other.host, other.node_rank};
}

}  // namespace ddrun::agent
