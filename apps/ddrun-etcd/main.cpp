// ddrun-etcd: parses options and serves its parent process on stdin and stdout.

#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "ddrun/argv/argv.hpp"
#include "ddrun/base/build_info.hpp"
#include "ddrun/base/io_context.hpp"
#include "ddrun/base/text.hpp"
#include "ddrun/base/unique_fd.hpp"
#include "ddrun/etcd/serve.hpp"

using namespace ddrun;

namespace {

constexpr int exit_usage = 2;
constexpr argv::Option known[] = {{"endpoints", "", "HOST:PORT,...", "The members of etcd; port 2379 if none is given"},
                                  {"tls", "", "", "etcd wants TLS (https)"},
                                  {"cacert", "", "FILE", "PEM file of trusted CAs, instead of the system's"},
                                  {"cert", "", "FILE", "PEM file with our certificate and its chain"},
                                  {"key", "", "FILE", "PEM file with its key"},
                                  {"candidates", "", "N", "About how many machines the job has (default: 8)"},
                                  {"version", "", "", "Print the version", true},
                                  {"help", "h", "", "Print this help", true}};

std::string help() {
  return concat(R"(Usage: ddrun-etcd --endpoints=HOST:PORT,... [options]

Holds the lease of a job in etcd 3.4 or newer: which machine leads it. ddrun
starts this program, speaks to it on its stdin and stdout
(lib/lease/PROTOCOL.md) and closes its stdin at the end, which gives the lease
back.

)",
                argv::describe(known), R"(
Environment:
  DDRUN_ETCD_USER  NAME:PASSWORD, if etcd wants a user

Exit status: 0 at the end of stdin; 1 etcd cannot be used; 2 wrong usage, or a
line that is not in the protocol.
Manual: man ddrun-etcd
)");
}

constexpr const char* user_variable = "DDRUN_ETCD_USER";

bool write_line(int fd, std::string text) {
  text += '\n';
  return write_all(fd, text.data(), text.size());
}

int wrong_usage(std::string_view why) {
  write_line(STDERR_FILENO, concat("ddrun-etcd: error: ", why));
  return exit_usage;
}

/// The options, or the exit status.
std::variant<etcd::EtcdOptions, int> parse(int argc, char** argv) {
  const std::vector<std::string> arguments(argv + std::min(argc, 1), argv + argc);
  const auto typed = argv::read({known, argv::Positionals::anywhere, "ddrun-etcd --help"}, arguments);
  if (!typed) return wrong_usage(typed.error().message);
  if (typed->action != nullptr) {
    const std::string text = typed->action->name == "help" ? help() : concat("ddrun-etcd ", build_info().version, '\n');
    return write_all(STDOUT_FILENO, text.data(), text.size()) ? 0 : 1;
  }
  if (!typed->positionals.empty()) return wrong_usage(concat("unknown word '", typed->positionals.front(), "'"));
  etcd::EtcdOptions options;
  for (const std::string& list : typed->values("endpoints")) {
    for (std::string& one : split(list, ',')) {
      if (one.empty()) return wrong_usage("--endpoints: a name is empty; give HOST:PORT,...");
      options.endpoints.push_back(std::move(one));
    }
  }
  if (options.endpoints.empty()) return wrong_usage("--endpoints is required");
  options.tls = typed->has("tls");
  options.cacert = typed->last("cacert");
  options.cert = typed->last("cert");
  options.key = typed->last("key");
  const auto number = [](const std::string& text) { return parse_integer(text, 1, 1'000'000); };
  if (auto read = typed->read("candidates", options.candidates, number); !read)
    return wrong_usage(read.error().message);
  if (const char* const user = ::getenv(user_variable)) {
    // Not on the command line, which other users can read.
    const std::string_view text = user;
    const auto colon = text.find(':');
    if (colon == 0 || colon == std::string_view::npos) {
      return wrong_usage(concat(user_variable, " is not NAME:PASSWORD"));
    }
    options.user = text.substr(0, colon);
    options.password = text.substr(colon + 1);
    ::unsetenv(user_variable);  // not inherited by child processes
  }
  return options;
}

}  // namespace

int main(int argc, char** argv) {
  fill_closed_standard_streams();
  // Ignored: the parent closes stdin at the end. A signal to the whole process group must not end the lease before the
  // parent is done.
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGPIPE}) std::signal(signal, SIG_IGN);
  const auto parsed = parse(argc, argv);
  if (const auto* status = std::get_if<int>(&parsed)) return *status;
  return run_main(1, [&] {
    const auto end = etcd::serve(std::get<etcd::EtcdOptions>(parsed), STDIN_FILENO, STDOUT_FILENO);
    if (!end.why.empty()) write_line(STDERR_FILENO, end.why);
    return end.status;
  });
}
