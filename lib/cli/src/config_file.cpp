#include "settings.hpp"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>

// Header only: a shared library of toml++ is not installed everywhere.
#undef TOML_HEADER_ONLY
#undef TOML_SHARED_LIB
#define TOML_HEADER_ONLY 1
#define TOML_EXCEPTIONS 0
#define TOML_ENABLE_FORMATTERS 0
// "[[[" fails an assertion of 3.3 and is a plain syntax error without it. With NDEBUG the condition would become an
// assumption of the optimiser.
#pragma push_macro("NDEBUG")
#undef NDEBUG
#define TOML_ASSERT(expression) static_assert(true)
#if __has_include(<toml++/toml.hpp>)
#include <toml++/toml.hpp>
#else
#include <toml++/toml.h>
#endif
#pragma pop_macro("NDEBUG")

#include "ddrun/base/text.hpp"
#include "ddrun/base/unique_fd.hpp"
#include "ddrun/cli/values.hpp"

namespace ddrun::cli {

const AcceptedTypes& accepted_types_of(Kind kind) {
  static constexpr AcceptedTypes text_only{Kind::choice, types::text, "a text"};
  static constexpr AcceptedTypes accepted_types[] = {
      {Kind::flag, types::yes_no, "true or false"},
      {Kind::flag_or_choice, types::yes_no | types::text, "true, false or a text"},
      {Kind::count, types::yes_no | types::whole, "a whole number or true or false"},
      {Kind::integer, types::whole, "a whole number"},
      {Kind::number, types::whole | types::fraction, "a number"},
      {Kind::duration, types::whole | types::fraction | types::text, "a number of seconds or a text such as \"90s\""},
      {Kind::size, types::whole | types::text, "a whole number or a text"},
      {Kind::choice_or_int, types::whole | types::text, "a whole number or a text"},
      {Kind::streams, types::whole | types::text | types::table, "a whole number, a text or a table"},
      {Kind::numbers, types::whole | types::text | types::list, "a whole number, a text or a list of them"},
      {Kind::names, types::text | types::list, "a text or a list of texts"},
      {Kind::pairs, types::text | types::table, "a text or a table"},
      {Kind::files, types::text | types::list, "a text or a list of texts"},
      {Kind::assignments, types::list | types::table, "a list of \"NAME=VALUE\" or a table"},
      {Kind::text, types::whole | types::text, "a text"},
  };
  const auto* const found = std::ranges::find(accepted_types, kind, &AcceptedTypes::kind);
  return found == std::end(accepted_types) ? text_only : *found;
}

namespace {

constexpr std::size_t max_file_bytes = std::size_t{1} << 20;

std::string_view type_name(toml::node_type type) {
  switch (type) {
    case toml::node_type::table: return "a table";
    case toml::node_type::array: return "a list";
    case toml::node_type::string: return "a text";
    case toml::node_type::integer: return "a whole number";
    case toml::node_type::floating_point: return "a number";
    case toml::node_type::boolean: return "true or false";
    default: return "a date or time";
  }
}

/// A number or text as typed on a command line; nullopt for other types.
std::optional<std::string> scalar(const toml::node& node) {
  if (const auto* text = node.as_string()) return text->get();
  if (const auto* number = node.as_integer()) return std::to_string(number->get());
  if (const auto* number = node.as_floating_point()) return number_text(number->get());
  return std::nullopt;
}

std::optional<std::vector<std::string>> list_of(const toml::node& node) {
  const auto* array = node.as_array();
  if (array == nullptr) return std::nullopt;
  std::vector<std::string> items;
  for (const toml::node& item : *array) {
    auto text = scalar(item);
    if (!text || item.is_floating_point()) return std::nullopt;
    items.push_back(std::move(*text));
  }
  return items;
}

/// {a = 1, b = "x"} -> "a<between>1", "b<between>x"
std::optional<std::vector<std::string>> table_of(const toml::node& node, std::string_view between) {
  const auto* table = node.as_table();
  if (table == nullptr) return std::nullopt;
  std::vector<std::string> items;
  for (auto&& [key, item] : *table) {
    const auto text = scalar(item);
    if (!text) return std::nullopt;
    items.push_back(concat(key.str(), between, *text));
  }
  return items;
}

/// The option's values as on a command line; nullopt if the type does not match.
std::optional<std::vector<std::string>> values_of(Kind kind, const toml::node& node) {
  using Values = std::vector<std::string>;
  const unsigned wanted = accepted_types_of(kind).types;
  const unsigned type = node.is_boolean()          ? types::yes_no
                        : node.is_integer()        ? types::whole
                        : node.is_floating_point() ? types::fraction
                        : node.is_string()         ? types::text
                        : node.is_array()          ? types::list
                        : node.is_table()          ? types::table
                                                   : 0;
  if ((type & wanted) == 0) return std::nullopt;
  if (type == types::yes_no) return Values{node.as_boolean()->get() ? "1" : "0"};
  if (type != types::list && type != types::table) return Values{*scalar(node)};
  auto items = type == types::list ? list_of(node) : table_of(node, kind == Kind::streams ? ":" : "=");
  if (!items || is_repeatable(kind)) return items;
  return Values{kind == Kind::names ? filters_text(*items) : join(*items, ",")};
}

constexpr std::string_view value_hint =
    "the value is no number, true or false; write a text in quotes, as in role = \"a\" or timeout = \"20m\"";

/// Parts of toml++'s messages, and what to write.
constexpr std::pair<std::string_view, std::string_view> syntax_hints[] = {
    {"expected '='", "a key has no = behind it; write KEY = VALUE, as in nproc-per-node = 4"},
    {"control character", "a text has no closing quote on its line"},
    {"end-of-file", "a text has no closing quote"},
    {"escape sequence", "a \\ in double quotes begins an escape; write it twice, or 'a\\b' in single quotes"},
    {"array: expected", "a list has no , between two values, or no ] at its end"},
    {"inline table: ", "a table in {} has no , between two entries, or no } at the end of its line"},
    {"table header: expected ']'", "the name of a table has no ] at its end, as in [env]"},
    {"a comment or whitespace", "more stands behind the value; several values are a list: [\"a\", \"b\"]"},
    {"utf-8", "it is not text in UTF-8"},
    {"digit", value_hint},
    {"boolean", value_hint},
    {" value", value_hint},
};

/// In words for the person who writes the file.
std::string explain_syntax(std::string_view error, std::string_view file) {
  const bool is_yaml = file.starts_with("-") || error.ends_with("saw ':'");
  if (is_yaml || file.starts_with("{"))
    return concat("this is ", is_yaml ? "YAML" : "JSON", "; write TOML: KEY = VALUE, as in nproc-per-node = 4");
  if (const std::size_t redefined = error.find("cannot redefine"); redefined != std::string_view::npos) {
    return concat(error.substr(std::min(error.find('\''), error.size())), " is set twice; leave one out");
  }
  for (const auto& [part, hint] : syntax_hints) {
    if (error.find(part) != std::string_view::npos) return std::string(hint);
  }
  return std::string(error);
}

class Reader {
 public:
  explicit Reader(const std::string& path) : path_(path) {}

