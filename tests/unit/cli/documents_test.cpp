#include <regex>
#include <set>

#include "option_table.hpp"
#include "support.hpp"

using namespace ddrun;
using namespace ddrun::cli::test;

namespace {

using Names = std::set<std::string>;

Names options_of_table() {
  Names names;
  for (const cli::Option* option : cli::all_options()) names.insert("--" + std::string(option->name));
  return names;
}

Names matches(const std::string& text, const char* pattern) {
  Names names;
  const std::regex expression(pattern);
  for (auto it = std::sregex_iterator(text.begin(), text.end(), expression); it != std::sregex_iterator(); ++it) {
    names.insert((*it)[1].str());
  }
  return names;
}

/// roff writes a dash as \- and switches fonts within words.
std::string plain_roff(const std::string& roff) {
  std::string text = std::regex_replace(roff, std::regex(R"(\\f[BIRP])"), "");
  return std::regex_replace(text, std::regex(R"(\\-)"), "-");
}

Names difference(const Names& all, const Names& known) {
  Names rest;
  for (const std::string& name : all) {
    if (known.count(name) == 0) rest.insert(name);
  }
  return rest;
}

/// The text behind `head`, up to `tail`.
std::string between(const std::string& text, const std::string& head, const std::string& tail) {
  const std::size_t start = text.find(head);
  REQUIRE(start != std::string::npos);
  return text.substr(start + head.size(), text.find(tail, start + head.size()) - start - head.size());
}

/// Spelled as options in documents, but of subcommands or of programs in examples.
const Names foreign{"--all-threads", "--json", "--lr", "--print", "--rank"};

}  // namespace

TEST_CASE("help names every option of the table and no other") {
  const Names found = matches(answered({"--help"}), R"((--[a-z][a-z-]*[a-z]))");
  CHECK(difference(options_of_table(), found) == Names{});
  CHECK(difference(difference(found, options_of_table()), foreign) == Names{});
}

TEST_CASE("the manual page names every option of the table and no other") {
  const std::string page = plain_roff(read_file(std::string(DDRUN_SOURCE_DIR) + "/docs/ddrun.1"));
  const Names found = matches(page, R"((--[a-z][a-z-]*[a-z]))");
  CHECK(difference(options_of_table(), found) == Names{});
  CHECK(difference(difference(found, options_of_table()), foreign) == Names{});
  // Each option has an entry with its short forms.
  for (const cli::Option* option : cli::all_options()) {
    CAPTURE(std::string(option->name));
    std::string head = "\n";
    for (const char letter : option->shorts) head += std::string("-") + letter + ", ";
    CHECK(contains(page, head + "--" + std::string(option->name) + (option->takes_value() ? "=" : "\n")));
  }
}

TEST_CASE("the manual page gives the default of every option") {
  const std::string page = plain_roff(read_file(std::string(DDRUN_SOURCE_DIR) + "/docs/ddrun.1"));
  const cli::ParsedOptions defaults;
  for (const cli::Option* option : cli::all_options()) {
    if (!option->is_setting() || !option->takes_value()) continue;
    const std::string name(option->name);
    CAPTURE(name);
    const std::size_t at = page.find("--" + name + "=", page.find("\n.SH OPTIONS"));
    REQUIRE(at != std::string::npos);
    const std::string entry = page.substr(at, page.find("\n.TP\n", at) + 1 - at);
    CAPTURE(entry);
    for (const std::string& value : option->show(defaults)) CHECK(contains(entry, "\nDefault: " + value + ".\n"));
  }
}

TEST_CASE("the manual page names the variables of torchrun") {
  const std::string page = plain_roff(read_file(std::string(DDRUN_SOURCE_DIR) + "/docs/ddrun.1"));
  Names pet;
  for (const cli::Option* option : cli::all_options()) {
    if (option->pet) pet.insert("--" + std::string(option->name));
    if (!option->other_variable.empty()) CHECK(contains(page, std::string(option->other_variable)));
  }
  const std::string list = between(page, "\nOptions that have one: ", ".\n.TP");
  CHECK(matches(list, R"((--[a-z][a-z-]*[a-z]))") == pet);
}

TEST_CASE("the page of options names every option of the table and no other") {
  const std::string page = read_file(std::string(DDRUN_SOURCE_DIR) + "/docs/options.md");
  const Names of_allreduce{"--max-latency", "--min-busbw"};
  const Names found = difference(matches(page, R"((--[a-z][a-z-]*[a-z]))"), of_allreduce);
  CHECK(difference(difference(found, options_of_table()), foreign) == Names{});

  const std::string list = between(page, "\n## All options\n", "\n## ");
  CHECK(difference(options_of_table(), matches(list, R"((--[a-z][a-z-]*[a-z]))")) == Names{});
  for (const cli::Option* option : cli::all_options()) {
    CAPTURE(std::string(option->name));
    for (const char letter : option->shorts) {
      CHECK(contains(list, "`--" + std::string(option->name) + "` (`-" + letter + "`"));
    }
  }
}

TEST_CASE("every variable that a document names is read by an option or belongs to workers") {
  Names known{"DDRUN_ROUND", "DDRUN_SEED", "DDRUN_SECRET", "DDRUN_EXIT_CODE", "DDRUN_LISTEN_PORT"};
  for (const cli::Option* option : cli::all_options()) {
    for (const std::string& name : cli::variables_of(*option)) known.insert(name);
  }
  for (const std::string file : {"/docs/options.md", "/docs/ddrun.1"}) {
    const std::string page = plain_roff(read_file(DDRUN_SOURCE_DIR + file));
    CAPTURE(file);
    CHECK(difference(matches(page, R"(\b((?:DDRUN|PET)_[A-Z_]*[A-Z])\b)"), known) == Names{});
  }
}

TEST_CASE("the schema of settings files is that of the table") {
  CHECK(read_file(DDRUN_SOURCE_DIR "/docs/schemas/settings.schema.json") == answered({"config", "schema"}));
}

TEST_CASE("the example launch files are good") {
  int count = 0;
  for (const auto& entry : std::filesystem::directory_iterator(DDRUN_SOURCE_DIR "/configs")) {
    if (entry.path().extension() != ".toml") continue;
    ++count;
    CAPTURE(entry.path().string());
    const auto launch = launched({"--config", entry.path().string()});
    CHECK(launch.warnings.empty());
    CHECK_FALSE(launch.spec.first().name.empty());
  }
  CHECK(count >= 3);
}
