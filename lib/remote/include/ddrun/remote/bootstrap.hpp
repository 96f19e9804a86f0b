#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ddrun/base/result.hpp"
#include "ddrun/spec/launch_spec.hpp"

namespace ddrun::remote {

/// The identity of this build: the version and the linker's build id (the commit if there is none). Letters, digits and
/// ".+-" only.
[[nodiscard]] std::string build_id(const char* version, const char* commit);

/// A host's part of the job, without the secret. Sent through the ssh connection and never on a command line: it can be
/// long and is private to that host.
struct Bootstrap {
  std::vector<std::string> args;  ///< the command line: options as "--name=value", "--", the program and its arguments
  std::string directory;          ///< the user's working directory
  bool directory_needed = true;   ///< false: --chdir is absolute
  std::string started_as;         ///< LaunchSpec::started_as of the user's ddrun
  std::vector<std::pair<std::string, std::string>> variables;  ///< -x
  std::string job_id;
  int node_rank = 0;  ///< index of the host
  bool runs_coordinator = false;
  int first_round_nodes = 0;           ///< RendezvousSpec::first_round_nodes
  int node_count = 1;                  ///< hosts of the job
  int min_nodes = 1;                   ///< minimum of hosts
  int max_nodes = 1;                   ///< further hosts are spares
  int slots = 0;                       ///< of this host; 0: not given
  std::vector<Endpoint> coordinators;  ///< for the coordinator's host: the address to listen on
  bool reads_input = false;            ///< this host receives the user's standard input
  bool color = false;
  bool all_progress = false;   ///< each state of a progress bar is sent, not only the last one
  bool one_console = false;    ///< stdout and stderr are the same file, so their lines are kept in order
  int ending_signal = 15;      ///< signal for its ddrun when the connection is lost
  Milliseconds grace{30'000};  ///< time limit for that
  bool operator==(const Bootstrap&) const = default;
};

[[nodiscard]] std::string encode(const Bootstrap& bootstrap);
/// Fails with `protocol`; the message never quotes the input, which may contain secrets.
[[nodiscard]] Result<Bootstrap> decode_bootstrap(std::string_view bytes);

}  // namespace ddrun::remote
