#include "option_table.hpp"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <deque>

#include "ddrun/base/text.hpp"

namespace ddrun::bench {

namespace {

/// Of "-b,--minbytes": "--minbytes".
std::string long_name(const std::string& names) {
  const std::vector<std::string> all = split(names, ',');
  const auto found = std::find_if(all.begin(), all.end(), [](const std::string& one) { return one.starts_with("--"); });
  return found == all.end() ? all.front() : *found;
}

bool same_but_for_dashes(std::string_view a, std::string_view b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](char x, char y) { return x == y || ((x == '-' || x == '_') && (y == '-' || y == '_')); });
}

}  // namespace

void OptionTable::add(std::string names, std::string type, std::string help, Read read) {
  options_.push_back({std::move(names), std::move(type), std::move(help), group_, std::move(read)});
}

void OptionTable::add_flag(std::string names, std::string help, bool& to) {
  options_.push_back({std::move(names), "", std::move(help), group_, {}, &to});
}

void OptionTable::explain(std::string names, std::string why) {
  const auto refuse = [why = std::move(why)](const std::string&) { return fail(Errc::invalid_argument, why); };
  options_.push_back({std::move(names), "VALUE", "", "", refuse});  // no group: hidden
}

std::vector<std::string> OptionTable::normalized(int argc, char** argv) const {
  std::vector<std::string> words(argv + 1, argv + argc);
  for (std::string& word : words) {
    if (!word.starts_with("--")) continue;
    const std::size_t end = std::min(word.find('='), word.size());
    for (const Option& option : options_) {
      for (const std::string& name : split(option.names, ',')) {
        if (same_but_for_dashes(name, std::string_view(word).substr(0, end))) word.replace(0, end, name);
      }
    }
  }
  // As CLI11 wants them when they are no argv.
  std::reverse(words.begin(), words.end());
  return words;
}

Result<std::optional<std::string>> OptionTable::parse(int argc, char** argv, const std::string& purpose,
                                                      const std::string& footer) const {
  CLI::App app(purpose, "ddrun-allreduce");
  app.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  app.set_version_flag("--version", "ddrun-allreduce " DDRUN_ALLREDUCE_VERSION);
  app.footer(footer);
  std::deque<std::string> texts;
  std::vector<CLI::Option*> known;
  for (const Option& option : options_) {
    if (option.flag != nullptr) {
      known.push_back(app.add_flag(option.names, *option.flag, option.help)->group(option.group));
    } else {
      known.push_back(app.add_option(option.names, texts.emplace_back(), option.help)->type_name(option.type));
      known.back()->group(option.group);
    }
  }
  try {
    app.parse(normalized(argc, argv));
  } catch (const CLI::CallForHelp&) {
    return app.help();
  } catch (const CLI::CallForVersion& version) {
    return concat(version.what(), '\n');
  } catch (const CLI::ParseError& error) {
    return fail(Errc::invalid_argument, error.what());
  }
  for (std::size_t i = 0; i < options_.size(); ++i) {
    if (known[i]->count() == 0 || options_[i].flag != nullptr) continue;
    if (auto read = options_[i].read(known[i]->as<std::string>()); !read) {
      return fail(read.error().code, concat(long_name(options_[i].names), ": ", read.error().message));
    }
  }
  for (const auto& judge : rules_) {
    if (auto good = judge(); !good) return tl::unexpected(good.error());
  }
  return std::nullopt;
}

}  // namespace ddrun::bench
