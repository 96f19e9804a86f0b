#include "ddrun/argv/argv.hpp"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cctype>

#include "ddrun/base/text.hpp"

namespace ddrun::argv {

namespace {

/// Prefix of each value: CLI11 treats an empty value after "=" as missing.
constexpr char value_mark = '\1';

[[nodiscard]] tl::unexpected<Error> bad(std::string message) {
  return fail(Errc::invalid_argument, std::move(message));
}

bool is_digit(char c) { return std::isdigit(static_cast<unsigned char>(c)) != 0; }
bool is_option(std::string_view word) { return word.size() > 1 && word[0] == '-'; }
/// A negative number is a value.
bool can_be_value(std::string_view word) { return !is_option(word) || is_digit(word[1]) || word[1] == '.'; }

class Reader {
 public:
  Reader(const Grammar& grammar, std::span<const std::string> arguments) : grammar_(grammar), arguments_(arguments) {}

  Result<CommandLine> run() {
    split_arguments();
    if (!unknown_.empty()) return bad(grammar_.explain == nullptr ? unknown_.front() : join(unknown_, "\n"));
    CLI::App app;
    app.set_help_flag();
    std::vector<std::pair<const Option*, CLI::Option*>> added;
    for (const Option& option : grammar_.options) {
      if (is_mentioned(option)) added.emplace_back(&option, add(app, option));
    }
    try {
      app.parse(std::vector<std::string>(tokens_.rbegin(), tokens_.rend()));
    } catch (const CLI::Error& error) {
      return bad(error.what());
    }
    for (const auto& [option, found] : added) {
      if (found->count() == 0) continue;
      line_.options.push_back({option, found->results()});
      TRY(check_values(line_.options.back()));
    }
    if (!missing_value_error_.empty()) return bad(std::move(missing_value_error_));
    return std::move(line_);
  }

 private:
  /// Separates the positionals from the options and rewrites the options for CLI11.
  void split_arguments() {
    const Option* pending = nullptr;
    for (; at_ < arguments_.size() && line_.action == nullptr; ++at_) {
      const std::string& word = arguments_[at_];
      if (pending != nullptr) {
        if (!can_be_value(word)) break;
        tokens_.push_back(value_mark + word);
        pending = nullptr;
        continue;
      }
      line_.has_separator = word == "--";
      if (line_.has_separator || (grammar_.positionals == Positionals::program && !is_option(word))) break;
      if (can_be_value(word) && grammar_.positionals == Positionals::anywhere) {
        line_.positionals.push_back(word);
        continue;
      }
      pending = add_option(word);
    }
    if (pending != nullptr) return set_missing_value(*pending);
    if (line_.action != nullptr) line_.positionals.clear();
    line_.positionals.insert(line_.positionals.end(),
                             arguments_.begin() + static_cast<std::ptrdiff_t>(at_ + (line_.has_separator ? 1 : 0)),
                             arguments_.end());
  }

  /// The next argument is not a value of `option`. Reported only if the options before it are valid.
  void set_missing_value(const Option& option) {
    const std::string& typed = tokens_.back();
    missing_value_error_ =
        concat(typed[1] == '-' ? typed : concat('-', typed.back()), " needs a value (", option.metavar, ")");
    if (at_ < arguments_.size()) {
      missing_value_error_ +=
          concat("; if it is to be '", arguments_[at_], "', write --", option.name, "=", arguments_[at_]);
    }
    std::replace(missing_value_error_.begin(), missing_value_error_.end(), '\n', '?');  // a line is an error
    tokens_.emplace_back();                                                             // a placeholder value for CLI11
  }

  /// Adds an option in CLI11's spelling. Returns it if its value is the next argument.
  const Option* add_option(std::string word) {
    const std::size_t equals = word.find('=');
    if (word[1] != '-' && !is_long_name(word.substr(1, equals - 1))) return add_short_options(std::move(word));
    const bool has_value = equals != std::string::npos;
    const std::string value = has_value ? word.substr(equals + 1) : "";
    word.resize(std::min(equals, word.size()));
    const Option* const option = word[1] == '-' ? find_or_complete(word.substr(2)) : nullptr;
    if (option == nullptr) return add_unknown(word, value, has_value);
    tokens_.push_back(concat("--", option->name, has_value ? concat('=', value_mark, value) : ""));
    if (option->action) line_.action = option;
    return !has_value && !option->metavar.empty() ? option : nullptr;
  }

