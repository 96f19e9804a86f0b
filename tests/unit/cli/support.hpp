#pragma once

#include <stdlib.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <variant>
#include <vector>

#include "commands.hpp"
#include "ddrun/test/catch.hpp"
#include "ddrun/test/files.hpp"

namespace ddrun::cli::test {

using Args = std::vector<std::string>;

/// Variables are "NAME=value".
inline Parsed run(const Args& args, const Args& variables = {}, bool terminal = false) {
  std::vector<const char*> entries;
  for (const std::string& variable : variables) entries.push_back(variable.c_str());
  entries.push_back(nullptr);
  return parse(args, Environment(entries.data()), {"1.2.3", "abc1234", {{"Boost", "1.81"}}}, terminal);
}

/// For valid command lines.
inline Launch launched(const Args& args, const Args& variables = {}, bool terminal = false) {
  Parsed parsed = run(args, variables, terminal);
  if (const auto* text = std::get_if<PrintAndExit>(&parsed)) {
    INFO(text->text);
    REQUIRE(text->text.empty());
  }
  return std::get<Launch>(std::move(parsed));
}

/// The error of an invalid command line, without "ddrun: error: " and the newline.
inline std::string refused(const Args& args, const Args& variables = {}) {
  Parsed parsed = run(args, variables);
  REQUIRE(std::holds_alternative<PrintAndExit>(parsed));
  const auto& answer = std::get<PrintAndExit>(parsed);
  CHECK(answer.to_stderr);
  CHECK(answer.code == 2);
  const std::string start = "ddrun: error: ";
  REQUIRE(answer.text.substr(0, start.size()) == start);
  REQUIRE(answer.text.find('\n') == answer.text.size() - 1);
  return answer.text.substr(start.size(), answer.text.size() - start.size() - 1);
}

/// The text printed to stdout.
inline std::string answered(const Args& args, const Args& variables = {}) {
  Parsed parsed = run(args, variables);
  REQUIRE(std::holds_alternative<PrintAndExit>(parsed));
  const auto& answer = std::get<PrintAndExit>(parsed);
  INFO(answer.text);
  CHECK_FALSE(answer.to_stderr);
  CHECK(answer.code == 0);
  return answer.text;
}

inline bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

using ddrun::test::read_file;
using ddrun::test::TemporaryDirectory;

}  // namespace ddrun::cli::test
