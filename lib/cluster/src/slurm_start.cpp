#include "ddrun/cluster/agent_starter.hpp"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <new>
#include <optional>

#include "ddrun/base/duration.hpp"
#include "ddrun/base/environment.hpp"
#include "ddrun/base/exit_status.hpp"
#include "ddrun/base/messages.hpp"
#include "ddrun/base/proc.hpp"
#include "ddrun/base/shutdown_timeouts.hpp"
#include "ddrun/base/text.hpp"
#include "ddrun/base/unique_fd.hpp"
#include "ddrun/helper/run.hpp"

namespace ddrun::cluster {

namespace {

using Args = std::vector<std::string>;

/// Slurm's commands return within milliseconds unless the controller is down.
constexpr std::chrono::seconds command_timeout{10};
constexpr std::size_t max_output_bytes = 16 << 20;

/// Variation of a signal's delivery time to the agents.
constexpr std::chrono::milliseconds delivery_jitter{500};

constexpr const char* started_by_srun = "DDRUN_STARTED_BY_SRUN";

/// In the child: resets signals and executes `args`.
[[noreturn]] void exec_program(const Args& args) {
  for (int signal = 1; signal < NSIG; ++signal) ::signal(signal, SIG_DFL);
  sigset_t none;
  ::sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  std::vector<char*> argv;
  argv.reserve(args.size() + 1);
  for (const std::string& word : args) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  ::execvp(argv.front(), argv.data());
  const int error = errno;
  say_error(concat("cannot start ", args.front(), ": ", std::error_code(error, std::generic_category()).message()));
  ::_exit(error == ENOENT ? exit_codes::not_found : exit_codes::not_executable);
}

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

/// Whether Slurm ends the job: then it signals all its processes, also the agents and srun.
bool slurm_signalled_job(const std::string& job, pid_t sender) {
  const auto name = sender > 0 ? read_small_file(concat("/proc/", static_cast<int>(sender), "/comm")) : std::nullopt;
  if (!name || !name->starts_with("slurm")) return false;
  const auto state = run_command({"squeue", "--noheader", concat("--jobs=", job), "--format=%T"});
  return state && trim(*state) != "RUNNING";
}

Args srun_args(const StdinSpec& stdin_spec, const SlurmScript& script, std::string_view name) {
  const std::string nodes = std::to_string(script.nodes);
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
  if (script.in_step) args.emplace_back("--overlap");
  if (stdin_spec.kind == StdinSpec::Kind::none) args.emplace_back("--input=none");
  else if (stdin_spec.kind == StdinSpec::Kind::rank && stdin_spec.rank == 0) args.emplace_back("--input=0");
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

/// The step started by the agent process, in memory shared with the guard, which needs it if the agent is killed.
struct SharedStep {
  char job[32] = {};
  char name[64] = {};  ///< empty: not started, or ended
};

/// Runs srun as a child, forwards the guard's signals and waits for its end.
class SlurmStarter : public AgentStarter {
 public:
  SlurmStarter() {
    if (::getenv("SLURM_JOB_ID") == nullptr) return;
    void* page = ::mmap(nullptr, sizeof(SharedStep), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (page != MAP_FAILED) shared_ = new (page) SharedStep;
  }

  Result<void> prepare() override {
    if (variable(started_by_srun)) {
      return fail(Errc::unavailable,
                  "an agent that srun started takes itself for the script of the job; give --env-detect=slurm, or "
                  "--nnodes, --node-rank and --rdzv-endpoint");
    }
    ::setenv(started_by_srun, "1", 1);
    clean_environment();
    return {};
  }

  int run(const SlurmScript& script, const AgentStart& start) override {
    start_ = &start;
    job_ = variable("SLURM_JOB_ID").value_or(variable("SLURM_JOBID").value_or(""));
    name_ = concat("ddrun-", static_cast<int>(::getpid()), "-", Clock::now().time_since_epoch().count());
    Args args = srun_args(start.stdin_, script, name_);
    const std::string self = own_program();
    if (self.empty()) return fail_start("cannot find out which file ddrun is");
    args.push_back(self);
    args.insert(args.end(), start.arguments.begin(), start.arguments.end());
    say(Level::info, concat("starting an agent on each of ", script.nodes, " nodes of Slurm job ", job_));
    sigset_t sigchld;
    ::sigemptyset(&sigchld);
    ::sigaddset(&sigchld, SIGCHLD);
    ::sigprocmask(SIG_BLOCK, &sigchld, nullptr);
    sigchld_.reset(::signalfd(-1, &sigchld, SFD_CLOEXEC | SFD_NONBLOCK));
    if (!sigchld_) return fail_start("cannot watch for srun's end");
    srun_ = ::fork();
    if (srun_ < 0) return fail_start("cannot start srun: the limit of processes may be reached");
    if (srun_ == 0) {
      if (!start.stdin_usable) {
        const int null_input = ::open("/dev/null", O_RDONLY);
        ::dup2(null_input, STDIN_FILENO);
      }
      exec_program(args);
    }
    publish_step();
    start.on_started(shutdown::srun_margin);
    const int status = wait_for_srun();
    if (shared_ != nullptr) shared_->name[0] = '\0';
    return WIFEXITED(status) ? WEXITSTATUS(status) : exit_codes::signal_base + WTERMSIG(status);
  }

  void stop_orphaned_agents() override {
    if (shared_ == nullptr || shared_->name[0] == '\0') return;
    const std::string id = step_id(shared_->job, shared_->name);
    if (id.empty()) return;
    say_error(concat("ending the agents of Slurm step ", id));
    [[maybe_unused]] const auto sent = run_command({"scancel", "--signal=TERM", id});
  }

 private:
  static int fail_start(std::string_view message) {
    say_error(message);
    return exit_codes::launcher_failed;
  }

  void publish_step() {
    if (shared_ == nullptr) return;
    job_.copy(shared_->job, sizeof shared_->job - 1);
    name_.copy(shared_->name, sizeof shared_->name - 1);
  }

  /// Blocks until srun has ended; returns its wait status.
  int wait_for_srun() {
    std::array<pollfd, 3> polled{
        {{sigchld_.get(), POLLIN, 0}, {start_->guard_messages, POLLIN, 0}, {start_->sweeper_liveness, POLLIN, 0}}};
    while (true) {
      int status = 0;
      if (::waitpid(srun_, &status, WNOHANG) == srun_) return status;
      if (repeat_at_ && Clock::now() >= *repeat_at_) {
        repeat_at_.reset();
        signal_agents(first_signal_);
      }
      const int timeout = repeat_at_ ? poll_timeout(*repeat_at_) : -1;
      if (::poll(polled.data(), polled.size(), timeout) < 0) continue;
      if (polled[0].revents != 0) {
        signalfd_siginfo info{};
        [[maybe_unused]] const ssize_t n = ::read(sigchld_.get(), &info, sizeof info);
      }
      if (polled[1].revents != 0 && !handle_guard_message()) polled[1].fd = -1;
      if (polled[2].revents != 0) {
        polled[2].fd = -1;
        signal_agents(SIGTERM);
      }
    }
  }

  /// False once the guard has ended.
  bool handle_guard_message() {
    bool gone = false;
    const auto message = start_->read_guard_message(gone);
    if (gone) signal_agents(SIGTERM);
    else if (message) forward_signal(*message);
    return !gone;
  }

  void forward_signal(const ForwardedSignal& message) {
    if (start_->ending_signals.count(message.signal) != 0) {
      if (slurm_signalled_job(job_, message.sender)) return;
      if (first_signal_ == 0) {
        first_signal_ = message.signal;
        signal_agents(message.signal);
        first_signal_at_ = Clock::now();
      } else if (message.at_once && !repeat_at_) {
        repeat_at_ = first_signal_at_ + start_->repeat_interval + delivery_jitter;
      }
    } else if (message.signal == SIGUSR1 || message.signal == SIGUSR2 || message.signal == SIGCONT) {
      ::kill(srun_, message.signal);  // srun forwards these
    }
  }

  /// By scancel: srun would turn SIGTERM and the like into SIGKILL.
  void signal_agents(int signal) {
    const std::string id = step_id(job_, name_);
    say(Level::info, concat("passing ", signal_name(signal), " on to the agents", id.empty() ? "" : " of step ", id));
    const bool sent =
        !id.empty() && run_command({"scancel", concat("--signal=", signal_name(signal).substr(3)), id}).has_value();
    if (!sent) ::kill(srun_, SIGTERM);  // srun still waits for its nodes, or the controller does not answer
  }

  SharedStep* shared_ = nullptr;  ///< null if mmap() failed
  const AgentStart* start_ = nullptr;
  std::string job_;
  std::string name_;
  UniqueFd sigchld_;
  pid_t srun_ = -1;
  int first_signal_ = 0;  ///< the first ending signal; 0: none yet
  Clock::time_point first_signal_at_;
  std::optional<Deadline> repeat_at_;
};

}  // namespace

std::unique_ptr<AgentStarter> make_agent_starter() { return std::make_unique<SlurmStarter>(); }

}  // namespace ddrun::cluster
