#pragma once

#include <stdlib.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <variant>
#include <vector>

#include "ddrun/cli/parse.hpp"
#include "ddrun/test/catch.hpp"

namespace ddrun::cli::test {

using Words = std::vector<std::string>;

/// Variables are "NAME=value".
inline Parsed run(const Words& words, const Words& variables = {}, bool terminal = false) {
  std::vector<const char*> entries;
  for (const std::string& variable : variables) entries.push_back(variable.c_str());
  entries.push_back(nullptr);
  return parse(words, EnvironmentView(entries.data()), {"1.2.3", "abc1234", {{"Boost", "1.81"}}}, terminal);
}

/// For command lines that must be good.
inline Launch launched(const Words& words, const Words& variables = {}, bool terminal = false) {
  Parsed parsed = run(words, variables, terminal);
  if (const auto* text = std::get_if<PrintAndExit>(&parsed)) {
    INFO(text->text);
    REQUIRE(text->text.empty());
  }
  return std::get<Launch>(std::move(parsed));
}

/// The line of a command line that must be refused, without "ddrun: error: " and the newline.
inline std::string refused(const Words& words, const Words& variables = {}) {
  Parsed parsed = run(words, variables);
  REQUIRE(std::holds_alternative<PrintAndExit>(parsed));
  const auto& answer = std::get<PrintAndExit>(parsed);
  CHECK(answer.to_stderr);
  CHECK(answer.code == 2);
  const std::string start = "ddrun: error: ";
  REQUIRE(answer.text.substr(0, start.size()) == start);
  REQUIRE(answer.text.find('\n') == answer.text.size() - 1);
  return answer.text.substr(start.size(), answer.text.size() - start.size() - 1);
}

/// The text of an answer on stdout.
inline std::string answered(const Words& words, const Words& variables = {}) {
  Parsed parsed = run(words, variables);
  REQUIRE(std::holds_alternative<PrintAndExit>(parsed));
  const auto& answer = std::get<PrintAndExit>(parsed);
  INFO(answer.text);
  CHECK_FALSE(answer.to_stderr);
  CHECK(answer.code == 0);
  return answer.text;
}

inline bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

inline std::string read_file(const std::string& path) {
  std::ifstream in(path);
  INFO(path);
  REQUIRE(in.good());
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

/// A new directory that goes away with the test.
class TemporaryDirectory {
 public:
  TemporaryDirectory() {
    std::string name = (std::filesystem::temp_directory_path() / "ddrun-cli-XXXXXX").string();
    REQUIRE(::mkdtemp(name.data()) != nullptr);
    path_ = name;
  }
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;
  ~TemporaryDirectory() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }

  [[nodiscard]] const std::string& path() const { return path_; }
  /// Writes a file and returns its path.
  std::string file(const std::string& name, const std::string& text) const {
    const std::string path = path_ + "/" + name;
    std::ofstream(path, std::ios::binary) << text;
    return path;
  }

 private:
  std::string path_;
};

}  // namespace ddrun::cli::test
