#include <algorithm>
#include <cstdio>

#include "ddrun/agent/ci.hpp"
#include "ddrun/base/text.hpp"
#include "report_fields.hpp"

// The format of Apache Ant's JUnit task, as far as GitLab, Jenkins and others read it.

namespace ddrun::agent {

namespace {

/// Escapes UTF-8 for XML 1.0 text and attributes; forbidden characters become U+FFFD.
std::string xml(std::string_view text) {
  std::string result;
  for (std::size_t at = 0; at < text.size(); ++at) {
    const char c = text[at];
    if (c == '&') result += "&amp;";
    else if (c == '<') result += "&lt;";
    else if (c == '>') result += "&gt;";
    else if (c == '"') result += "&quot;";
    else if (c == '\n' || c == '\r' || c == '\t') result += concat("&#", static_cast<int>(c), ";");
    else if (static_cast<unsigned char>(c) < ' ') result += replacement_character;
    else if (text.substr(at, 3) == "\xEF\xBF\xBE" || text.substr(at, 3) == "\xEF\xBF\xBF")
      at += 2, result += replacement_character;
    else if (const std::size_t hidden = hidden_character(text, at); hidden > 0)
      at += hidden - 1, result += replacement_character;
    else result += c;
  }
  return result;
}

std::string attribute(const char* name, std::string_view value) { return concat(" ", name, "=\"", xml(value), "\""); }

std::string time_of(const Json& json) {
  char text[48];
  std::snprintf(text, sizeof text, "%.3f", json.value("ran_s", 0.0));
  return attribute("time", text);
}

std::string lines_of(const Json& lines) {
  std::string text;
  if (!lines.is_array()) return text;
  for (const Json& line : lines) {
    if (line.is_string()) text += plain_line(line.get<std::string>()) + "\n";
  }
  return text;
}

/// Traceback or message, and the kernel's reason.
std::string failure_text(const Json& worker) {
  std::string text =
      concat(describe_end(worker), " (pid ", worker.value("pid", 0), " on ", text_at(worker, "host"), ")\n");
  if (worker["last_words"].is_object()) text += lines_of(worker["last_words"]["text"]);
  if (worker["error"].is_object()) {
    text += concat(text_at(worker["error"], "message"), "\n", text_at(worker["error"], "traceback"), "\n");
  }
  return text + text_at(worker, "why");
}

bool failed_itself(const Json& worker, const Json* cause) {
  if (worker.value("success", false)) return false;
  return !worker.value("stopped_by_ddrun", false) || (cause != nullptr && rank_name(*cause) == rank_name(worker));
}

}  // namespace

std::string junit_report(const std::string& json) {
  const Json report = Json::parse(json, nullptr, false);
  if (!report.is_object()) return {};
  const std::string program = plain_line(text_at(report, "program"));
  const bool failed = report.value("exit_code", 0) != 0;
  const Json* const cause = failed ? cause_of(report) : nullptr;
  const std::string head = concat("  <testcase", attribute("classname", program));
  const Json& attempts = report["attempts"];
  int tests = 0;
  int failures = 0;
  int skipped = 0;
  std::string cases;
  for (const Json& worker : attempts.empty() ? Json::array() : attempts.back()["workers"]) {
    ++tests;
    cases += concat(head, attribute("name", rank_name(worker).text()), time_of(worker), ">\n");
    if (failed_itself(worker, cause)) {
      ++failures;
      std::string reason = reason_of(worker);
      if (reason.empty()) reason = describe_end(worker);
      cases += concat("    <failure", attribute("message", reason), attribute("type", text_at(worker, "ended_how")),
                      ">", xml(failure_text(worker)), "</failure>\n");
    } else if (!worker.value("success", false)) {
      ++skipped;
      cases += "    <skipped message=\"stopped by ddrun\"/>\n";
    }
    const std::string tail = lines_of(worker["stderr_tail"]);
    if (!tail.empty()) cases += concat("    <system-err>", xml(tail), "</system-err>\n");
    cases += "  </testcase>\n";
  }
  const bool job_failed = failed && failures == 0;
  if (job_failed) {
    ++tests;
    const std::string outcome = outcome_of(report);
    cases += concat(head, attribute("name", "job"), time_of(report), ">\n    <error", attribute("message", outcome),
                    attribute("type", text_at(report, "verdict")), ">", xml(outcome), "</error>\n  </testcase>\n");
  }
  std::string properties;
  const auto property = [&](std::string_view name, std::string_view value) {
    properties += concat("    <property", attribute("name", name), attribute("value", value), "/>\n");
  };
  property("verdict", text_at(report, "verdict"));
  property("exit_code", std::to_string(report.value("exit_code", 0)));
  property("run_id", text_at(report, "run_id"));
  for (std::size_t i = 0; i + 1 < attempts.size(); ++i) {
    const Json* const worker = failed_worker(attempts[i]);
    const std::string reason = worker != nullptr ? reason_of(*worker) : "";
    property(concat("attempt ", attempts[i].value("attempt", 0)),
             worker == nullptr ? "stopped" : describe_end(*worker) + (reason.empty() ? "" : ": " + reason));
  }
  std::string started = text_at(report, "started");
  started.resize(std::min<std::size_t>(started.size(), 19));
  const std::string counts =
      concat(attribute("name", program), attribute("tests", std::to_string(tests)),
             attribute("failures", std::to_string(failures)), attribute("errors", job_failed ? "1" : "0"),
             attribute("skipped", std::to_string(skipped)), time_of(report));
  return concat("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites", counts, ">\n <testsuite", counts,
                started.empty() ? "" : attribute("timestamp", started), attribute("hostname", text_at(report, "host")),
                ">\n  <properties>\n", properties, "  </properties>\n", cases, " </testsuite>\n</testsuites>\n");
}

}  // namespace ddrun::agent
