#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ddrun/base/result.hpp"
#include "ddrun/spec/launch_spec.hpp"

namespace ddrun::remote {

/// What tells this build from every other: the version, and the note by which the linker has named the program (its
/// commit where it has none). Letters, digits and ".+-" only.
[[nodiscard]] std::string build_id(const char* version, const char* commit);

/// All that one host must know to take its part in the job, but for the secret. It travels through the ssh connection,
/// never on a command line, as some of it is long and some of it is for that host alone.
struct Bootstrap {
  std::vector<std::string> args;  ///< a command line: options as "--name=value", "--", the program and its arguments
  std::string directory;          ///< where the user was
  bool directory_needed = true;   ///< false: --chdir names an absolute one
  std::string started_as;         ///< LaunchSpec::started_as, where the user was
  std::vector<std::pair<std::string, std::string>> variables;  ///< -x
  std::string job_id;
  int node_rank = 0;
  int node_count = 1;                  ///< hosts of the job
  int min_nodes = 1;                   ///< so many are enough
  int max_nodes = 1;                   ///< more are spares
  std::optional<int> slots;            ///< of this host, where the user said how many
  std::vector<Endpoint> coordinators;  ///< for the host that runs it: where it is to listen
  bool reads_input = false;            ///< the user's standard input will come
  bool color = false;
  bool one_console = false;    ///< stdout and stderr lead to the same place, and lines shall keep their order
  int ending_signal = 15;      ///< what ends its ddrun in order when the connection is lost
  Milliseconds grace{30'000};  ///< how long that may take
};

[[nodiscard]] std::string to_json(const Bootstrap& bootstrap);
/// Fails with `protocol`; the message never shows what was read: variables may be secret too.
[[nodiscard]] Result<Bootstrap> bootstrap_from_json(std::string_view text);

}  // namespace ddrun::remote
