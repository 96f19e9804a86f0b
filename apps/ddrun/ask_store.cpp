#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <string>

#include "ddrun/base/exit_status.hpp"
#include "ddrun/base/messages.hpp"
#include "ddrun/base/text.hpp"
#include "ddrun/base/unique_fd.hpp"
#include "ddrun/store/prefix_store.hpp"
#include "ddrun/store/resolve.hpp"
#include "ddrun/store/tcp_client.hpp"
#include "store_command.hpp"

using namespace ddrun;
using What = cli::StoreAsk::What;

namespace {

constexpr int not_there = 1;

int complain(const Error& error) {
  say_error(error.message);
  switch (error.code) {
    case Errc::timeout: return not_there;
    case Errc::invalid_argument: return exit_codes::usage;
    default: return exit_codes::launcher_failed;
  }
}

/// Values may hold anything; what a terminal or a line could not show becomes \xNN, and a backslash two.
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

int print(const std::string& text) {
  if (write_all(STDOUT_FILENO, text.data(), text.size())) return 0;
  say_error("cannot write to the standard output");
  return exit_codes::launcher_failed;
}

int print(const cli::StoreAsk& command, const std::string& value) {
  return print(command.raw ? value : shown(value) + "\n");
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

int ask(const cli::StoreAsk& command, store::Store& asked) {
  const Deadline deadline = Clock::now() + command.timeout;
  switch (command.what) {
    case What::get: {
      const auto value = asked.get(command.keys[0], deadline);
      return value ? print(command, *value) : complain(value.error());
    }
    case What::set: {
      std::string value = command.value;
      if (command.value_from_stdin) {
        auto read = read_stdin();
        if (!read) return complain(read.error());
        value = std::move(*read);
      }
      if (const auto set = asked.set(command.keys[0], value, deadline); !set) return complain(set.error());
      // An answer shows that the store has it.
      const auto there = asked.check(command.keys, deadline);
      return there ? 0 : complain(there.error());
    }
    case What::add: {
      const auto sum = asked.add(command.keys[0], command.delta, deadline);
      return sum ? print(concat(*sum, '\n')) : complain(sum.error());
    }
    case What::wait: {
      const auto waited = asked.wait(command.keys, deadline);
      return waited ? 0 : complain(waited.error());
    }
    case What::list: {
      auto keys = asked.list_keys(deadline);
      if (!keys) return complain(keys.error());
      std::sort(keys->begin(), keys->end());
      std::string text;
      for (const auto& key : *keys) text += (command.raw ? key : shown(key)) + "\n";
      return print(text);
    }
    case What::del: {
      int code = 0;
      for (const auto& key : command.keys) {
        const auto deleted = asked.delete_key(key, deadline);
        if (!deleted) return complain(deleted.error());
        if (*deleted) continue;
        say_error(concat("there is no key ", shown(key)));
        code = not_there;
      }
      return code;
    }
  }
  return exit_codes::usage;
}

}  // namespace

int ask_store(const cli::StoreAsk& command) {
  // A store that does not answer is not the same as a key that is not there.
  const auto patience = std::max(command.timeout, Milliseconds(1000));
  auto client = store::connect_by_name(command.host, command.port, Clock::now() + patience);
  if (!client) {
    say_error(client.error().message);
    return exit_codes::launcher_failed;
  }
  if (command.prefix.empty()) return ask(command, **client);
  // A PrefixStore writes its own slash.
  std::string prefix = command.prefix;
  if (prefix.ends_with('/')) prefix.pop_back();
  store::PrefixStore part(prefix, **client);
  return ask(command, part);
}
