#pragma once

#include <string>
#include <string_view>
#include <variant>

namespace ddrun {

/// A process that called exit(code), 0 to 255.
struct Exited {
  int code = 0;
  bool operator==(const Exited&) const = default;
};

/// A process that a signal ended. Never folded into an exit code: `exit 9` and SIGKILL are different ends.
struct Signaled {
  int signal = 0;
  bool core_dumped = false;
  bool operator==(const Signaled&) const = default;
};

using ExitStatus = std::variant<Exited, Signaled>;

/// From what wait(2) reports.
[[nodiscard]] ExitStatus exit_status_from_wait(int wait_status);

/// "SIGKILL", "SIGRTMIN+3"; "signal 77" for a number without a name.
[[nodiscard]] std::string signal_name(int signal);

/// The number for "SIGTERM", "TERM", "term" or "15"; 0 if there is no such signal.
[[nodiscard]] int signal_number(std::string_view name);

/// A short sentence for people: "exited with code 3", "killed by SIGSEGV (invalid memory reference), core dumped".
[[nodiscard]] std::string describe(const ExitStatus& status);

/// What a shell would see: the code, or 128 + signal.
[[nodiscard]] int shell_code(const ExitStatus& status);

}  // namespace ddrun
