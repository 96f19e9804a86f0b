#include <signal.h>
#include <string.h>
#include <termios.h>
#include <unistd.h>

#include <filesystem>
#include <string>

#include "../job.hpp"
#include "ddrun/test/screen.hpp"
#include "on_terminal.hpp"

using namespace ddrun::test;

namespace {

/// A terminal whose settings are compared.
struct OnSavedTerminal : OnTerminal {
  OnSavedTerminal() {
    ::memset(&before, 0, sizeof before);  // padding, too
    REQUIRE(::tcgetattr(tty.get(), &before) == 0);
  }

  [[nodiscard]] termios settings() const {
    termios now;
    ::memset(&now, 0, sizeof now);
    REQUIRE(::tcgetattr(tty.get(), &now) == 0);
    return now;
  }
  /// Byte for byte as before the run.
  [[nodiscard]] bool is_unchanged() const {
    const termios now = settings();
    return ::memcmp(&now, &before, sizeof now) == 0;
  }
  /// Keys go to the worker's pseudo-terminal.
  [[nodiscard]] bool passes_keys() const { return (settings().c_lflag & (ICANON | ECHO)) == 0; }
  bool wait_ready(const std::string& part = "ready") {
    return wait_for(part) && wait_until([&] { return passes_keys(); });
  }

  termios before;
};

Words shell(Words options, const std::string& script) {
  options.insert(options.end(), {"/bin/sh", "-c", script});
  return command(options);
}

Words python(Words options, const std::string& script) {
  options.insert(options.end(), {"--no-python", "python3", "-u", "-c", script});
  return command(options);
}

}  // namespace

TEST_CASE("All descriptors of a rank on a terminal have one size, and SIGWINCH comes once") {
  const std::string pty = GENERATE("--pty=auto", "--pty=never");
  OnSavedTerminal on;
  winsize size{};
  size.ws_row = 30;
  size.ws_col = 100;
  on.resize(size);
  Run run(python({"-n", "2", pty},
                 "import os, signal\n"
                 "changes = 0\n"
                 "def show(*_):\n"
                 "    sizes = [os.get_terminal_size(fd) for fd in (0, 1, 2) if os.isatty(fd)]\n"
                 "    print('sizes', *[f'{size.lines}x{size.columns}' for size in sizes], 'end')\n"
                 "def count(*_):\n"
                 "    global changes\n"
                 "    changes += 1\n"
                 "    show()\n"
                 "signal.signal(signal.SIGWINCH, count)\n"
                 "signal.signal(signal.SIGUSR1, lambda *_: print('changes', changes, 'end'))\n"
                 "signal.signal(signal.SIGUSR2, lambda *_: os._exit(0))\n"
                 "show()\n"
                 "while True: signal.pause()\n"),
          on.options);
  std::size_t shown = 0;
  const auto shows = [&](const std::string& one) {
    const bool never = pty == "--pty=never";
    const std::string of_0 = never ? one : one + ' ' + one + ' ' + one;
    const std::string of_1 = never ? "sizes end" : "sizes " + one + ' ' + one + " end";
    ++shown;
    return on.wait_for("[0] sizes " + of_0 + " end") && on.wait_for("[1] " + of_1) &&
           wait_until([&] { return count(on.screen(), "[1] sizes ") == shown; });
  };
  CHECK(shows("30x96"));
  for (unsigned short width = 90; width >= 70; width -= 5) {
    size.ws_col = width;
    on.resize(size);
    REQUIRE(shows("30x" + std::to_string(width - 4)));
  }
  run.signal(SIGUSR1);
  CHECK(on.wait_for("[0] changes 5 end"));
  CHECK(on.wait_for("[1] changes 5 end"));
  // One that a program sends comes once, too.
  run.signal(SIGWINCH);
  REQUIRE(wait_until([&] { return count(on.screen(), "[0] sizes ") == 7; }));
  run.signal(SIGUSR2);
  CHECK(run.wait().code() == 0);
  CHECK(run.all_gone());
  INFO(on.screen());
  CHECK(count(on.screen(), "[0] sizes ") == 7);
  CHECK(on.is_unchanged());
}

