#include <regex>
#include <set>
#include <string>
#include <vector>

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

std::string manual_page() { return plain_roff(read_file(std::string(DDRUN_SOURCE_DIR) + "/docs/ddrun.1")); }

std::string section_of_options(const std::string& page) { return between(page, "\n.SH OPTIONS\n", "\n.SH "); }

/// What stands between separators, in order.
std::vector<std::string> parts(const std::string& text, const std::string& separator) {
  std::vector<std::string> all;
  for (std::size_t at = 0; at != std::string::npos;) {
    const std::size_t end = text.find(separator, at);
    all.push_back(text.substr(at, end - at));
    at = end == std::string::npos ? end : end + separator.size();
  }
  return all;
}

/// "-n, --nproc-per-node=N"
std::string head_of(const cli::Option& option) {
  std::string head;
  for (const char letter : option.shorts) head += std::string("-") + letter + ", ";
  head += "--" + std::string(option.name);
  return option.metavar.empty() ? head : head + "=" + std::string(option.metavar);
}

/// Quotes around words are for --help: the manual page has them in bold.
std::string sentence_of(const cli::Option& option) {
  return std::regex_replace(std::string(option.help), std::regex(" '([^']+)'"), " $1") + ".";
}

/// Spelled as options in documents, but of subcommands or of programs in examples.
const Names foreign{"--all-threads", "--json", "--lr", "--print", "--rank"};

}  // namespace

TEST_CASE("help names every option of the table and no other") {
  const Names found = matches(answered({"--help"}), R"((--[a-z][a-z-]*[a-z]))");
  CHECK(difference(options_of_table(), found) == Names{});
  CHECK(difference(difference(found, options_of_table()), foreign) == Names{});
}

TEST_CASE("the manual page has the options of the table, in its groups and its order") {
  const std::string page = manual_page();
  const auto sections = parts(section_of_options(page), "\n.SS ");
  REQUIRE(sections.size() == cli::option_groups().size() + 1);
  for (std::size_t i = 0; i < cli::option_groups().size(); ++i) {
    const cli::OptionGroup& group = cli::option_groups()[i];
    auto heads = parts(sections[i + 1], "\n.TP\n");
    for (std::string& head : heads) head = head.substr(0, head.find('\n'));
    std::vector<std::string> expected{std::string(group.title)};
    for (const cli::Option& option : group.options) expected.push_back(head_of(option));
    CHECK(heads == expected);
  }
  const Names found = matches(page, R"((--[a-z][a-z-]*[a-z]))");
  CHECK(difference(difference(found, options_of_table()), foreign) == Names{});
}

TEST_CASE("the manual page begins each option with its sentence in the help and ends with its default") {
  const std::string section = section_of_options(manual_page());
  const cli::ParsedOptions defaults;
  for (const cli::Option* option : cli::all_options()) {
    const std::string head = head_of(*option);
    CAPTURE(head);
    const std::size_t at = section.find("\n" + head + "\n");
    REQUIRE(at != std::string::npos);
    // The next entry, or the next group's.
    const std::string entry = section.substr(at, section.find("\n.", at) - at);
    const std::string text = std::regex_replace(entry.substr(head.size() + 2), std::regex("\\s+"), " ") + " ";
    const std::string beginning = sentence_of(*option) + " ";
    CHECK(text.substr(0, beginning.size()) == beginning);

    std::string end;
    if (option->is_setting() && option->takes_value()) {
      for (const std::string& value : option->show(defaults)) end += "Default: " + value + ". ";
    }
    const std::size_t tail = text.find("Default: ");
    CHECK((tail == std::string::npos ? "" : text.substr(tail)) == end);
  }
}

TEST_CASE("the manual page names the variables of torchrun") {
  const std::string page = manual_page();
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
