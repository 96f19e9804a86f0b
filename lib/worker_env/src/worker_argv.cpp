#include "ddrun/worker_env/worker_argv.hpp"

#include <algorithm>
#include <string_view>

namespace ddrun::worker_env {

namespace {

constexpr std::string_view rank_mark = "${rank}";
constexpr std::string_view local_rank_mark = "${local_rank}";

std::string substitute(std::string_view text, int rank, int local_rank) {
  std::string result;
  while (true) {
    const std::size_t at = text.find("${");
    if (at == std::string_view::npos) return result.append(text);
    result.append(text.substr(0, at));
    text.remove_prefix(at);
    if (text.starts_with(rank_mark)) {
      result += std::to_string(rank);
      text.remove_prefix(rank_mark.size());
    } else if (text.starts_with(local_rank_mark)) {
      result += std::to_string(local_rank);
      text.remove_prefix(local_rank_mark.size());
    } else {
      result += "${";
      text.remove_prefix(2);
    }
  }
}

}  // namespace

std::vector<std::string> worker_argv(const ProgramSpec& program, int rank, int local_rank, const std::string& python) {
  std::vector<std::string> argv;
  argv.reserve(program.args.size() + 4);
  if (program.kind != ProgramKind::executable) {
    argv.push_back(python);
    argv.emplace_back("-u");
  }
  if (program.kind == ProgramKind::python_module) argv.emplace_back("-m");
  argv.push_back(program.name);
  for (const std::string& arg : program.args) argv.push_back(substitute(arg, rank, local_rank));
  return argv;
}

bool argv_depends_on_rank(const ProgramSpec& program) {
  return std::any_of(program.args.begin(), program.args.end(), [](const std::string& arg) {
    return arg.find(rank_mark) != std::string::npos || arg.find(local_rank_mark) != std::string::npos;
  });
}

}  // namespace ddrun::worker_env