TEST_CASE("A raw reader gets each byte that is no key for signals or flow control") {
  OnSavedTerminal on;
  Run run(python({"-n", "2"},
                 "import os, sys, tty\n"
                 "if os.environ['RANK'] != '0': sys.exit()\n"
                 "tty.setraw(0)\n"
                 "print('ready')\n"
                 "data = b''\n"
                 "while len(data) < 251: data += os.read(0, 300)\n"
                 "print(data.hex())\n"),
          on.options);
  REQUIRE(on.wait_ready());
  std::string bytes;
  std::string expected;
  for (int byte = 0; byte < 256; ++byte) {
    const auto* const keys = on.before.c_cc;
    if (byte == keys[VINTR] || byte == keys[VQUIT] || byte == keys[VSUSP] || byte == keys[VSTART] ||
        byte == keys[VSTOP]) {
      continue;
    }
    bytes += static_cast<char>(byte);
    expected += "0123456789abcdef"[byte / 16];
    expected += "0123456789abcdef"[byte % 16];
  }
  REQUIRE(bytes.size() == 251);
  on.type(bytes);
  CHECK(on.wait_for("[0] " + expected));
  CHECK(run.wait().code() == 0);
  CHECK(run.all_gone());
  CHECK(on.is_unchanged());
}

TEST_CASE("A password is not shown, and what is typed afterwards is") {
  OnSavedTerminal on;
  // getpass reads from /dev/tty.
  Run run(python({"-n", "2"},
                 "import getpass, os, sys\n"
                 "if os.environ['RANK'] != '0': sys.exit()\n"
                 "word = getpass.getpass('word? ')\n"
                 "print('got', word[::-1])\n"
                 "print('again', input('line? ')[::-1])\n"),
          on.options);
  REQUIRE(on.wait_ready("word? "));
  on.type("secret\n");
  REQUIRE(on.wait_for("got terces"));
  REQUIRE(on.wait_for("line? "));
  on.type("visible\n");
  CHECK(on.wait_for("again elbisiv"));
  CHECK(run.wait().code() == 0);
  CHECK(run.all_gone());
  INFO(on.screen());
  CHECK_FALSE(has(on.screen(), "secret"));
  CHECK(has(on.screen(), "visible"));
  CHECK(on.is_unchanged());
}

TEST_CASE("/dev/tty can be read by the rank that reads the terminal, and by no other") {
  const std::string pty = GENERATE("--pty=auto", "--pty=never");
  OnSavedTerminal on;
  Run run(shell({"-n", "2", "--stdin=1", pty},
                "echo ready; if read line 2>/dev/null </dev/tty; then echo \"got <$line>\"; else echo refused; fi"),
          on.options);
  REQUIRE(on.wait_ready("[0] refused"));
  on.type("hello\n");
  CHECK(on.wait_for("[1] got <hello>"));
  CHECK(run.wait().code() == 0);
  CHECK(run.all_gone());
  CHECK(on.is_unchanged());
}

TEST_CASE("A main program reads the terminal, and no service before it") {
  OnSavedTerminal on;
  const std::string read = "if read line; then echo \"got <$line>\"; else echo refused; fi; ";
  Words words = shell({"--service", "--role=server"}, read + "sleep 60");
  words.insert(words.end(), {":", "-n", "2", "--role=main", "/bin/sh", "-c", read});
  Run run(words, on.options);
  REQUIRE(on.wait_ready("[server:0] refused"));
  REQUIRE(on.wait_for("[main:1] refused"));
  on.type("hello\n");
  CHECK(on.wait_for("[main:0] got <hello>"));
  CHECK(run.wait().code() == 0);
  CHECK(run.all_gone());
  CHECK(on.is_unchanged());
}

TEST_CASE("Ctrl-D is the end of the input") {
  OnSavedTerminal on;
  Run run(shell({"-n", "2"}, "echo ready; cat; echo end"), on.options);
  REQUIRE(on.wait_ready());
  on.type("text\n");
  REQUIRE(wait_until([&] { return count(on.screen(), "[0] text\r\n") == 2; }));  // the echo and cat's
  on.type("\x04");
  CHECK(on.wait_for("[0] end"));
  CHECK(run.wait().code() == 0);
  CHECK(run.all_gone());
  CHECK(on.is_unchanged());
}

TEST_CASE("Only a terminal as stdin is replaced, and only if one rank of several reads it") {
  OnSavedTerminal on;
  const std::string ddrun = std::string("echo line | ") + DDRUN_TEST_DDRUN;
  Run run({"/bin/sh", "-c", ddrun + " -n 2 sh -c 'test -p /dev/stdin && read line && echo pipe-$line; exit 0'"},
          on.options);
  CHECK(run.wait().code() == 0);
  CHECK(run.all_gone());
  CHECK(on.screen() == "[0] pipe-line\r\n");

  OnSavedTerminal all;
  Run run_all(shell({"-n", "2", "--stdin=all"}, "test -p /dev/stdin && echo ready; read line; echo got-$line"),
              all.options);
  REQUIRE(wait_until([&] { return count(all.screen(), "] ready") == 2; }));
  CHECK(all.is_unchanged());
  all.type("text\n");
  CHECK(run_all.wait().code() == 0);
  CHECK(run_all.all_gone());
  CHECK(count(all.screen(), "] got-text\r\n") == 2);

  OnSavedTerminal one;
  Run run_one(shell({"-n", "1"}, "stty -g; stty -F /dev/stdin raw; stty sane; echo ready; read line; echo got-$line"),
              one.options);
  REQUIRE(one.wait_for("ready"));
  CHECK_FALSE(one.passes_keys());
  one.type("text\n");
  CHECK(run_one.wait().code() == 0);
  CHECK(run_one.all_gone());
  CHECK(has(one.screen(), "got-text\r\n"));
}