  Result<ConfigFile> read() {
    const auto text = TRY(read_text_file(path_, "settings file"));
    const toml::parse_result parsed = toml::parse(std::string_view(text), std::string_view(path_));
    if (!parsed) {
      const auto& error = parsed.error();
      const std::string at = where(error.source().begin);
      if (has_both_forms(text)) return wrong(at, std::string(both_forms));
      return wrong(at, explain_syntax(error.description(), trim(text)));
    }
    for (const Entry& entry : entries(parsed.table())) TRY(read_entry(entry));
    file_.program.insert(file_.program.end(), args_.begin(), args_.end());
    if (!args_.empty() && !file_.tables.empty()) return wrong(args_where_, std::string(both_forms));
    if (!args_.empty() && file_.program_where.empty()) {
      return wrong(args_where_, "args without program; add program = \"...\"");
    }
    return std::move(file_);
  }

 private:
  struct Entry {
    std::string key;
    const toml::node* node;
    toml::source_position position;
  };

  /// In file order, so that the first error is reported first.
  static std::vector<Entry> entries(const toml::table& table) {
    std::vector<Entry> all;
    for (auto&& [key, node] : table) all.push_back({std::string(key.str()), &node, key.source().begin});
    std::sort(all.begin(), all.end(), [](const Entry& a, const Entry& b) { return a.position < b.position; });
    return all;
  }

  [[nodiscard]] std::string where(const toml::source_position& position) const {
    return concat(path_, ":", position.line, ":", position.column);
  }

  static tl::unexpected<Error> wrong(const std::string& where, const std::string& what) {
    return fail(Errc::invalid_argument, concat(where, ": ", what));
  }

  static tl::unexpected<Error> wrong_type(const Entry& entry, const std::string& where, std::string_view wanted) {
    return wrong(where, concat(entry.key, " must be ", wanted, ", not ",
                               entry.node->is_array()   ? "this list"
                               : entry.node->is_table() ? "this table"
                                                        : type_name(entry.node->type())));
  }

  static constexpr std::string_view both_forms =
      "programs stand in [[program]] tables, each with its command, or one in program and args above them, not both";

