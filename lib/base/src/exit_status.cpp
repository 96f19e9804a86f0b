#include "ddrun/base/exit_status.hpp"

#include <signal.h>
#include <string.h>
#include <sys/wait.h>

#include <algorithm>
#include <cctype>

#include "ddrun/base/text.hpp"

namespace ddrun {

ExitStatus exit_status_from_wait(int wait_status) {
  if (WIFSIGNALED(wait_status)) {
    return Signaled{WTERMSIG(wait_status), WCOREDUMP(wait_status) != 0};
  }
  return Exited{WEXITSTATUS(wait_status)};
}

std::string signal_name(int signal) {
  if (const char* abbreviation = ::sigabbrev_np(signal)) return std::string("SIG") + abbreviation;
  if (signal == SIGRTMIN) return "SIGRTMIN";
  if (signal > SIGRTMIN && signal <= SIGRTMAX) return "SIGRTMIN+" + std::to_string(signal - SIGRTMIN);
  return "signal " + std::to_string(signal);
}

int signal_number(std::string_view name) {
  if (const auto number = whole_number<int>(name)) return *number > 0 && *number <= SIGRTMAX ? *number : 0;
  std::string wanted(name);
  std::transform(wanted.begin(), wanted.end(), wanted.begin(), [](unsigned char c) { return std::toupper(c); });
  if (wanted.rfind("SIG", 0) == 0) wanted.erase(0, 3);
  for (int signal = 1; signal <= SIGRTMAX; ++signal) {
    if (signal_name(signal) == "SIG" + wanted) return signal;
  }
  return 0;
}

namespace {

/// The usual reason for this signal; null where the name is enough.
const char* usual_reason(int signal) {
  switch (signal) {
    case SIGSEGV: return "invalid memory access";
    case SIGBUS: return "bus error: often a full /dev/shm or a truncated mapped file";
    case SIGABRT: return "the program aborted itself";
    case SIGFPE: return "arithmetic error";
    case SIGILL: return "illegal instruction: built for another CPU?";
    case SIGPIPE: return "wrote to a closed pipe";
    case SIGXCPU: return "CPU time limit";
    case SIGXFSZ: return "file size limit";
    case SIGSYS: return "forbidden system call";
    default: return nullptr;
  }
}

}  // namespace

std::string describe(const ExitStatus& status) {
  if (const auto* exited = std::get_if<Exited>(&status)) return "exited with code " + std::to_string(exited->code);
  const auto& signaled = std::get<Signaled>(status);
  std::string text = "killed by " + signal_name(signaled.signal);
  if (const char* reason = usual_reason(signaled.signal)) text += std::string(" (") + reason + ")";
  if (signaled.core_dumped) text += ", core dumped";
  return text;
}

int shell_code(const ExitStatus& status) {
  if (const auto* exited = std::get_if<Exited>(&status)) return exited->code;
  return exit_codes::signal_base + std::get<Signaled>(status).signal;
}

}  // namespace ddrun
