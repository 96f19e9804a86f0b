#pragma once

#include <unistd.h>

#include <string>
#include <vector>

#include "ddrun/process/launcher.hpp"

namespace ddrun::test {

/// For Launcher::spawn(): on a busy machine a new session waits for the scheduler, longer than `first_exec_wait`.
inline constexpr Milliseconds exec_limit{20'000};

/// Starts the test worker with these verbs as arguments, otherwise as in `plan`.
inline Result<process::Spawned> spawn_worker(process::Launcher& launcher, std::vector<std::string> arguments,
                                             process::SpawnPlan plan = {}) {
  arguments.insert(arguments.begin(), DDRUN_TEST_WORKER);
  std::vector<char*> argv;
  for (auto& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);
  if (plan.program == nullptr) plan.program = DDRUN_TEST_WORKER;
  plan.argv = argv.data();
  plan.environment = environ;
  return launcher.spawn(plan, exec_limit);
}

}  // namespace ddrun::test
