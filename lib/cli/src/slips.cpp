#include <algorithm>
#include <array>

#include "ddrun/base/text.hpp"
#include "ddrun/cli/values.hpp"
#include "settings.hpp"

// Slips that are legal command lines or environments: a warning, an error where the workers' jobs would collide, or a
// hint once the job has failed.

namespace ddrun::cli {

namespace {

constexpr std::string_view own_prefix = "DDRUN_";

/// Variables of ddrun, its programs, package, examples, scripts and tests that belong to no option, without the prefix.
/// One with a '_' at its end stands for all that begin so.
constexpr std::string_view other_variables =
    "ALONE_SECONDS ATTEMPT_DIR BUILD_ CCACHE CHAOS_ CUDA_LIBRARY DEBIAN_ ENDPOINTS_ ETCD_USER EXECUTED_NOTEBOOK "
    "EXIT_CODE GPU_TIMEOUT HOSTS_ JOBS JOB_TAG KUBERNETES_API LINK LISTEN_PORT LOG_TAIL NCCL_LIBRARY NET_ "
    "NO_CGROUP NO_PIDFD NO_PROC_CHILDREN NVCC PICTURE PROGRAM PYTHONS PYTHON_JOB ROUND SCRIPT_LOGS SECRET "
    "SERVICE_ACCOUNT SIMULATION_ SOAK_ SSH_SILENCE STARTED_BY_SRUN TESTS_LACK TEST_ TORCH_ VERSION WRONG_STEP";

constexpr std::string_view launchers = "torchrun deepspeed mpirun mpiexec srun ddrun";
constexpr std::string_view launcher_modules =
    "torch.distributed.run torch.distributed.launch ddrun accelerate.commands.launch";

/// The launcher that the program is; empty if it is none.
std::string launcher_name(const ProgramSpec& program) {
  const std::string_view name = std::string_view(program.name).substr(program.name.rfind('/') + 1);
  const auto& args = program.args;
  if (program.kind == ProgramKind::python_module)
    return has_word(launcher_modules, name) ? program.name : std::string();
  if (has_word(launchers, name)) return std::string(name);
  if (name == "accelerate" && !args.empty() && args[0] == "launch") return "accelerate launch";
  const bool runs_module = name.starts_with("python") && args.size() > 1 && args[0] == "-m";
  return runs_module && has_word(launcher_modules, args[1]) ? concat("python -m ", args[1]) : std::string();
}

/// Their ranks have ports of their own; those of the others meet at the same one.
constexpr std::string_view independent_launchers = "mpirun mpiexec srun ddrun";

/// Whether `args` make the launcher one of several machines', or leave the ranks to ddrun.
bool runs_once_per_worker(const std::vector<std::string>& args) {
  std::string line = concat(' ', join(args, " "), ' ');
  std::ranges::replace(line, '_', '-');
  std::ranges::replace(line, '=', ' ');
  const auto has = [&](std::string_view words) { return line.find(words) != std::string::npos; };
  const auto several = [&](const std::string& option) { return has(option) && !has(option + "1 "); };
  return has(" --machine-rank ") || has(" --node-rank ") || has(" --standalone ") || has(" --num-processes 1 ") ||
         several(" --num-machines ") || several(" --nnodes ") || several(" --num-nodes ");
}

/// "-n 2 went to train.py; …": the first option of ddrun in the program's arguments that `is_meant`; empty: none.
template <class Predicate>
std::string find_misplaced(const ProgramSpec& program, Predicate is_meant) {
  const std::span<const std::string> args = program.args;
  if (!launcher_name(program).empty()) return {};
  for (std::size_t at = 0; at < args.size() && args[at] != "--"; ++at) {
    if (!args[at].starts_with('-')) continue;
    const auto typed = option_at(args.subspan(at));
    if (!typed) continue;
    const Option* const option = typed->option;
    ParsedOptions scratch;
    // Setting --env-file would read the file.
    if (!option->is_setting() || option->name == "env-file" || !option->set(scratch, typed->value)) continue;
    if (!is_meant(*option, args[at].substr(0, args[at].find('=')))) continue;
    return concat(typed->words == 2 ? concat(args[at], ' ', shell_quote(args[at + 1])) : args[at], " went to ",
                  program.name, "; ddrun's options come before it");
  }
  return {};
}

}  // namespace

void warn_unknown_variables(const Environment& environment, std::vector<std::string>& warnings) {
  // A ddrun in a worker, or started by srun, inherits what the first one has warned about.
  if (environment.has("DDRUN_ROUND") || environment.has("DDRUN_STARTED_BY_SRUN")) return;
  std::vector<std::string> known;
  for (const std::string_view entry : environment.entries()) {
    const std::string name(entry.substr(0, entry.find('=')));
    if (!name.starts_with(own_prefix) || name.size() + 1 >= entry.size()) continue;
    const std::string word = name.substr(own_prefix.size());
    if (word.empty() || has_word(other_variables, word)) continue;
    if (has_word(other_variables, word.substr(0, word.find('_') + 1))) continue;
    if (known.empty()) {
      known.emplace_back("SECRET");
      for (const Option* option : all_options()) {
        const auto names = variables_of(*option);
        if (!names.empty()) known.push_back(names.front().substr(own_prefix.size()));
      }
    }
    if (std::find(known.begin(), known.end(), word) != known.end()) continue;
    const std::string near = nearest(word, known);
    warnings.push_back(concat(
        name, " is not known to ddrun; ",
        near.empty() ? "its settings are in 'ddrun config show'" : concat("did you mean ", own_prefix, near, "?")));
  }
}

void warn_misplaced(const ParsedProgram& parsed, std::vector<std::string>& warnings) {
  const ProgramSpec& program = parsed.options.program;
  const LaunchSpec& spec = parsed.options.spec;
  const std::string& hosts = spec.remote.hosts;
  const bool is_path = program.kind != ProgramKind::executable || program.name.find('/') != std::string::npos;
  if (!hosts.empty() && hosts.find(',') == std::string::npos && !is_path && option_at(program.args)) {
    warnings.push_back(concat(program.name, " is taken for the program; hosts are separated by commas: --hosts=", hosts,
                              ",", program.name));
  }
  const bool is_counted = parsed.settings.of("nproc-per-node").source != Source::standard;
  if (is_counted || spec.rendezvous.several_machines() || spec.remote.asked_for()) return;
  // The -n of a program from PATH is often its own: nice -n 10.
  const bool takes_short = is_path || program.name.starts_with("python");
  std::string warning = find_misplaced(program, [&](const Option& option, std::string_view name) {
    return option.name == "nproc-per-node" && (takes_short || name.starts_with("--"));
  });
  if (!warning.empty()) warnings.push_back(std::move(warning));
}

Result<void> check_launcher(const ProgramSpec& program, const LaunchSpec& spec, bool is_meant,
                            std::vector<std::string>& warnings) {
  const auto& args = program.args;
  const std::string count = count_option(program.nproc);
  if (count.empty() && !spec.rendezvous.several_machines() && !spec.remote.asked_for()) return {};
  const std::string launcher = launcher_name(program);
  if (launcher.empty()) return {};
  const auto script = std::find_if(args.begin(), args.end(), [](const auto& word) { return word.ends_with(".py"); });
  const std::string text =
      concat(launcher, " is a launcher too, and each worker starts a job of its own; write: ddrun ", count,
             script == args.end() ? "PROGRAM" : shell_quote(*script));
  const bool collides = !has_word(independent_launchers, launcher.substr(launcher.rfind(' ') + 1));
  if (collides && !is_meant && program.nproc.kind == NprocSpec::Kind::count && !count.empty() &&
      !runs_once_per_worker(args))
    return bad(concat(text, ", or a -- before it if that is meant"));
  warnings.push_back(text);
  return {};
}

std::string misplaced_option(const ProgramSpec& program, std::span<const std::string> messages) {
  const auto rejects = [](std::string_view message, const std::string& option) {
    constexpr std::array<std::string_view, 6> words{"nrecognized", "nknown",     "o such option",
                                                    "nexpected",   "t expected", "not used"};
    const auto has = [&](std::string_view text) { return message.find(text) != std::string_view::npos; };
    return (has(" " + option) || has("'" + option)) && std::any_of(words.begin(), words.end(), has);
  };
  return find_misplaced(program, [&](const Option& option, const std::string& name) {
    return messages.empty() ? option.pet
                            : std::any_of(messages.begin(), messages.end(),
                                          [&](const std::string& message) { return rejects(message, name); });
  });
}

}  // namespace ddrun::cli
