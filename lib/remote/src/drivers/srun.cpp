#include "ddrun/remote/srun.hpp"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/io_context.hpp>
#include <new>
#include <optional>

#include "ddrun/base/alarm.hpp"
#include "ddrun/base/environment.hpp"
#include "ddrun/base/messages.hpp"
#include "ddrun/base/proc.hpp"
#include "ddrun/base/shutdown_timeouts.hpp"
#include "ddrun/base/text.hpp"
#include "ddrun/base/unique_fd.hpp"
#include "ddrun/helper/run.hpp"
#include "ddrun/process/child_watcher.hpp"
#include "ddrun/process/launcher.hpp"
#include "ddrun/process/signals.hpp"

namespace ddrun::remote {

struct SrunStep {
  char job[32] = {};
  char name[64] = {};  ///< empty: not started, or ended
};

namespace {

using Args = std::vector<std::string>;

/// Slurm's commands return within milliseconds unless the controller is down.
constexpr std::chrono::seconds command_timeout{10};
constexpr std::size_t max_output_bytes = 16 << 20;

/// Variation of a signal's delivery time to the agents.
constexpr std::chrono::milliseconds delivery_jitter{500};

/// The output of a Slurm command; nullopt if it fails or times out. Blocks for at most `command_timeout`.
std::optional<std::string> run_command(const Args& args) {
  auto output = helper::run(args, {command_timeout, max_output_bytes});
  if (!output || !output->succeeded()) return std::nullopt;
  return std::move(output->out);
}

/// The id of our step, "123.4", found by its name; empty until it exists.
std::string step_id(const std::string& job, std::string_view name) {
  const auto list = run_command({"squeue", "--noheader", "--steps", concat("--jobs=", job), "--format=%i|%j"});
  for (const std::string& line : split(list.value_or(""), '\n')) {
    const auto bar = line.find('|');
    if (bar != std::string::npos && trim(std::string_view(line).substr(bar + 1)) == name) {
      return std::string(trim(std::string_view(line).substr(0, bar)));
    }
  }
  return {};
}

bool is_slurm(pid_t process) {
  const auto name = process > 0 ? read_small_file(concat("/proc/", static_cast<int>(process), "/comm")) : std::nullopt;
  return name && name->starts_with("slurm");
}

Args srun_args(const SrunOptions& options, const StdinSpec& input, std::string_view name) {
  const std::string nodes = std::to_string(options.nodes);
  // One task per node with all of the job's resources there. A failed task does not end the others: the agents decide
  // that.
  Args args = {"srun",
               concat("--nodes=", nodes),
               concat("--ntasks=", nodes),
               "--ntasks-per-node=1",
               "--kill-on-bad-exit=0",
               "--export=ALL",
               concat("--job-name=", name)};
  // An agent must not be bound to one task's CPUs; without the affinity plugin srun rejects the option.
  const std::string configuration = run_command({"scontrol", "show", "config"}).value_or("");
  const auto plugin = configuration.find("TaskPlugin ");
  const std::string_view line = std::string_view(configuration).substr(std::min(plugin, configuration.size()));
  if (line.substr(0, line.find('\n')).find("affinity") != std::string_view::npos) args.emplace_back("--cpu-bind=none");
  // The enclosing step holds the CPUs.
  if (options.in_step) args.emplace_back("--overlap");
  if (input.kind == StdinSpec::Kind::none) args.emplace_back("--input=none");
  else if (input.kind == StdinSpec::Kind::rank && input.rank == 0) args.emplace_back("--input=0");
  return args;
}

/// Removes variables about the script's tasks and terminal, which srun would read as options.
void clean_environment() {
  for (const char* name :
       {"SLURM_PTY_PORT",       "SLURM_PTY_WIN_COL",     "SLURM_PTY_WIN_ROW",     "SLURM_NTASKS",
        "SLURM_NPROCS",         "SLURM_NTASKS_PER_NODE", "SLURM_NTASKS_PER_CORE", "SLURM_NTASKS_PER_SOCKET",
        "SLURM_NTASKS_PER_GPU", "SLURM_TASKS_PER_NODE",  "SLURM_CPUS_PER_TASK",   "SRUN_CPUS_PER_TASK",
        "SLURM_GPUS_PER_TASK",  "SLURM_TRES_PER_TASK",   "SLURM_GPU_BIND",        "SLURM_CPU_BIND",
        "SLURM_DISTRIBUTION",   "SLURM_LABELIO",         "SLURM_KILL_BAD_EXIT",   "SLURM_MPI_TYPE"}) {
    ::unsetenv(name);
  }
}

/// Runs srun as a child and forwards signals to the agents.
class Srun {
 public:
  Srun(const LaunchSpec& spec, const SrunOptions& options, SrunStep* step, process::AgentContext& context)
      : spec_(spec),
        options_(options),
        step_(step),
        context_(context),
        watcher_(
            io_.get_executor(), [this](const process::ChildEnd& end) { on_end(end); }, [] {}),
        signals_(io_.get_executor(), context_,
                 {[this](const process::SignalMessage& message) { forward_signal(message); },
                  [this](pid_t first) { watcher_.reap(first); },
                  [this](const char* /*name*/, pid_t /*pid*/) { signal_agents(SIGTERM); }}),
        repeat_(io_.get_executor()) {}