  /// TOML takes them for one name that is defined twice.
  static bool has_both_forms(std::string_view text) {
    bool is_value = false;
    bool is_table = false;
    for (const std::string& line : split(text, '\n')) {
      const std::string_view start = trim(line);
      is_table = is_table || start.starts_with("[[program]]");
      is_value = is_value || (start.starts_with("program") && trim(start.substr(7)).starts_with('='));
    }
    return is_value && is_table;
  }

  Result<void> read_entry(const Entry& entry) {
    if (entry.key == "program" && entry.node->is_array_of_tables()) return read_tables(*entry.node->as_array());
    const std::string at = where(entry.position);
    if (entry.key == "program" || entry.key == "args") return read_program(entry, at);
    return read_option(entry, at, file_.values);
  }

  Result<void> read_tables(const toml::array& tables) {
    for (const toml::node& node : tables) {
      ProgramTable& program = file_.tables.emplace_back();
      program.where = where(node.source().begin);
      for (const Entry& entry : entries(*node.as_table())) {
        const std::string at = where(entry.position);
        TRY(entry.key == "command" ? read_command(entry, at, program) : read_option(entry, at, program.values));
        if (entry.key == "command" || is_of_program(*program.values.back().option)) continue;
        return wrong(at, concat("'", entry.key, "' is of the whole job: write it above the first [[program]]"));
      }
      if (program.command.empty()) return wrong(program.where, "no command; add command = [\"./a\"]");
    }
    return {};
  }

  Result<void> read_command(const Entry& entry, const std::string& at, ProgramTable& program) {
    auto words = list_of(*entry.node);
    if (const auto* text = entry.node->as_string()) words.emplace({text->get()});
    if (!words) return wrong_type(entry, at, "a list of texts");
    if (words->empty() || words->front().empty()) return wrong(at, "command must not be empty");
    if (entry.node->is_string() && words->front().find(' ') != std::string::npos) {
      std::vector<std::string> list = split(words->front(), ' ');
      std::erase(list, "");
      return wrong(
          at, concat("command is one word with blanks; write each word for itself: command = ", quoted_list(list)));
    }
    program.command = std::move(*words);
    return {};
  }

  Result<void> read_option(const Entry& entry, const std::string& at, std::vector<FileValue>& read) {
    const Option* option = find_option(entry.key);
    if (option == nullptr) return unknown(entry, at);
    if (!option->is_setting()) return wrong(at, concat("'", entry.key, "' is only for the command line"));
    for (const FileValue& other : read) {
      if (other.option == option) {
        return wrong(at, concat("'", entry.key, "' is '", other.key, "' again, which ", other.where, " has set"));
      }
    }
    auto values = values_of(option->kind, *entry.node);
    if (!values) return wrong_type(entry, at, accepted_types_of(option->kind).wanted);
    read.push_back({option, std::move(*values), entry.key, at});
    return {};
  }

  Result<void> read_program(const Entry& entry, const std::string& at) {
    auto words = list_of(*entry.node);
    const bool is_program = entry.key == "program";
    if (is_program && entry.node->is_string()) words.emplace({*scalar(*entry.node)});
    if (!words) return wrong_type(entry, at, is_program ? "a text or a list of texts" : "a list of texts");
    if (is_program) {
      if (words->empty() || words->front().empty()) return wrong(at, "program must not be empty");
      file_.program = std::move(*words);
      file_.program_where = at;
    } else {
      args_ = std::move(*words);
      args_where_ = at;
    }
    return {};
  }

  static Result<void> unknown(const Entry& entry, const std::string& at) {
    if (entry.key == "command") return wrong(at, "command stands in a [[program]] table; for one program: program");
    std::vector<std::string> names{"program", "args", "command"};
    for (const Option* option : all_options()) {
      if (option->is_setting()) names.emplace_back(option->name);
    }
    const std::string near = nearest(with_dashes(entry.key), names);
    return wrong(at, concat("unknown key '", entry.key, "'",
                            near.empty() ? std::string(" (keys are long options without dashes in front)")
                                         : concat("; did you mean '", near, "'?")));
  }

  const std::string& path_;
  ConfigFile file_;
  std::vector<std::string> args_;
  std::string args_where_;
};

}  // namespace

Result<std::string> read_text_file(const std::string& path, std::string_view what) {
  const auto failed = [&](int err) {
    return fail_errno(Errc::invalid_argument, concat("cannot read the ", what, " '", path, "'"), err);
  };
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd) return failed(errno);
  std::string text;
  char buffer[8192];
  while (true) {
    const ssize_t got = ::read(fd.get(), buffer, sizeof buffer);
    if (got == 0) return text;
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return failed(errno);
    text.append(buffer, static_cast<std::size_t>(got));
    if (text.size() > max_file_bytes) return bad(concat("the ", what, " '", path, "' is larger than 1 MiB"));
  }
}

Result<ConfigFile> read_config(const std::string& path) { return Reader(path).read(); }

}  // namespace ddrun::cli