  /// Also goes past the values that are separate arguments, so that the options behind them are found. Returns null.
  const Option* add_unknown(const std::string& typed, std::string value, bool has_value) {
    const std::string name = with_dashes(std::string_view(typed).substr(typed[1] == '-' ? 2 : 1));
    const Option* const own = name.size() > 1 ? find(name) : nullptr;
    int values = own != nullptr ? (own->metavar.empty() ? 0 : 1) : explanation(name, value).values;
    for (; !has_value && values > 0 && at_ + 1 < arguments_.size() && can_be_value(arguments_[at_ + 1]); --values) {
      value = value.empty() ? arguments_[++at_] : concat(value, ' ', arguments_[++at_]);
    }
    std::string message = concat("unknown option '", typed, "'", unknown_hint(typed, name, value));
    std::replace(message.begin(), message.end(), '\n', '?');
    unknown_.push_back(std::move(message));
    return nullptr;
  }

  const Option* add_short_options(std::string word) {
    if (!grammar_.alias.empty() && std::string_view(word).substr(1).starts_with(grammar_.alias)) {
      const std::size_t end = 1 + grammar_.alias.size();
      if (end == word.size() || word[end] == '=' || is_digit(word[end])) word.erase(2, end - 2);
    }
    const Option* pending = nullptr;
    for (std::size_t i = 1; i < word.size(); ++i) {
      const Option* const option = find(word[i]);
      if (option == nullptr) {
        const std::size_t value = i + (i + 1 < word.size() && word[i + 1] == '=' ? 2 : 1);
        return add_unknown({'-', word[i]}, word.substr(value), value < word.size());
      }
      if (option->action) {
        line_.action = option;
        line_.is_short = true;
      }
      if (option->metavar.empty()) continue;
      if (i + 1 == word.size()) pending = option;
      else if (word[i + 1] == '=') word[i + 1] = value_mark;
      else word.insert(i + 1, 1, value_mark);
      break;
    }
    tokens_.push_back(std::move(word));
    return pending;
  }

  /// Whether the text after one dash is a long option, as mpirun and others write it.
  [[nodiscard]] bool is_long_name(std::string_view name) const {
    return name.size() > 1 && name != grammar_.alias &&
           (find(with_dashes(name)) != nullptr || !explanation(name, "").text.empty());
  }

  /// Only options that occur are added: CLI11 compares them pairwise, and a large table would dominate the start time.
  [[nodiscard]] bool is_mentioned(const Option& option) const {
    return std::any_of(tokens_.begin(), tokens_.end(), [&](std::string_view word) {
      if (!is_option(word)) return false;
      if (word[1] == '-') return word.substr(2, word.find('=') - 2) == option.name;
      return word.find_first_of(option.shorts, 1) != std::string_view::npos;
    });
  }

  static CLI::Option* add(CLI::App& app, const Option& option) {
    std::string names;
    for (const char letter : option.shorts) names += concat('-', letter, ',');
    names += concat("--", option.name);
    auto* const added = option.metavar.empty() ? app.add_flag(names) : app.add_option(names)->expected(1);
    return added->allow_extra_args(false)->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  }

  /// Removes the prefix from the values and checks whether the option takes one.
  [[nodiscard]] Result<void> check_values(OptionValues& given) const {
    const Option& option = *given.option;
    const bool value_forbidden =
        option.action || (option.metavar.empty() && grammar_.positionals == Positionals::anywhere);
    for (std::string& value : given.values) {
      const bool has_value = value.starts_with(value_mark);
      if (has_value) value.erase(0, 1);
      if (has_value && value_forbidden) return bad(concat("--", option.name, " takes no value"));
      if (value.empty() && option.metavar.empty()) {
        return bad(concat("--", option.name, "= has no value; give 0 or 1, or leave out the ="));
      }
    }
    return {};
  }