  Result<int> run() {
    Args args = srun_args(options_, spec_.stdin_, name_);
    args.push_back(own_program());
    if (args.back().empty()) return fail(Errc::unavailable, "cannot find out which file ddrun is");
    args.insert(args.end(), options_.arguments.begin(), options_.arguments.end());
    say(Level::info, concat("starting an agent on each of ", options_.nodes, " nodes of Slurm job ", job_));
    auto launcher = TRY(process::Launcher::create());
    TRY(watcher_.open());
    TRY(signals_.open(spec_.stop.ending_signals, spec_.stop.grace + shutdown::srun_margin));
    srun_ = TRY(start(launcher, args));
    watcher_.watch(srun_.pid, srun_.pidfd.get());
    if (step_ != nullptr) {
      job_.copy(step_->job, sizeof step_->job - 1);
      name_.copy(step_->name, sizeof step_->name - 1);
    }
    io_.run();
    if (code_) return *code_;
    return fail(Errc::unavailable,
                "ddrun has no event to wait for before srun has ended: a system call that it needs is denied");
  }

 private:
  Result<process::Spawned> start(process::Launcher& launcher, Args& args) const {
    const std::string program = find_in_path(args[0]);
    if (program.empty()) return fail_errno(Errc::not_found, "cannot start srun", ENOENT);
    std::vector<char*> argv;
    argv.reserve(args.size() + 1);
    for (std::string& word : args) argv.push_back(word.data());
    argv.push_back(nullptr);
    const UniqueFd no_input(context_.stdin_usable ? -1 : ::open("/dev/null", O_RDONLY | O_CLOEXEC));
    process::SpawnPlan plan;
    plan.program = program.c_str();
    plan.argv = argv.data();
    plan.environment = environ;
    plan.standard_in = no_input.get();
    return launcher.spawn(plan);
  }

  void on_end(const process::ChildEnd& end) {
    if (step_ != nullptr) step_->name[0] = '\0';
    code_ = shell_code(end.status);
    io_.stop();
  }

  void forward_signal(const process::SignalMessage& message) {
    if (code_) return;  // srun is reaped
    // A copy of a signal that Slurm sent to each process, srun too; or a SIGCONT for this process alone.
    const bool from_sweeper = message.sender == context_.shared->sweeper_pid;
    if (spec_.stop.ending_signals.contains(message.signal)) {
      if ((from_sweeper || is_slurm(message.sender)) && slurm_ends_job()) return;
      if (first_signal_ == 0) {
        first_signal_ = message.signal;
        signal_agents(message.signal);
        first_signal_at_ = Clock::now();
      } else if (message.at_once) {
        repeat_.set(first_signal_at_ + process::RepeatedSignal::duplicate_window + delivery_jitter,
                    [this] { signal_agents(first_signal_); });
      }
    } else if (!from_sweeper && (message.signal == SIGUSR1 || message.signal == SIGUSR2 || message.signal == SIGCONT)) {
      ::kill(srun_.pid, message.signal);  // srun forwards these
    }
  }

  /// Then Slurm signals all processes of the job, also the agents and srun.
  [[nodiscard]] bool slurm_ends_job() const {
    const auto state = run_command({"squeue", "--noheader", concat("--jobs=", job_), "--format=%T"});
    return state && trim(*state) != "RUNNING";
  }

  /// By scancel: srun would turn SIGTERM and the like into SIGKILL.
  void signal_agents(int signal) {
    const std::string id = step_id(job_, name_);
    say(Level::info, concat("passing ", signal_name(signal), " on to the agents", id.empty() ? "" : " of step ", id));
    const bool sent =
        !id.empty() && run_command({"scancel", concat("--signal=", signal_name(signal).substr(3)), id}).has_value();
    if (!sent) ::kill(srun_.pid, SIGTERM);  // srun still waits for its nodes, or the controller does not answer
  }

  const LaunchSpec& spec_;
  const SrunOptions& options_;
  SrunStep* step_;
  process::AgentContext& context_;
  const std::string job_{variable("SLURM_JOB_ID").value_or(variable("SLURM_JOBID").value_or(""))};
  const std::string name_ =
      concat("ddrun-", static_cast<int>(::getpid()), "-", Clock::now().time_since_epoch().count());
  boost::asio::io_context io_{1};
  process::ChildWatcher watcher_;
  process::SignalReceiver signals_;
  Alarm repeat_;  ///< of the first ending signal
  process::Spawned srun_;
  std::optional<int> code_;  ///< srun's exit code, once it has ended
  int first_signal_ = 0;     ///< the first ending signal; 0: none yet
  Clock::time_point first_signal_at_;
};

}  // namespace

SrunStep* share_srun_step() {
  if (::getenv("SLURM_JOB_ID") == nullptr) return nullptr;
  void* page = ::mmap(nullptr, sizeof(SrunStep), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  return page != MAP_FAILED ? new (page) SrunStep : nullptr;
}

Result<int> run_srun(const LaunchSpec& spec, const SrunOptions& options, SrunStep* step,
                     process::AgentContext& context) {
  ::setenv("DDRUN_STARTED_BY_SRUN", options.started_as.empty() ? "1" : options.started_as.c_str(), 1);
  clean_environment();
  return Srun(spec, options, step, context).run();
}

void stop_orphaned_step(const SrunStep* step) {
  if (step == nullptr || step->name[0] == '\0') return;
  const std::string id = step_id(step->job, step->name);
  if (id.empty()) return;
  say_error(concat("ending the agents of Slurm step ", id));
  [[maybe_unused]] const auto sent = run_command({"scancel", "--signal=TERM", id});
}

}  // namespace ddrun::remote
