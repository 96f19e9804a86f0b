#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <map>
#include <string>

#include "commands.hpp"
#include "ddrun/base/exit_status.hpp"
#include "ddrun/base/messages.hpp"
#include "ddrun/base/text.hpp"
#include "ddrun/base/unique_fd.hpp"
#include "ddrun/cli/parse.hpp"
#include "ddrun/cli/values.hpp"
#include "ddrun/process/descriptor_limit.hpp"
#include "ddrun/store/resolve.hpp"
#include "ddrun/store/tcp_client.hpp"
#include "ddrun/store/tcp_server.hpp"
#include "serving.hpp"

// `ddrun store`: serves a store, or sends a request to one.

namespace ddrun {

namespace {

using Operation = StoreRequest::Operation;

constexpr argv::Option serve_options[] = {
    {"port", "", "N", "Port; 0 takes a free one (default: 29500)"},
    {"bind", "", "ADDRESS",
     "IP address to listen on, several times for more; 0.0.0.0 and :: are all (default: 127.0.0.1 and ::1)"},
    {"max-memory", "", "SIZE",
     "What keys, values and clients may take together; a client that wants more is cut off; 0: no limit (default: 4G)"},
    {"stats", "", "", "Print what was served at the end, and for each SIGUSR1"}};

constexpr argv::Option request_options[] = {
    {"server", "", "HOST:PORT", "Which store (default: $MASTER_ADDR:$MASTER_PORT, else 127.0.0.1:29500)"},
    {"timeout", "", "TIME", "How long to wait for the store, and then for keys (default: 5s)"},
    {"prefix", "", "TEXT", "What all keys begin with, as under PyTorch's PrefixStore"},
    {"raw", "", "", "Print values and keys as they are, without a newline and with bytes that are no text"},
    help_option};

std::string store_help() {
  return concat(R"(Usage: ddrun store [--port=N] [--bind=ADDRESS]... [--max-memory=SIZE] [--stats]
       ddrun store get KEY | set KEY VALUE | add KEY [N] | wait KEY... |
                   list | del KEY...   [--server=HOST:PORT] [options]

Without a word behind it, runs a store that speaks PyTorch's TCPStore protocol
until SIGINT or SIGTERM ends it: for init_method="tcp://...", for tests, or as
the meeting place of other programs. It says where it listens on its standard
output. The protocol has no passwords: any client that reaches the port may read
and write everything.
)",
                argv::describe(serve_options), R"(
With a word, asks a store that is running, such as the one of a ddrun job.
      get KEY                 Print the value
      set KEY VALUE           Set it; - reads the value from the standard input
      add KEY [N]             Add N, or 1, and print the sum
      wait KEY...             Wait until all of them exist
      list                    Print all keys that programs set, in order
      del KEY...              Delete them
)",
                argv::describe(request_options), R"(
Exit status: 0; 1 a key was not there in time; 2 wrong usage; 125 there was no
store, or it went away. A program called store: ddrun -- store

Examples:
  ddrun store --port=29500 &
  ddrun store set greeting hello
  ddrun store get greeting
)");
}

/// "host:port", "[::1]:port".
Result<void> parse_server(StoreRequest& request, const std::string& text) {
  const auto colon = text.rfind(':');
  if (colon == std::string::npos || colon == 0) {
    return fail(Errc::invalid_argument, concat("'", text, "' has no port; write HOST:PORT"));
  }
  request.host = text.substr(0, colon);
  if (request.host.size() > 2 && request.host.front() == '[' && request.host.back() == ']') {
    request.host = request.host.substr(1, request.host.size() - 2);
  }
  request.port = TRY(parse_port(text.substr(colon + 1), 1));
  return {};
}

Parsed read_serve(const argv::CommandLine& typed) {
  if (typed.has("server") || typed.has("timeout") || typed.has("prefix") || typed.has("raw")) {
    return wrong_usage(
        "store", "--server, --timeout, --prefix and --raw belong to a question: get, set, add, wait, list or del");
  }
  StoreServe serve;
  const auto read = typed.read("port", serve.port, [](const auto& text) { return parse_port(text, 0); }).and_then([&] {
    return typed.read("max-memory", serve.max_memory, parse_size);
  });
  if (!read) return wrong_usage("store", read.error().message);
  if (typed.has("bind")) serve.addresses = typed.values("bind");
  serve.stats = typed.has("stats");
  return serve;
}

