#include "store_words.hpp"

#include <map>

#include "cli11_values.hpp"
#include "ddrun/base/exit_status.hpp"
#include "ddrun/base/text.hpp"
#include "values.hpp"

namespace ddrun::cli {

namespace {

constexpr std::string_view help =
    R"(Usage: ddrun store [--port=N] [--bind=ADDRESS]... [--max-memory=SIZE] [--stats]
       ddrun store get KEY | set KEY VALUE | add KEY [N] | wait KEY... |
                   list | del KEY...   [--server=HOST:PORT] [options]

Without a word behind it, runs a store that speaks PyTorch's TCPStore protocol
until SIGINT or SIGTERM ends it: for init_method="tcp://...", for tests, or as
the meeting place of other programs. It says where it listens on its standard
output. The protocol has no passwords: whoever reaches the port may read and
write everything.
  --port=N            Port; 0 takes a free one (default: 29500)
  --bind=ADDRESS      IP address to listen on, several times for more; 0.0.0.0
                      and :: are all (default: 127.0.0.1 and ::1)
  --max-memory=SIZE   What keys, values and clients may take together; a client
                      that wants more is cut off; 0: no limit (default: 4G)
  --stats             Print what was served at the end, and for each SIGUSR1

With a word, asks a store that is running, such as the one of a ddrun job.
  get KEY             Print the value
  set KEY VALUE       Set it; the value - is read from the standard input
  add KEY [N]         Add N, or 1, and print the sum
  wait KEY...         Wait until all of them exist
  list                Print all keys that programs set, in order
  del KEY...          Delete them
  --server=HOST:PORT  Which store (default: $MASTER_ADDR:$MASTER_PORT, else
                      127.0.0.1:29500)
  --timeout=TIME      How long to wait for the store, and then for keys
                      (default: 5s)
  --prefix=TEXT       What all keys begin with, as under a PrefixStore TEXT/
  --raw               Print values and keys as they are, without a newline and
                      with bytes that are no text

Exit status: 0; 1 a key was not there in time; 2 wrong usage; 125 there was no
store, or it went away. A program called store: ddrun -- store

Examples:
  ddrun store --port=29500 &
  ddrun store set greeting hello
  ddrun store get greeting
)";

PrintAndExit wrong(std::string_view message) {
  return {concat("ddrun: error: ", message, " (see 'ddrun store --help')\n"), true, exit_codes::usage};
}

Result<std::uint16_t> parse_port(std::string_view text, int lowest) {
  const auto port = parse_int(text, lowest, 65535);
  if (!port) return fail(Errc::invalid_argument, concat("port ", port.error().message));
  return static_cast<std::uint16_t>(*port);
}

/// "host:port", "[::1]:port".
Result<void> take_server(StoreAsk& ask, const std::string& text) {
  const auto colon = text.rfind(':');
  if (colon == std::string::npos || colon == 0) {
    return fail(Errc::invalid_argument, concat("'", text, "' has no port; write HOST:PORT"));
  }
  ask.host = text.substr(0, colon);
  if (ask.host.size() > 2 && ask.host.front() == '[' && ask.host.back() == ']') {
    ask.host = ask.host.substr(1, ask.host.size() - 2);
  }
  const auto port = parse_port(text.substr(colon + 1), 1);
  if (!port) return tl::unexpected<Error>(port.error());
  ask.port = *port;
  return {};
}

constexpr PlainOption store_words[] = {{"--port", true},   {"--bind", true},    {"--max-memory", true},
                                       {"--server", true}, {"--timeout", true}, {"--prefix", true},
                                       {"--stats", false}, {"--raw", false}};

Parsed serve(const PlainWords& typed) {
  if (typed.has("--server") || typed.has("--timeout") || typed.has("--prefix") || typed.has("--raw")) {
    return wrong("--server, --timeout, --prefix and --raw belong to a question: get, set, add, wait, list or del");
  }
  StoreServe serve;
  if (typed.has("--port")) {
    const auto port = parse_port(typed.last("--port"), 0);
    if (!port) return wrong(concat("--port: ", port.error().message));
    serve.port = *port;
  }
  if (typed.has("--max-memory")) {
    const auto size = parse_size(typed.last("--max-memory"));
    if (!size) return wrong(concat("--max-memory: ", size.error().message));
    serve.max_memory = *size;
  }
  if (typed.has("--bind")) serve.addresses = typed.values.at("--bind");
  serve.stats = typed.has("--stats");
  return serve;
}

Parsed ask(const PlainWords& typed, const Environment& environment) {
  struct Verb {
    StoreAsk::What what;
    std::size_t least, most;  ///< words behind it
    std::string_view usage;
  };
  static const std::map<std::string_view, Verb> verbs = {
      {"get", {StoreAsk::What::get, 1, 1, "get KEY"}},     {"set", {StoreAsk::What::set, 2, 2, "set KEY VALUE"}},
      {"add", {StoreAsk::What::add, 1, 2, "add KEY [N]"}}, {"wait", {StoreAsk::What::wait, 1, 100'000, "wait KEY..."}},
      {"list", {StoreAsk::What::list, 0, 0, "list"}},      {"del", {StoreAsk::What::del, 1, 100'000, "del KEY..."}},
  };
  const auto verb = verbs.find(typed.words.front());
  if (verb == verbs.end()) {
    return wrong(concat("ddrun store does not know '", typed.words.front(),
                        "'; it knows get, set, add, wait, list and ",
                        "del; for a program called store write: ddrun -- store ", typed.words.front()));
  }
  if (typed.has("--port") || typed.has("--bind") || typed.has("--max-memory") || typed.has("--stats")) {
    return wrong("--port, --bind, --max-memory and --stats are for running a store; give --server=HOST:PORT");
  }
  std::vector<std::string> words(typed.words.begin() + 1, typed.words.end());
  if (words.size() < verb->second.least || words.size() > verb->second.most) {
    return wrong(concat("usage: ddrun store ", verb->second.usage));
  }
  StoreAsk ask;
  ask.what = verb->second.what;
  ask.prefix = typed.last("--prefix");
  ask.raw = typed.has("--raw");
  if (typed.has("--timeout")) {
    const auto timeout = parse_time(typed.last("--timeout"));
    if (!timeout) return wrong(concat("--timeout: ", timeout.error().message));
    ask.timeout = *timeout;
  }
  std::string server = typed.last("--server");
  const char* source = "--server: ";
  if (server.empty()) {
    server = concat(environment.get("MASTER_ADDR").value_or("127.0.0.1"), ":",
                    environment.get("MASTER_PORT").value_or("29500"));
    source = "$MASTER_ADDR:$MASTER_PORT: ";
  }
  if (const auto taken = take_server(ask, server); !taken) return wrong(source + taken.error().message);
  if (ask.what == StoreAsk::What::set) {
    ask.value_from_stdin = words[1] == "-";
    ask.value = std::move(words[1]);
    words.pop_back();
  } else if (ask.what == StoreAsk::What::add && words.size() == 2) {
    const auto delta = parse_integer(words[1], INT64_MIN, INT64_MAX);
    if (!delta) return wrong(concat("the number to add: ", delta.error().message));
    ask.delta = *delta;
    words.pop_back();
  }
  ask.keys = std::move(words);
  return ask;
}

}  // namespace

Parsed parse_store(std::span<const std::string> words, const Environment& environment) {
  for (const auto& word : words) {
    if (word == "--") break;
    if (word == "--help" || word == "-h") return PrintAndExit{std::string(help), false, 0};
  }
  const auto typed = read_plain(store_words, words);
  if (!typed) return wrong(concat("ddrun store: ", typed.error().message));
  return typed->words.empty() ? serve(*typed) : ask(*typed, environment);
}

}  // namespace ddrun::cli
