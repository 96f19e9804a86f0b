#pragma once

#include <string>
#include <string_view>
#include <variant>

namespace ddrun {

/// A process that exited with a code, 0 to 255.
struct Exited {
  int code = 0;
  bool operator==(const Exited&) const = default;
};

/// A process that was killed by a signal. Never folded into an exit code: exit(9) and SIGKILL differ.
struct Signaled {
  int signal = 0;
  bool core_dumped = false;
  bool operator==(const Signaled&) const = default;
};

using ExitStatus = std::variant<Exited, Signaled>;

/// Of a wait status from wait(2).
[[nodiscard]] ExitStatus exit_status_from_wait(int wait_status);

/// "SIGKILL", "SIGRTMIN+3"; "signal 77" for a number without a name.
[[nodiscard]] std::string signal_name(int signal);

/// The number for "SIGTERM", "TERM", "term" or "15"; 0 if there is no such signal.
[[nodiscard]] int signal_number(std::string_view name);

/// For messages: "exited with code 3", "killed by SIGSEGV (invalid memory reference), core dumped".
[[nodiscard]] std::string describe(const ExitStatus& status);

/// The code as a shell reports it: the exit code, or 128 + signal.
[[nodiscard]] int shell_code(const ExitStatus& status);

/// ddrun's own exit codes. docs/options.md has this table for users.
///
///     0         all workers ended with a success code
///     1 … 255   the code of the worker that failed first, as it is
///     128 + N   that worker was ended by signal N; or ddrun was told to stop by signal N
///     2         the command line, the configuration or an environment variable is wrong
///     124       --timeout
///     125       ddrun could not do its work (out of descriptors, disk full, port in use …); or all workers succeeded,
///               and not all of their output could be written
///     126       the program is there but cannot be executed
///     127       the program was not found
namespace exit_codes {
inline constexpr int success = 0;
inline constexpr int usage = 2;
inline constexpr int timed_out = 124;
inline constexpr int launcher_failed = 125;
inline constexpr int not_executable = 126;
inline constexpr int not_found = 127;
inline constexpr int signal_base = 128;
}  // namespace exit_codes

}  // namespace ddrun