Parsed read_request(const argv::CommandLine& typed, const Environment& environment) {
  struct Verb {
    Operation operation;
    std::size_t min_args, max_args;  ///< number of arguments
    std::string_view usage;
  };
  static const std::map<std::string_view, Verb> verbs = {
      {"get", {Operation::get, 1, 1, "get KEY"}},     {"set", {Operation::set, 2, 2, "set KEY VALUE"}},
      {"add", {Operation::add, 1, 2, "add KEY [N]"}}, {"wait", {Operation::wait, 1, 100'000, "wait KEY..."}},
      {"list", {Operation::list, 0, 0, "list"}},      {"del", {Operation::del, 1, 100'000, "del KEY..."}},
  };
  const auto verb = verbs.find(typed.positionals.front());
  if (verb == verbs.end()) {
    return wrong_usage(
        "store",
        concat("ddrun store does not know '", typed.positionals.front(), "'; it knows get, set, add, wait, list and ",
               "del; for a program called store write: ddrun -- store ", typed.positionals.front()));
  }
  if (typed.has("port") || typed.has("bind") || typed.has("max-memory") || typed.has("stats")) {
    return wrong_usage("store",
                       "--port, --bind, --max-memory and --stats are for running a store; give --server=HOST:PORT");
  }
  std::vector<std::string> args(typed.positionals.begin() + 1, typed.positionals.end());
  if (args.size() < verb->second.min_args || args.size() > verb->second.max_args) {
    return wrong_usage("store", concat("usage: ddrun store ", verb->second.usage));
  }
  StoreRequest request;
  request.operation = verb->second.operation;
  request.prefix = typed.last("prefix");
  if (!request.prefix.empty() && !request.prefix.ends_with('/')) request.prefix += '/';
  request.raw = typed.has("raw");
  if (const auto read = typed.read("timeout", request.timeout, cli::parse_time); !read) {
    return wrong_usage("store", read.error().message);
  }
  std::string server = typed.last("server");
  const char* source = "--server: ";
  if (server.empty()) {
    server = concat(environment.get("MASTER_ADDR").value_or("127.0.0.1"), ":",
                    environment.get("MASTER_PORT").value_or("29500"));
    source = "$MASTER_ADDR:$MASTER_PORT: ";
  }
  if (const auto ok = parse_server(request, server); !ok) return wrong_usage("store", source + ok.error().message);
  if (request.operation == Operation::set) {
    request.value_from_stdin = args[1] == "-";
    request.value = std::move(args[1]);
    args.pop_back();
  } else if (request.operation == Operation::add && args.size() == 2) {
    const auto delta = parse_integer(args[1], INT64_MIN, INT64_MAX);
    if (!delta) return wrong_usage("store", concat("the number to add: ", delta.error().message));
    request.delta = *delta;
    args.pop_back();
  }
  request.keys = std::move(args);
  for (std::string& key : request.keys) key.insert(0, request.prefix);
  return request;
}

constexpr int key_missing = 1;

int report_error(const Error& error) {
  say_error(error.message);
  switch (error.code) {
    case Errc::timeout: return key_missing;
    case Errc::invalid_argument: return exit_codes::usage;
    default: return exit_codes::launcher_failed;
  }
}

/// A value as one printable line: other bytes become \xNN, and a backslash is doubled.
std::string shown(std::string_view bytes) {
  static constexpr char digits[] = "0123456789abcdef";
  std::string text;
  for (const char c : bytes) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '\\') {
      text += "\\\\";
    } else if (byte < 0x20 || byte >= 0x7f) {
      text += concat("\\x", digits[byte >> 4], digits[byte & 15]);
    } else {
      text += c;
    }
  }
  return text;
}

int print(const StoreRequest& command, const std::string& value) {
  return print_to_stdout(command.raw ? value : shown(value) + "\n");
}

Result<std::string> read_stdin() {
  std::string text;
  char buffer[64 * 1024];
  for (;;) {
    const ssize_t got = ::read(STDIN_FILENO, buffer, sizeof buffer);
    if (got == 0) return text;
    if (got > 0) {
      text.append(buffer, static_cast<std::size_t>(got));
      if (text.size() > store::max_value_size) {
        return fail(Errc::invalid_argument, concat("the value on the standard input has more than ",
                                                   store::max_value_size, " bytes; split it"));
      }
    } else if (errno != EINTR) {
      return fail_errno(Errc::unavailable, "cannot read the value from the standard input", errno);
    }
  }
}

int run_request(const StoreRequest& command, store::TcpClient& client) {
  const Deadline deadline = Clock::now() + command.timeout;
  switch (command.operation) {
    case Operation::get: {
      const auto value = client.get(command.keys[0], deadline);
      return value ? print(command, *value) : report_error(value.error());
    }
    case Operation::set: {
      std::string value = command.value;
      if (command.value_from_stdin) {
        auto read = read_stdin();
        if (!read) return report_error(read.error());
        value = std::move(*read);
      }
      if (const auto set = client.set(command.keys[0], value, deadline); !set) return report_error(set.error());
      // The reply confirms that the store has the value.
      const auto confirmed = client.check(command.keys, deadline);
      return confirmed ? 0 : report_error(confirmed.error());
    }
    case Operation::add: {
      const auto sum = client.add(command.keys[0], command.delta, deadline);
      return sum ? print_to_stdout(concat(*sum, '\n')) : report_error(sum.error());
    }
    case Operation::wait: {
      const auto waited = client.wait(command.keys, deadline);
      return waited ? 0 : report_error(waited.error());
    }
    case Operation::list: {
      auto keys = client.list_keys(deadline);
      if (!keys) return report_error(keys.error());
      std::sort(keys->begin(), keys->end());
      std::string text;
      for (std::string_view key : *keys) {
        if (!key.starts_with(command.prefix)) continue;
        key.remove_prefix(command.prefix.size());
        text += (command.raw ? std::string(key) : shown(key)) + "\n";
      }
      return print_to_stdout(text);
    }
    case Operation::del: {
      int code = 0;
      for (const auto& key : command.keys) {
        const auto deleted = client.delete_key(key, deadline);
        if (!deleted) return report_error(deleted.error());
        if (*deleted) continue;
        say_error(concat("there is no key ", shown(std::string_view(key).substr(command.prefix.size()))));
        code = key_missing;
      }
      return code;
    }
  }
  return exit_codes::usage;
}

/// One line "name number" per counter, requests by name.
std::string stats_text(const store::TcpServerStats& stats) {
  std::string text;
  const auto line = [&](std::string_view name, std::uint64_t number) { text += stats_line(name, number); };
  line("keys", stats.keys);
  line("memory_bytes", stats.memory);
  line("peak_memory_bytes", stats.peak_memory);
  line("connections", stats.connections);
  line("peak_connections", stats.peak_connections);
  line("accepted", stats.accepted);
  line("refused", stats.refused);
  line("bytes_in", stats.bytes_in);
  line("bytes_out", stats.bytes_out);
  std::uint64_t total = 0;
  for (const auto& [name, count] : stats.requests) total += count;
  line("requests", total);
  for (const auto& [name, count] : stats.requests) line(concat("requests.", name), count);
  return text;
}

/// Sends one request; the reply goes to stdout.
int run_store_request(const StoreRequest& command) {
  // At least one second to connect: an unreachable store differs from a missing key.
  const auto connect_timeout = std::max(command.timeout, Milliseconds(1000));
  auto client = store::connect_by_name(command.host, command.port, Clock::now() + connect_timeout);
  if (!client) return say_failure(client.error(), exit_codes::launcher_failed);
  return run_request(command, **client);
}

/// Serves until a signal; blocks. Prints its addresses to stdout.
int serve_store(const StoreServe& command) {
  Serving serving;
  process::raise_descriptor_limit();

  store::TcpServerOptions options;
  options.addresses = command.addresses;
  options.port = command.port;
  options.max_memory = command.max_memory;
  options.on_refusal = serving.warn();
  const auto server = store::TcpServer::start(options);
  if (!server) {
    say_error(server.error().message);
    return server.error().code == Errc::invalid_argument ? exit_codes::usage : exit_codes::launcher_failed;
  }
  return serving.run((*server)->addresses(),
                     command.stats ? [&] { return stats_text((*server)->stats()); } : std::function<std::string()>());
}

}  // namespace

Parsed parse_store(std::span<const std::string> rest, const cli::ParseContext& context) {
  std::vector<argv::Option> options(std::begin(serve_options), std::end(serve_options));
  options.insert(options.end(), std::begin(request_options), std::end(request_options));
  const auto typed = read_arguments("store", options, store_help, rest);
  if (!typed) return typed.error();
  return typed->positionals.empty() ? read_serve(*typed) : read_request(*typed, context.environment);
}

int run_store(const Parsed& parsed) {
  if (const auto* serve = std::get_if<StoreServe>(&parsed)) return serve_store(*serve);
  return run_store_request(std::get<StoreRequest>(parsed));
}

}  // namespace ddrun