TEST_CASE("Without a pseudo-terminal for its output the rank has one for its input, whose echo is in no file") {
  const Words redirect = GENERATE(Words{"--pty=never", "--tee=3"}, Words{"--pty=auto", "--redirects=3"},
                                  Words{"--pty=always", "--redirects=3"});
  OnSavedTerminal on;
  const TemporaryDirectory dir;
  Run run(shell({"-n", "2", redirect[0], redirect[1], "--log-dir=" + dir.path()},
                "test $RANK = 0 && test -t 0 || exit 0; read line; echo \"got <$line>\""),
          on.options);
  REQUIRE(on.wait_ready(dir.path()));
  on.type("hello\n");
  CHECK(run.wait().code() == 0);
  CHECK(run.all_gone());
  INFO(on.screen());
  CHECK(has(on.screen(), "[0] hello\r\n"));
  std::string log;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(dir.path())) {
    if (entry.path().filename() == "stdout.log") log += read_file(entry.path());
  }
  CHECK(log == "got <hello>\n");
  CHECK(on.is_unchanged());
}

TEST_CASE("A pasted text is read completely and in order") {
  OnSavedTerminal on;
  const TemporaryDirectory dir;
  std::string pasted;
  for (int line = 0; pasted.size() < 200'000; ++line) pasted += "line " + std::to_string(line) + " of the text\n";
  Run run(shell({"-n", "2"}, "test $RANK = 0 || exit 0; echo ready; cat > " + dir.file("copy")), on.options);
  REQUIRE(on.wait_ready());
  std::size_t at = 0;
  CHECK(wait_until([&] {
    on.screen();
    const ssize_t n = ::write(on.front.get(), pasted.data() + at, pasted.size() - at);
    if (n > 0) at += static_cast<std::size_t>(n);
    return at == pasted.size();
  }));
  CHECK(wait_until([&] {
    on.screen();
    return std::filesystem::file_size(dir.file("copy")) == pasted.size();
  }));
  on.type("\x04");
  CHECK(wait_until([&] { return on.screen(), run.living().empty(); }));
  CHECK(run.wait().code() == 0);
  CHECK(read_file(dir.file("copy")) == pasted);
  CHECK(on.is_unchanged());
}

TEST_CASE("Input that a rank does not read waits, and keys for signals are not behind it") {
  OnSavedTerminal on;
  Run run(shell({"-n", "2", "--shutdown-timeout=0.2"}, "echo ready; exec sleep 1000"), on.options);
  REQUIRE(wait_until([&] { return count(on.screen(), "ready") == 2; }));
  REQUIRE(wait_until([&] { return on.passes_keys(); }));
  const std::string line = std::string(100, 'x') + '\n';
  std::size_t written = 0;
  const auto write_line = [&] {
    on.screen();
    const ssize_t n = ::write(on.front.get(), line.data(), line.size());
    written += n > 0 ? static_cast<std::size_t>(n) : 0;
    return n > 0;
  };
  SECTION("a signal") {
    // More than one terminal holds.
    while (written < 10'000) wait_until(write_line);
    on.type("\x03");
  }
  SECTION("its bound") {
    // Until a whole second passes in which nothing is taken.
    while (wait_until(write_line, std::chrono::seconds(1))) REQUIRE(written < 1'000'000);
    run.signal(SIGINT);
  }
  CHECK(wait_until([&] { return on.screen(), run.living().empty(); }));
  CHECK(run.wait().code() == -SIGINT);
  CHECK(on.is_unchanged());
}

TEST_CASE("Ctrl-Z gives the terminal its settings back, and after fg input goes on") {
  OnSavedTerminal on;
  on.options.env = {{"PS1", "$ "}};
  // dash leaves a terminal's settings alone.
  Run run({"/bin/sh", "-i"}, on.options);
  REQUIRE(on.wait_for("$ "));
  on.type(
      std::string(DDRUN_TEST_DDRUN) + " -n 2 --shutdown-timeout=0.5 sh -c '" +
      "test $RANK = 0 || exec sleep 1000; echo re''ady; read a; echo got-$a; read b; echo got-$b; exec sleep 1000'\n");
  REQUIRE(on.wait_ready());
  on.type("one\n");
  REQUIRE(on.wait_for("[0] got-one"));
  on.type("\x1a");
  REQUIRE(on.wait_for("Stopped"));
  CHECK(on.is_unchanged());
  on.type("echo $((40 + 2))-for-the-shell\n");
  CHECK(on.wait_for("42-for-the-shell"));
  SECTION("fg") {
    on.type("fg\n");
    REQUIRE(wait_until([&] { return on.passes_keys(); }));
    on.type("two\n");
    CHECK(on.wait_for("[0] got-two"));
    on.type("\x03");
  }
  SECTION("bg, and fg") {
    on.type("bg\n");
    on.type("echo $((40 + 3))-for-the-shell\n");
    CHECK(on.wait_for("43-for-the-shell"));
    CHECK(on.is_unchanged());
    on.type("fg\n");
    REQUIRE(wait_until([&] { return on.passes_keys(); }));
    on.type("two\n");
    CHECK(on.wait_for("[0] got-two"));
    on.type("\x03");
  }
  SECTION("its end") {
    const std::string signal = GENERATE("-TERM", "-KILL");
    on.type("kill " + signal + " %1; kill -CONT %1\n");
  }
  CHECK(wait_until([&] { return descendants_of(run.pid()).empty() && on.is_unchanged(); }));
  on.type("exit\n");
  on.type("exit\n");
  run.wait();
  CHECK(run.all_gone());
  INFO(on.screen());
  CHECK(on.is_unchanged());
}

TEST_CASE("The terminal has its settings back however the job ends") {
  const std::string end = GENERATE("success", "failure", "restart", "Ctrl-C", "agent", "sweeper", "guard");
  OnSavedTerminal on;
  // The guard does not lead the session: else the terminal would be closed with it.
  Run run(
      {"/bin/sh", "-c",
       std::string(DDRUN_TEST_DDRUN) + " -n 2 --shutdown-timeout=0.5 --max-restarts=" + (end == "restart" ? "1" : "0") +
           " /bin/sh -c 'test $RANK = 0 || exec sleep 1000; echo ready-$TORCHELASTIC_RESTART_COUNT; read code; " +
           "exit $code'; exit 0"},
      on.options);
  REQUIRE(on.wait_ready("ready-0"));
  const auto processes = descendants_of(run.pid());
  REQUIRE(processes.size() >= 3);
  CAPTURE(end);
  if (end == "success") {
    // Rank 1 goes on, and what is typed is no input of the job any more.
    on.type("0\n");
    CHECK(wait_until([&] { return on.is_unchanged(); }));
    on.type("\x03");
  } else if (end == "failure") {
    on.type("5\n");
  } else if (end == "restart") {
    on.type("5\n");
    REQUIRE(on.wait_ready("ready-1"));
    on.type("5\n");
  } else if (end == "Ctrl-C") {
    on.type("\x03");
  } else {
    CHECK(run.signal(processes[end == "guard" ? 0 : end == "sweeper" ? 1 : 2], SIGKILL));
  }
  run.wait();
  CHECK(run.all_gone());
  INFO(on.screen());
  CHECK(on.is_unchanged());
}

TEST_CASE("A preloaded rank reads the terminal as well") {
  OnSavedTerminal on;
  const TemporaryDirectory dir;
  write_file(dir.file("worker.py"),
             "import getpass, os, sys\n"
             "if os.environ['RANK'] != '0': sys.exit(os.isatty(0))\n"
             "print(*[os.get_terminal_size(fd).columns for fd in (0, 1, 2)])\n"
             "print('got', input('line? '))\n"
             "print('got', getpass.getpass('word? ')[::-1])\n");
  winsize size{};
  size.ws_row = 30;
  size.ws_col = 100;
  on.resize(size);
  Run run(command({"-n", "2", "--preload=json", dir.file("worker.py")}), on.options);
  REQUIRE(on.wait_ready("line? "));
  on.type("hello\n");
  REQUIRE(on.wait_for("got hello"));
  REQUIRE(on.wait_for("word? "));
  on.type("secret\n");
  CHECK(on.wait_for("got terces"));
  CHECK(run.wait().code() == 0);
  CHECK(run.all_gone());
  INFO(on.screen());
  CHECK(has(on.screen(), "96 96 96"));
  CHECK_FALSE(has(on.screen(), "secret"));
  CHECK(on.is_unchanged());
}
