#include "job_preload.hpp"

#include <array>
#include <string_view>
#include <utility>
#include <vector>

#include "ddrun/base/messages.hpp"
#include "ddrun/base/text.hpp"
#include "ddrun/worker_env/worker_environment.hpp"
#include "worker_json.hpp"

namespace ddrun::agent {

namespace {

/// From the start of an attempt until workers for the next one are forked: the first second belongs to the workers.
constexpr std::chrono::seconds refill_delay{1};

/// What differs between workers or attempts. The server has none of it, and says which module asks for it.
constexpr std::array<std::string_view, 16> worker_variables{"RANK",
                                                            "LOCAL_RANK",
                                                            "WORLD_SIZE",
                                                            "LOCAL_WORLD_SIZE",
                                                            "GROUP_RANK",
                                                            "GROUP_WORLD_SIZE",
                                                            "ROLE_RANK",
                                                            "ROLE_WORLD_SIZE",
                                                            "MASTER_ADDR",
                                                            "MASTER_PORT",
                                                            "TORCHELASTIC_RESTART_COUNT",
                                                            "TORCHELASTIC_ERROR_FILE",
                                                            "TORCHELASTIC_TIMER_FILE",
                                                            "DDRUN_SEED",
                                                            "DDRUN_ATTEMPT_DIR",
                                                            "DDRUN_ROUND"};

}  // namespace

JobPreload::JobPreload(Job& job, logs::Output& output, process::JobCgroup& cgroup)
    : job_(job),
      output_(output),
      cgroup_(cgroup),
      spawner_(job.io.get_executor(), job.launcher),
      refill_(job.io.get_executor()) {}

bool JobPreload::may_restart() const {
  return job_.spec.restart.max_restarts > 0 || job_.spec.rendezvous.several_machines();
}

void JobPreload::begin(Done done) {
  refill_.cancel();
  cgroup_.renew();  // standby workers enter it
  const auto on_ready = [done = std::move(done)](const Result<void>& ready) {
    if (ready) return done({});
    done(event::SpawnFailed{ready.error().message, exit_code(ready.error().code)});
  };
  if (!spawner_.needs_server()) return fork(on_ready);
  if (auto started = start_server(on_ready); !started) on_ready(started);
}

Result<void> JobPreload::start_server(std::function<void(const Result<void>&)> on_ready) {
  const PreparedProgram& program = *job_.prepared.preloading();
  const std::vector<std::string>& modules = program.command.preload;
  auto streams = TRY(output_.open_extra_streams(job_.label("preload"), true));
  std::vector<std::string> names(worker_variables.begin(), worker_variables.end());
  if (program.command.virtual_local_rank) names.insert(names.end(), {"CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"});
  auto environment =
      TRY(job_.environment_without({names.begin(), names.end()}, program.command, job_.ranks_of(program)));
  std::vector<char*> entries;
  for (std::string& entry : environment) entries.push_back(entry.data());
  entries.push_back(nullptr);
  auto words = worker_env::worker_argv(program.command, 0, 0, program.python);
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);

  process::SpawnPlan plan;
  plan.program = program.program.c_str();
  plan.argv = argv.data();
  plan.environment = entries.data();
  plan.directory = program.command.chdir ? program.directory.c_str() : nullptr;
  plan.standard_out = streams.out.get();
  plan.standard_err = streams.err.get();
  say(Level::info, concat("importing ", join(modules, ", "), " (--preload)"));
  return spawner_.start_server(plan, modules, names, cgroup_.path(),
                               [this, on_ready = std::move(on_ready)](const Result<void>& imported) {
                                 if (imported) record_import();
                                 output_.async_end_attempt([this, on_ready, imported] {
                                   if (imported) fork(on_ready);
                                   else on_ready(imported);
                                 });
                               });
}

void JobPreload::record_import() {
  JobResult& result = job_.record.result();
  const int before = result.preload ? result.preload->imports : 0;
  const std::vector<std::string>& modules = job_.prepared.preloading()->command.preload;
  result.preload = {modules, spawner_.import_time(), spawner_.import_memory(), before + 1};
  say(Level::info, concat("imported ", join(modules, ", "), " in ", format_duration(spawner_.import_time()), ", ",
                          format_size(static_cast<std::uint64_t>(spawner_.import_memory()) * 1024)));
  Json event = {{"event", "preloaded"}, {"round", job_.ranks.round}, {"host", result.host}};
  event.update(preload_json(*result.preload));
  job_.events_file.write_line(one_line(event));
}

void JobPreload::fork(std::function<void(const Result<void>&)> on_ready) {
  spawner_.fork_workers(job_.prepared.preloading()->workers, !may_restart(), std::move(on_ready));
}

void JobPreload::on_workers_started() {
  if (!may_restart()) return;
  refill_.set(Clock::now() + refill_delay, [this] { fork([](const Result<void>&) {}); });
}

}  // namespace ddrun::agent
