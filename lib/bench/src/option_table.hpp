#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "ddrun/base/result.hpp"

namespace ddrun::bench {

/// The options of a command line: names, help, and what reads each. Long names may be written with dashes or with
/// underscores, whichever they are listed with. Of an option that is given twice the last one counts.
class OptionTable {
 public:
  /// Judges a text and keeps what it says. An error's message tells what is wrong; parse() puts the name before it.
  using Read = std::function<Result<void>(const std::string& text)>;

  /// What is added from here on stands under `title` in the help.
  void group(std::string title) { group_ = std::move(title); }
  /// `names` as in "-b,--minbytes"; the first long one is that of messages.
  void add(std::string names, std::string type, std::string help, Read read);
  /// One without a value.
  void add_flag(std::string names, std::string help, bool& to);
  /// An option of nccl-tests that is not here, not shown in the help: refused with `why`, whatever its value.
  void explain(std::string names, std::string why);
  /// What concerns several options: called after all of them have been read, in the order of the calls.
  void rule(std::function<Result<void>()> judge) { rules_.push_back(std::move(judge)); }

  /// Reads them all. Returns what to print before the program ends (help, version), or nothing.
  [[nodiscard]] Result<std::optional<std::string>> parse(int argc, char** argv, const std::string& purpose,
                                                         const std::string& footer) const;

 private:
  struct Option {
    std::string names;
    std::string type;
    std::string help;
    std::string group;
    Read read;
    bool* flag = nullptr;
  };
  [[nodiscard]] std::vector<std::string> normalized(int argc, char** argv) const;

  std::string group_;
  std::vector<Option> options_;
  std::vector<std::function<Result<void>()>> rules_;
};

}  // namespace ddrun::bench
