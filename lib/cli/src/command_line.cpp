#include "settings.hpp"

#include <algorithm>
#include <cctype>

#include "ddrun/base/text.hpp"
#include "ddrun/cli/values.hpp"

namespace ddrun::cli {

namespace {

[[nodiscard]] tl::unexpected<Error> not_ours(std::string_view typed, const ForeignOption& option) {
  return bad(concat("unknown option '", typed, "' (of ", option.launchers, "); ", option.hint));
}

[[nodiscard]] tl::unexpected<Error> unknown_long(std::string_view typed) {
  if (const ForeignOption* foreign = find_foreign_option(typed.substr(2)); foreign != nullptr && typed.size() > 3) {
    return not_ours(typed, *foreign);
  }
  std::vector<std::string> names;
  for (const Option* option : all_options()) names.push_back(concat("--", option->name));
  const std::string near = nearest(with_dashes(typed), names);
  return bad(near.empty() ? concat("unknown option '", typed, "' (see 'ddrun --help')")
                          : concat("unknown option '", typed, "'; did you mean '", near, "'?"));
}

[[nodiscard]] tl::unexpected<Error> unknown_short(char letter) {
  if (const ForeignOption* foreign = find_foreign_option({&letter, 1})) return not_ours(concat('-', letter), *foreign);
  const auto c = static_cast<unsigned char>(letter);
  const char other = static_cast<char>(std::isupper(c) ? std::tolower(c) : std::toupper(c));
  if (other != letter && find_short(other) != nullptr) {
    return bad(concat("unknown option '-", letter, "'; did you mean '-", other, "'?"));
  }
  return bad(concat("unknown option '-", letter, "' (see 'ddrun --help')"));
}

/// The value of a flag that has none.
constexpr std::string_view is_set = "true";

bool is_digit(char c) { return std::isdigit(static_cast<unsigned char>(c)) != 0; }

/// Whether a word can be the value of the option before it. What looks like an option is taken for a forgotten value.
bool can_be_value(std::string_view word) {
  return word.size() < 2 || word[0] != '-' || is_digit(word[1]) || word[1] == '.';
}

class Splitter {
 public:
  explicit Splitter(std::span<const std::string> arguments) : rest_(arguments) {}

  Result<CommandLine> run() {
    while (!rest_.empty()) {
      const std::string& word = rest_.front();
      if (word == "--") {
        rest_ = rest_.subspan(1);
        line_.separated = true;
        break;
      }
      if (word.size() < 2 || word[0] != '-') break;
      rest_ = rest_.subspan(1);
      const auto done = word[1] == '-' ? long_option(word) : short_options(word);
      if (!done) return tl::unexpected<Error>(done.error());
      if (line_.action != nullptr) return std::move(line_);
    }
    line_.program.assign(rest_.begin(), rest_.end());
    for (OptionValues& one : line_.options) settle(one);
    return std::move(line_);
  }

 private:
  Result<void> long_option(std::string_view word) {
    const std::size_t equals = word.find('=');
    const Option* option = find_option(word.substr(2, equals == std::string_view::npos ? equals : equals - 2));
    if (option == nullptr) return unknown_long(word.substr(0, equals));
    const std::string typed = concat("--", option->name);
    if (option->kind == Kind::action) {
      if (equals != std::string_view::npos) return bad(concat(typed, " takes no value"));
      line_.action = option;
      return {};
    }
    if (equals + 1 == word.size() && !option->takes_value()) {
      return bad(concat(typed, "= has no value; give 0 or 1, or leave out the ="));
    }
    if (equals != std::string_view::npos) return add(*option, word.substr(equals + 1));
    return option->takes_value() ? add_next(typed, *option) : add(*option, is_set);
  }

  Result<void> short_options(std::string_view word) {
    // -np is mpirun's spelling of -n.
    if (word == "-np") return add_next("-n", *find_short('n'));
    if (word.starts_with("-np") && word.size() > 3 && (word[3] == '=' || is_digit(word[3]))) {
      return add(*find_short('n'), word.substr(word[3] == '=' ? 4 : 3));
    }
    // mpirun and its like write long options with one dash too.
    if (const std::string_view name = word.substr(1, word.find('=') - 1); name.size() > 1) {
      if (find_option(name) != nullptr) {
        return bad(concat("unknown option '-", name, "'; did you mean '--", with_dashes(name), "'?"));
      }
      if (const ForeignOption* foreign = find_foreign_option(name)) return not_ours(concat('-', name), *foreign);
    }
    for (std::size_t i = 1; i < word.size(); ++i) {
      const Option* option = find_short(word[i]);
      if (option == nullptr) return unknown_short(word[i]);
      if (option->kind == Kind::action) {
        line_.action = option;
        return {};
      }
      if (!option->takes_value()) {
        (void)add(*option, is_set);
        continue;
      }
      std::string_view value = word.substr(i + 1);
      if (value.empty()) return add_next(concat('-', word[i]), *option);
      if (value.front() == '=') value.remove_prefix(1);
      return add(*option, value);
    }
    return {};
  }

  Result<void> add(const Option& option, std::string_view value) {
    auto& all = line_.options;
    auto at = std::find_if(all.begin(), all.end(), [&](const OptionValues& one) { return one.option == &option; });
    if (at == all.end()) at = all.insert(all.end(), {&option, {}});
    at->values.emplace_back(value);
    return {};
  }

  Result<void> add_next(std::string_view typed, const Option& option) {
    if (rest_.empty() || !can_be_value(rest_.front())) {
      return bad(concat(
          typed, " needs a value (", option.metavar, ")",
          rest_.empty() ? std::string()
                        : concat("; if it is to be '", rest_.front(), "', write --", option.name, "=", rest_.front())));
    }
    const std::string& value = rest_.front();
    rest_ = rest_.subspan(1);
    return add(option, value);
  }

  /// A flag that is repeated is counted; of several values the last counts, as argparse does it.
  static void settle(OptionValues& one) {
    auto& values = one.values;
    if (one.option->kind == Kind::count &&
        std::all_of(values.begin(), values.end(), [](const std::string& value) { return value == is_set; })) {
      values = {std::to_string(std::min<std::size_t>(values.size(), 9))};
    }
    if (one.option->kind != Kind::assignments && values.size() > 1) values.erase(values.begin(), values.end() - 1);
  }

  std::span<const std::string> rest_;
  CommandLine line_;
};

}  // namespace

Result<CommandLine> read_command_line(std::span<const std::string> arguments) { return Splitter(arguments).run(); }

}  // namespace ddrun::cli