  [[nodiscard]] const Option* find(std::string_view name) const {
    for (const Option& option : grammar_.options) {
      if (option.name == name) return &option;
    }
    return nullptr;
  }
  [[nodiscard]] const Option* find(char letter) const {
    for (const Option& option : grammar_.options) {
      if (option.shorts.find(letter) != std::string_view::npos) return &option;
    }
    return nullptr;
  }
  /// By its name or, as argparse does, by the start of only one of the spellings of names that may be shortened.
  [[nodiscard]] const Option* find_or_complete(std::string_view typed) const {
    const Option* const option = find(with_dashes(typed));
    if (option != nullptr || !explanation(typed, "").text.empty()) return option;
    const std::vector<std::string> names = completions(typed);
    return names.size() == 1 ? find(with_dashes(names.front())) : nullptr;
  }
  [[nodiscard]] std::vector<std::string> completions(std::string_view typed) const {
    std::vector<std::string> names;
    for (const Option& option : grammar_.options) {
      if (!option.may_be_shortened || typed.empty()) continue;
      std::string underscored(option.name);
      std::replace(underscored.begin(), underscored.end(), '-', '_');
      if (option.name.starts_with(typed)) names.emplace_back(option.name);
      if (underscored != option.name && underscored.starts_with(typed)) names.push_back(std::move(underscored));
    }
    return names;
  }
  [[nodiscard]] Explanation explanation(std::string_view name, std::string_view value) const {
    return grammar_.explain == nullptr ? Explanation() : grammar_.explain(with_dashes(name), value);
  }

  [[nodiscard]] std::string unknown_hint(std::string_view typed, const std::string& name,
                                         std::string_view value) const {
    const auto did_you_mean = [](std::string_view what) { return concat("; did you mean '", what, "'?"); };
    const bool one_dash = typed[1] != '-';
    const bool is_letter = one_dash && name.size() == 1;
    if (one_dash && !is_letter && find(name) != nullptr) return did_you_mean("--" + name);
    if (std::string what = explanation(name, value).text; (is_letter || name.size() > 1) && !what.empty()) return what;
    if (is_letter) {
      const auto c = static_cast<unsigned char>(name[0]);
      const char other = static_cast<char>(std::isupper(c) != 0 ? std::tolower(c) : std::toupper(c));
      if (other != name[0] && find(other) != nullptr) return did_you_mean(concat('-', other));
    } else {
      std::vector<std::string> names = completions(typed.substr(2));
      for (std::string& one : names) one = "--" + with_dashes(one);
      names.erase(std::unique(names.begin(), names.end()), names.end());
      if (!names.empty()) return did_you_mean(join(names, "', '"));
      for (const Option& option : grammar_.options) names.emplace_back(option.name);
      if (const std::string near = nearest(name, names); !near.empty()) return did_you_mean("--" + near);
    }
    return concat(" (see '", grammar_.help, "')");
  }

  const Grammar& grammar_;
  const std::span<const std::string> arguments_;
  std::size_t at_ = 0;                ///< in arguments_
  std::vector<std::string> tokens_;   ///< options and their values for CLI11
  std::vector<std::string> unknown_;  ///< errors
  CommandLine line_;
  std::string missing_value_error_;  ///< the error for the last option, if its value is missing
};

constexpr std::size_t columns = 79;
constexpr std::size_t help_column = 30;

/// Wraps `text` at `columns`; all lines begin at `column`.
std::string wrapped(std::string_view text, std::size_t column) {
  std::string out;
  std::size_t at = column;
  for (const std::string& word : split(text, ' ')) {
    if (at > column && at + 1 + word.size() > columns) {
      out += concat("\n", std::string(column, ' '));
      at = column;
    } else if (at > column) {
      out += ' ';
      ++at;
    }
    out += word;
    at += word.size();
  }
  return out;
}

}  // namespace

std::string with_dashes(std::string_view name) {
  std::string text(name);
  std::replace(text.begin(), text.end(), '_', '-');
  return text;
}

const std::vector<std::string>& CommandLine::values(std::string_view name) const {
  static const std::vector<std::string> none;
  for (const OptionValues& given : options) {
    if (given.option->name == name) return given.values;
  }
  return none;
}

Result<CommandLine> read(const Grammar& grammar, std::span<const std::string> arguments) {
  return Reader(grammar, arguments).run();
}

std::string describe(const Option& option, std::string_view what) {
  std::string text = option.shorts.empty() ? std::string("      ") : concat("  -", option.shorts[0], ", ");
  text += concat("--", option.name);
  if (!option.metavar.empty()) text += concat('=', option.metavar);
  text += text.size() + 2 > help_column ? concat('\n', std::string(help_column, ' '))
                                        : std::string(help_column - text.size(), ' ');
  return concat(text, wrapped(what, help_column), '\n');
}

std::string describe(std::span<const Option> options) {
  std::string text;
  for (const Option& option : options) {
    if (!option.help.empty()) text += describe(option, option.help);
  }
  return text;
}

}  // namespace ddrun::argv
