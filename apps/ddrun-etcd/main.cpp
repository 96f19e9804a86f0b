// ddrun-etcd: parse, serve the one who has started it, say why if it did not work.

#include <stdlib.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <csignal>
#include <string>
#include <string_view>
#include <variant>

#include "ddrun/base/build_info.hpp"
#include "ddrun/base/text.hpp"
#include "ddrun/base/unique_fd.hpp"
#include "ddrun/etcd/serve.hpp"

using namespace ddrun;

namespace {

constexpr int exit_usage = 2;
constexpr const char* purpose =
    "Holds the lease of a job in etcd 3.4 or newer: which machine leads it. ddrun starts\n"
    "this program, speaks to it on its stdin and stdout (lib/lease/PROTOCOL.md) and closes\n"
    "its stdin at the end, which gives the lease back.";
constexpr const char* footer =
    "\nEnvironment:\n"
    "  DDRUN_ETCD_USER  NAME:PASSWORD, if etcd wants a user\n"
    "\nExit status: 0 at the end of stdin; 1 etcd cannot be used; 2 wrong usage, or a\n"
    "line that is not in the protocol.\n"
    "Manual: man ddrun-etcd";
constexpr const char* user_variable = "DDRUN_ETCD_USER";

bool write_line(int fd, std::string text) {
  text += '\n';
  return write_all(fd, text.data(), text.size());
}

int wrong_usage(std::string_view why) {
  write_line(STDERR_FILENO, concat("ddrun-etcd: error: ", why));
  return exit_usage;
}

/// The options, or the exit status of a program that has nothing to do.
std::variant<etcd::EtcdOptions, int> parse(int argc, char** argv) {
  etcd::EtcdOptions options;
  CLI::App app(purpose, "ddrun-etcd");
  app.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  app.add_option("--endpoints", options.endpoints,
                 "the members of etcd, with commas between them; port 2379 if none is given")
      ->type_name("HOST:PORT")
      ->delimiter(',')
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->required();
  app.add_flag("--tls", options.tls, "etcd wants TLS (https)");
  app.add_option("--cacert", options.cacert, "PEM file of whom to trust, instead of the system's")->type_name("FILE");
  app.add_option("--cert", options.cert, "PEM file with our certificate and its chain")->type_name("FILE");
  app.add_option("--key", options.key, "PEM file with its key")->type_name("FILE");
  app.add_option("--candidates", options.candidates, "about how many machines the job has (8)")->type_name("N");
  app.set_version_flag("--version", concat("ddrun-etcd ", build_info().version));
  app.footer(footer);
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    const std::string help = app.help();
    return write_all(STDOUT_FILENO, help.data(), help.size()) ? 0 : 1;
  } catch (const CLI::CallForVersion& version) {
    return write_line(STDOUT_FILENO, version.what()) ? 0 : 1;
  } catch (const CLI::ParseError& error) {
    return wrong_usage(error.what());
  }
  if (const char* const user = ::getenv(user_variable)) {
    // Not on the command line, where others could read it.
    const std::string_view text = user;
    const auto colon = text.find(':');
    if (colon == 0 || colon == std::string_view::npos) {
      return wrong_usage(concat(user_variable, " is not NAME:PASSWORD"));
    }
    options.user = text.substr(0, colon);
    options.password = text.substr(colon + 1);
    ::unsetenv(user_variable);  // what we start needs none
  }
  return options;
}

}  // namespace

int main(int argc, char** argv) {
  hold_standard_streams();
  // Who speaks to us says when it is over: a signal that meets the whole job meets it too, and it still needs its
  // lease.
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGPIPE}) std::signal(signal, SIG_IGN);
  const auto parsed = parse(argc, argv);
  if (const auto* status = std::get_if<int>(&parsed)) return *status;
  const auto end = etcd::serve(std::get<etcd::EtcdOptions>(parsed), STDIN_FILENO, STDOUT_FILENO);
  if (!end.why.empty()) write_line(STDERR_FILENO, end.why);
  return end.status;
}
