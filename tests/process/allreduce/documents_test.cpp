// The pages and the program agree.

#include <regex>
#include <set>

#include "ranks.hpp"

using namespace ddrun;
using namespace ddrun::test;

namespace {

std::set<std::string> long_options(const std::string& text) {
  static const std::regex kOption("--[a-z][a-z_-]*[a-z]");
  std::set<std::string> options;
  for (std::sregex_iterator one(text.begin(), text.end(), kOption), end; one != end; ++one) options.insert(one->str());
  return options;
}

std::string without(std::string text, char what) {
  std::erase(text, what);
  return text;
}

}  // namespace

TEST_CASE("the manual page has every option of the help, and no other") {
  const std::string help = run_alone({"--help"}).out;
  // Options are at the start of the help's lines; descriptions follow.
  std::set<std::string> known;
  for (const std::string& line : lines_of(help)) {
    static const std::regex kNames("^ +(-[A-Za-z], )?(--[^ =]+)");
    std::smatch names;
    if (std::regex_search(line, names, kNames)) known.merge(long_options(names[2].str()));
  }
  REQUIRE(known.size() > 20);
  // The page writes "--" as "\-\-"; ".BR \-b ", " \-\-minbytes" starts an option's entry.
  std::set<std::string> described;
  const std::string page = read_file(DDRUN_TEST_DOCUMENTS "/ddrun-allreduce.1");
  for (const std::string& line : lines_of(page)) {
    if (line.starts_with(".BR \\-") || line.starts_with(".B \\-")) described.merge(long_options(without(line, '\\')));
  }
  for (const std::string& option : known) {
    CAPTURE(option);
    CHECK(described.contains(option));
  }
  described.erase("--version");
  for (const std::string& option : described) {
    CAPTURE(option);
    CHECK(known.contains(option));
  }
}

TEST_CASE("the page documents all fields of the report") {
  const std::string page = read_file(DDRUN_TEST_DOCUMENTS "/allreduce.md");
  const auto report = nlohmann::json::parse(run_alone({"-e", "8", "-n", "1", "-J", "-"}).out);
  const auto described = [&](const nlohmann::json& object) {
    for (const auto& [key, value] : object.items()) {
      CAPTURE(key);
      CHECK(page.find("`" + key + "`") != std::string::npos);
    }
  };
  described(report);
  described(report["results"][0]);
  described(report["results"][0]["in_place"]);
}
