#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <memory>

#include "../job.hpp"
#include "ddrun/base/unique_fd.hpp"
#include "ddrun/test/screen.hpp"
#include "on_terminal.hpp"

using namespace ddrun;
using namespace ddrun::test;

TEST_CASE("A second signal ends ddrun also while its console takes nothing") {
  Run run(job({"-n", "2", "--shutdown-timeout=0.1"}, {"lines", "200000", "forever"}));
  REQUIRE(wait_until([&] { return run.living().size() == 5; }));
  run.signal(SIGTERM);
  CHECK(wait_until([&] { return descendants_of(run.pid()).size() <= 2; }, std::chrono::seconds(10)));
  CHECK(wait_until([&] {
    run.signal(SIGTERM);
    return run.all_gone(std::chrono::milliseconds(50));
  }));
  CHECK(run.wait().code() == -SIGTERM);
}

TEST_CASE("One signal ends ddrun too while its console takes nothing") {
  const int signal = GENERATE(SIGTERM, SIGINT, SIGHUP);
  Run run(job({"-n", "2", "--shutdown-timeout=0.1"}, {"lines", "200000", "forever"}));
  REQUIRE(wait_until([&] { return run.living().size() == 5; }));
  run.signal(signal);
  CHECK(run.all_gone());
  const auto outcome = run.wait();
  DDRUN_SHOW(outcome);
  CHECK(outcome.code() == -signal);
}

TEST_CASE("A time limit cuts nothing off the output of a job that went well") {
  // All workers have ended long before the time is up, and most of what they wrote is read a second after it.
  const std::string inner =
      std::string(DDRUN_TEST_DDRUN) + " -n 2 --timeout=0.7 " + DDRUN_TEST_WORKER + " lines 4000; echo code $? >&2";
  const auto outcome = finish({"/bin/sh", "-c", "(" + inner + ") | (sleep 2.5; wc -l)"});
  DDRUN_SHOW(outcome);
  CHECK(outcome.out == "8000\n");
  CHECK(outcome.err == "code 0\n");
}

TEST_CASE("Output that nobody took in time is counted and said") {
  const TemporaryDirectory dir;
  // Into one pipe with the report, which comes on a line of its own behind half a line. The reader comes back when the
  // workers' output has been given up.
  RunOptions options;
  options.in_child = [] { ::dup2(1, 2); };
  Run run(job({"-n", "2", "--timeout=1", "--events=" + dir.file("events")}, {"lines", "200000", "forever"}), options);
  REQUIRE(wait_until([&] { return has(read_file(dir.file("events")), "\"verdict\""); }));
  const auto outcome = run.wait();
  CHECK(run.all_gone());
  DDRUN_SHOW(outcome);
  CHECK(outcome.code() == 124);
  CHECK(has(outcome.out, "\nddrun: error: stopped after 1.0 s"));
  CHECK(has(outcome.out, "the output shown is incomplete: "));
  CHECK(has(outcome.out, "are missing (not read in time)"));
}

TEST_CASE("A reader that has seen enough does not end the job") {
  const TemporaryDirectory dir;
  const std::string inner = std::string(DDRUN_TEST_DDRUN) + " -n 2 --tee=1 --label=rank --log-dir=" + dir.path() + " " +
                            DDRUN_TEST_WORKER + " lines 20000; echo code $? >&2";
  const auto outcome = finish({"/bin/sh", "-c", "(" + inner + ") | head -n 1"});
  DDRUN_SHOW(outcome);
  CHECK(count(outcome.out, "\n") == 1);
  CHECK(has(outcome.err, "code 0\n"));
  std::uintmax_t bytes = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(dir.path())) {
    if (entry.path().filename() == "stdout.log") bytes += entry.file_size();
  }
  CHECK(bytes == 2 * 20'000 * 100);
}

TEST_CASE("A reader that has seen enough ends workers whose output goes nowhere else, and blames none") {
  const auto piped = [](const std::string& job) {
    return finish({"/bin/sh", "-c", "exec 3>&2; (" DDRUN_TEST_DDRUN " " + job + "; echo code $? >&3) | head -n 1"});
  };
  // One worker inherits ddrun's stdout.
  for (const std::string job : {"-n 2 yes", "-n 2 yes 2>&1", "-n 1 --label=rank yes", "-n 1 yes : -n 1 yes no", "yes",
                                "sh -c 'trap \"\" PIPE; while echo y 2>/dev/null; do :; done; exit 1'"}) {
    const auto outcome = piped(job);
    INFO(job);
    DDRUN_SHOW(outcome);
    CHECK(count(outcome.out, "\n") == 1);
    CHECK(outcome.err == "code 141\n");
  }
  const std::string on_error = "-n 2 sh -c 'trap \"\" PIPE; while echo y 2>/dev/null; do :; done; ";
  SECTION("What the program says of it is shown") {
    const auto outcome = piped(on_error + "echo closed >&2; exit 1'");
    DDRUN_SHOW(outcome);
    CHECK(has(outcome.err, " closed\n"));
    CHECK(!has(outcome.err, "ddrun"));
    CHECK(has(outcome.err, "code 141\n"));
  }
  SECTION("What goes on without its stdout ends as it would") {
    const TemporaryDirectory dir;
    CHECK(piped(on_error + "touch " + dir.path() + "/$RANK'").err == "code 0\n");
    CHECK(::access(dir.file("0").c_str(), F_OK) == 0);
    CHECK(::access(dir.file("1").c_str(), F_OK) == 0);
  }
  SECTION("A crash is reported all the same") {
    const auto outcome = piped(on_error + "kill -SEGV $$'");
    CHECK(has(outcome.err, "killed by SIGSEGV"));
    CHECK(has(outcome.err, "code 139\n"));
  }
}

TEST_CASE("The loss of a socket's reader ends workers as that of a pipe's") {
  int ends[2] = {-1, -1};
  REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0);
  const UniqueFd out(ends[1]);
  UniqueFd reader(ends[0]);
  RunOptions options;
  options.in_child = [&] { ::dup2(out.get(), 1); };
  Run run(command({"-n", "2", "yes"}), options);
  char first = 0;
  REQUIRE(::read(reader.get(), &first, 1) == 1);
  reader.reset();
  const auto outcome = run.wait();
  CHECK(run.all_gone());
  DDRUN_SHOW(outcome);
  CHECK(outcome.code() == 141);
  CHECK(outcome.err.empty());
}

TEST_CASE("A full device as stdout is told and the job goes on") {
  const TemporaryDirectory dir;
  RunOptions options;
  options.in_child = [] { ::dup2(::open("/dev/full", O_WRONLY), 1); };
  const auto outcome =
      finish(job({"-n", "2"}, {"lines", "100", "rank", "1", "touch", dir.file("done"), ";", "exit", "0"}), options);
  DDRUN_SHOW(outcome);
  CHECK(std::filesystem::exists(dir.file("done")));
  // The workers did well, and what they had to say is gone.
  CHECK(outcome.code() == 125);
  CHECK(
      last_line(outcome.err) ==
      "ddrun: error: all workers succeeded, but the output shown is incomplete: 20.3 KiB are missing (cannot write to "
      "the console: No space left on device)");
  CHECK(count(outcome.err, "No space left on device") == 1);
}

TEST_CASE("Closed standard streams do no harm") {
  RunOptions options;
  options.in_child = [] {
    ::close(0);
    ::close(1);
  };
  const auto outcome = finish(job({"-n", "2"}, {"stdin", "print", "lost", "error", "shown"}), options);
  DDRUN_SHOW(outcome);
  CHECK(outcome.code() == 0);
  CHECK(count(outcome.err, "shown\n") == 2);
}

TEST_CASE("One worker has the terminal and several have one of their own") {
  const auto shown = [](const Words& options, const Words& worker) {
    OnTerminal on;
    Words words = options;
    words.insert(words.end(), worker.begin(), worker.end());
    Run run(command(words), on.options);
    CHECK(run.wait().code() == 0);
    CHECK(run.all_gone());
    return on.screen();
  };
  const Words asks{"/bin/sh", "-c", "test -t 1 && test -t 2 && echo 'a terminal' || echo 'no terminal'"};
  CHECK(shown({"-n", "1"}, asks) == "a terminal\r\n");
  CHECK(count(shown({"-n", "2"}, asks), "] a terminal\r\n") == 2);
  const std::string mixed = shown({"-n", "2"}, {"/bin/sh", "-c",
                                                "test $RANK = 1 && exit; for i in 1 2 3 4 5; do echo "
                                                "o$i; echo e$i >&2; done"});
  CHECK(has(mixed, "o1\r\n[0] e1\r\n[0] o2\r\n[0] e2\r\n[0] o3\r\n[0] e3\r\n[0] o4\r\n[0] e4\r\n[0] o5\r\n[0] e5"));
  CHECK(count(shown({"-n", "2", "--pty=never"}, asks), "] no terminal\r\n") == 2);
  const auto outcome = finish(command({"-n", "2", "--pty=always", "/bin/sh", "-c", "test -t 1 && test -t 2"}));
  CHECK(outcome.code() == 0);
}

TEST_CASE("Equal lines on a terminal are shown once, in colour, and log files have them all") {
  const TemporaryDirectory dir;
  OnTerminal on(false);
  Run run(command({"-n", "3", "--tee=3", "--label=rank", "--log-dir=" + dir.path(), "/bin/sh", "-c",
                   "echo equal; [ $RANK = 1 ] && echo alone; echo end >&2"}),
          on.options);
  CHECK(run.wait().code() == 0);
  CHECK(run.all_gone());
  INFO(on.screen());
  CHECK(count(on.screen(), "[0-2] equal\r\n") == 1);
  CHECK(count(on.screen(), "\033[33m[1] \033[malone\r\n") == 1);
  CHECK(count(on.screen(), "[0-2] end\r\n") == 1);
  int files = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(dir.path())) {
    if (entry.path().filename() == "stdout.log") files += has(read_file(entry.path()), "equal\n") ? 1 : 0;
  }
  CHECK(files == 3);
}

TEST_CASE("Equal lines are folded into a pipe too if asked, with a warning where they cannot") {
  const auto equal = [](const Words& options) {
    Words words = options;
    words.insert(words.end(), {"/bin/sh", "-c", "echo equal"});
    return finish(command(words));
  };
  CHECK(equal({"-n", "3", "--fold=always"}).out == "[0-2] equal\n");
  CHECK(equal({"-n", "3", "--fold=always", "--color=always"}).out == "[0-2] equal\n");
  for (const Words& options : {Words{"-n", "3", "--label=none"}, Words{"-n", "1"}}) {
    Words words = options;
    words.emplace_back("--fold=always");
    const auto outcome = equal(words);
    DDRUN_SHOW(outcome);
    CHECK(has(outcome.out, "equal\n"));
    CHECK(has(outcome.err, "warning: --fold=always has no effect"));
  }
  CHECK(count(equal({"-n", "3"}).out, "equal") == 3);
}

TEST_CASE("A progress bar has a row on a terminal, and elsewhere its last state is shown") {
  const Words bar{"/bin/sh", "-c", "for i in 1 2 3; do printf \"\\r$i%%\"; sleep 0.1; done; printf '\\rdone\\n'"};
  const auto with = [&](const std::string& progress) {
    Words words = command({"-n", "2", "--progress=" + progress});
    words.insert(words.end(), bar.begin(), bar.end());
    return words;
  };
  const auto outcome = finish(with("auto"));
  CHECK((outcome.out == "[0] done\n[1] done\n" || outcome.out == "[1] done\n[0] done\n"));
  CHECK(count(finish(with("all")).out, "] 2%\r[") >= 1);
  const auto warned = finish(with("rows"));
  CHECK(has(warned.err, "--progress=rows needs a terminal"));
  OnTerminal on;
  Run run(with("auto"), on.options);
  CHECK(run.wait().code() == 0);
  CHECK(run.all_gone());
  Screen screen(80, 24);
  screen.write(on.screen());
  auto lines = screen.lines();
  std::sort(lines.begin(), lines.end());
  CHECK(lines == std::vector<std::string>{"[0] done", "[1] done"});
  CHECK(has(on.screen(), "\r\033[1A\033[K"));  // a row above another was redrawn
}

TEST_CASE("What follows an answer that was typed has a label") {
  const Words options = GENERATE(Words{"-n", "2"}, Words{"-n", "1", "--label=rank"}, Words{"-n", "2", "--pty=never"},
                                 Words{"-n", "1", "--label=rank", "--pty=never"}, Words{"-n", "2", "--progress=last"},
                                 Words{"-n", "2", "--progress=all"});
  OnTerminal on;
  Words words = options;
  words.insert(words.end(), {"/bin/sh", "-c", "[ $RANK = 1 ] || { printf 'name? '; read name; echo hello $name; }"});
  Run run(command(words), on.options);
  REQUIRE(on.wait_for("[0] name? "));
  on.type("bob\n");
  CHECK(run.wait().code() == 0);
  CHECK(run.all_gone());
  Screen screen(80, 24);
  screen.write(on.screen());
  CHECK(screen.lines() == std::vector<std::string>{"[0] name? bob", "[0] hello bob"});
}

TEST_CASE("Where there are no pseudo-terminals workers get pipes, or an error if they were asked for") {
  constexpr int not_allowed = 99;
  const auto hide_them = [] {
    if (::unshare(CLONE_NEWNS) != 0 || ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
        ::mount("/dev/null", "/dev/ptmx", nullptr, MS_BIND, nullptr) != 0) {
      ::_exit(not_allowed);
    }
  };
  const Words asks{"/bin/sh", "-c", "test -t 1 && echo 'a terminal' || echo 'no terminal'"};
  OnTerminal on;
  const auto to_terminal = on.options.in_child;
  on.options.in_child = [=] {
    hide_them();
    to_terminal();
  };
  Words words = command({"-n", "2"});
  words.insert(words.end(), asks.begin(), asks.end());
  Run run(words, on.options);
  const int code = run.wait().code();
  CHECK(run.all_gone());
  if (code == not_allowed) skip("a mount of its own takes root");
  INFO(on.screen());
  CHECK(code == 0);
  CHECK(count(on.screen(), "] no terminal\r\n") == 2);
  CHECK(count(on.screen(), "cannot make a pseudo-terminal") == 1);
  CHECK(has(on.screen(), "; workers get pipes\r\n"));

  RunOptions options;
  options.in_child = hide_them;
  words.insert(words.begin() + 1, "--pty=always");
  const auto outcome = finish(words, options);
  DDRUN_SHOW(outcome);
  CHECK(outcome.code() == 125);
  CHECK(has(outcome.err, "error: cannot make a pseudo-terminal"));
}

TEST_CASE("What a C program printed before it is killed is shown on a terminal") {
  // The worker's stdio holds it back in a pipe.
  for (const bool flushed : {true, false}) {
    OnTerminal on;
    Run run(job({"-n", "2", flushed ? "--pty=auto" : "--pty=never"}, {"stdio", "printed", "signal", "KILL"}),
            on.options);
    run.wait();
    CHECK(run.all_gone());
    INFO(on.screen());
    CHECK(has(on.screen(), "printed\r\n") == flushed);
  }
  const auto outcome = finish(job({"-n", "2", "--pty=always"}, {"stdio", "printed", "signal", "KILL"}));
  CHECK(has(outcome.out, "printed\n"));
}

TEST_CASE("A worker can write to its controlling terminal, also when it has closed all others") {
  OnTerminal on;
  Run run(command({"-n", "2", "--stdin=none", "/bin/sh", "-c",
                   "exec >/dev/null 2>&1; sleep 0.1; echo asks >/dev/tty; read answer </dev/tty && exit 9; exit 0"}),
          on.options);
  CHECK(run.wait().code() == 0);  // neither hung up nor blocked on terminal input
  CHECK(run.all_gone());
  INFO(on.screen());
  CHECK(count(on.screen(), "] asks\r\n") == 2);
}

TEST_CASE("A worker's block of lines is drawn in place, below the lines of others") {
  OnTerminal on;
  const TemporaryDirectory dir;
  const auto wait_for = [&](const std::string& name) {
    return "while [ ! -e " + dir.file(name) + " ]; do sleep 0.02; done; ";
  };
  const std::string draws =
      "test $RANK = 1 && { " + wait_for("drawn") +
      "echo other; exit 0; }; printf '\\033[?25la\\nb'; printf '\\r\\033[2K\\033[1A\\033[2Kc\\nd'; " +
      wait_for("said") + "printf '\\r\\033[1Ae\\033[?25l'";
  Run run(command({"-n", "2", "/bin/sh", "-c", draws}), on.options);
  Screen screen(80, 24);
  const auto shows = [&](const std::vector<std::string>& lines) {
    screen = Screen(80, 24);
    screen.write(on.screen());
    return screen.lines() == lines;
  };
  REQUIRE(wait_until([&] { return shows({"[0] c", "[0] d"}); }));
  write_file(dir.file("drawn"), "");
  REQUIRE(wait_until([&] { return shows({"[1] other", "[0] c", "[0] d"}); }));
  write_file(dir.file("said"), "");
  CHECK(run.wait().code() == 0);
  CHECK(run.all_gone());
  CHECK(shows({"[1] other", "[0] e", "[0] d"}));
  CHECK(has(on.screen(), "\033[?25l"));
  CHECK(on.screen().ends_with("\033[?25h"));  // the cursor is back
}

TEST_CASE("Bars below each other have rows for each rank, which a stopped job takes from the screen") {
  OnTerminal on;
  on.options.env = {{"PS1", "$ "}};
  Run run({"/bin/sh", "-i"}, on.options);
  REQUIRE(on.wait_for("$ "));
  Screen screen(80, 24);
  const auto ends_with = [&](const std::vector<std::string>& rows) {
    return wait_until([&] {
      screen = Screen(80, 24);
      screen.write(on.screen());
      const auto lines = screen.lines();
      return lines.size() >= rows.size() && std::equal(rows.rbegin(), rows.rend(), lines.rbegin());
    });
  };
  const auto count_rows = [&] {
    return std::ranges::count_if(screen.lines(), [](const auto& line) { return line.ends_with("1%"); });
  };
  on.type(std::string(DDRUN_TEST_DDRUN) + " -n 2 --shutdown-timeout=0.5 sh -c '" +
          "for i in 1 2 3; do printf \"\\repochs $RANK $i%%\\n\\rsteps $RANK 1%%\\033[A\"; done; exec sleep 1000'\n");
  REQUIRE(ends_with({"[1] epochs 1 3%", "[1] steps 1 1%", "[0] epochs 0 3%", "[0] steps 0 1%"}));
  CHECK(count_rows() == 2);
  on.type("\x1a");
  REQUIRE(on.wait_for("Stopped"));
  REQUIRE(ends_with({"$"}));
  CHECK(count_rows() == 0);
  on.type("fg\n");
  REQUIRE(ends_with({"[1] epochs 1 3%", "[1] steps 1 1%", "[0] epochs 0 3%", "[0] steps 0 1%"}));
  CHECK(count_rows() == 2);
  on.type("\x03");
  REQUIRE(wait_until([&] { return on.screen(), descendants_of(run.pid()).empty(); }));
  on.type("exit\n");
  run.wait();
  CHECK(run.all_gone());
}

TEST_CASE("A terminal of another size is told to workers") {
  OnTerminal on;
  winsize size{};
  size.ws_row = 30;
  size.ws_col = 100;
  on.resize(size);
  Run run(command({"-n", "2", "/bin/sh", "-c",
                   "trap 'stty size <&1; exit 0' WINCH; stty size <&1; while :; do sleep 0.05; done"}),
          on.options);
  REQUIRE(wait_until([&] { return count(on.screen(), "] 30 96\r\n") == 2; }));
  size.ws_col = 70;
  on.resize(size);
  CHECK(run.wait().code() == 0);
  CHECK(run.all_gone());
  INFO(on.screen());
  CHECK(count(on.screen(), "] 30 66\r\n") == 2);
}

TEST_CASE("What is typed goes to rank 0") {
  OnTerminal on;
  Run run(command({"-n", "2", "/bin/sh", "-c", "echo ready; read line; echo \"got <$line>\""}), on.options);
  REQUIRE(on.wait_for("ready"));
  on.type("hello\n");
  CHECK(on.wait_for("[0] got <hello>"));
  CHECK(run.wait().code() == 0);
  CHECK(run.all_gone());
  CHECK(has(on.screen(), "[1] got <>"));
}

TEST_CASE("Ctrl-C at the terminal stops the job in order and a second one kills") {
  {
    OnTerminal on;
    Run run(job({"-n", "2"}, {"on", "INT", "0", "print", "ready", "forever"}), on.options);
    REQUIRE(wait_until([&] { return count(on.screen(), "ready") == 2; }));
    on.type("\x03");
    CHECK(run.wait().code() == -SIGINT);
    CHECK(run.all_gone());
    INFO(on.screen());
    CHECK(has(on.screen(), "SIGINT"));
    CHECK(has(on.screen(), "stopping 2 workers (SIGKILL after 30.0 s, or at once if you repeat it)"));
  }
  OnTerminal on;
  Run run(job({"-n", "2"}, {"ignore", "INT", "print", "ready", "forever"}), on.options);
  REQUIRE(wait_until([&] { return count(on.screen(), "ready") == 2; }));
  on.type("\x03");
  REQUIRE(on.wait_for("stopping 2 workers"));
  on.type("\x03");
  CHECK(run.wait().code() == -SIGINT);
  CHECK(run.all_gone());
  INFO(on.screen());
  CHECK(has(on.screen(), "SIGINT again: killing all workers"));
  CHECK(has(on.screen(), "killed by ddrun (SIGKILL)"));
}

TEST_CASE("Ctrl-C ends a shell's loop around ddrun") {
  OnTerminal on;
  const std::string loop = std::string("for i in 1 2 3; do echo turn $i; ") + DDRUN_TEST_DDRUN + " " +
                           DDRUN_TEST_WORKER + " print ready forever; done; echo next line";
  Run run({"bash", "-c", loop}, on.options);
  REQUIRE(on.wait_for("ready"));
  on.type("\x03");
  CHECK(run.wait().code() == -SIGINT);
  CHECK(run.all_gone());
  INFO(on.screen());
  CHECK_FALSE(has(on.screen(), "turn 2"));
  CHECK_FALSE(has(on.screen(), "next line"));
}

TEST_CASE("A terminal that goes away stops the job") {
  auto on = std::make_unique<OnTerminal>();
  Run run(job({"-n", "2"}, {"print", "ready", "forever"}), on->options);
  REQUIRE(wait_until([&] { return count(on->screen(), "ready") == 2; }));
  on.reset();
  CHECK(run.all_gone());
  CHECK(run.wait().code() == -SIGHUP);
}

TEST_CASE("What a worker that did not end well has set on the terminal is undone") {
  const auto [script, echoes] = GENERATE(table<const char*, bool>({
      {"stty -echo; kill -9 $$", true},
      {"stty -echo; exit 1", true},
      {"[ $TORCHELASTIC_RESTART_COUNT = 1 ] || { stty -echo; kill -9 $$; }", true},
      {"stty -echo", false},
  }));
  OnTerminal on;
  const TemporaryDirectory dir;
  write_file(dir.file("worker"), script);
  // The terminal would be closed with the leader of its session.
  Run run({"/bin/sh", "-c",
           std::string(DDRUN_TEST_DDRUN) + " -n 1 --max-restarts=1 /bin/sh " + dir.file("worker") + "; stty -a > " +
               dir.file("settings")},
          on.options);
  run.wait();
  CHECK(run.all_gone());
  INFO(script << on.screen());
  CHECK(has(read_file(dir.file("settings")), " -echo ") != echoes);
}

TEST_CASE("A descriptor that a worker has made non-blocking blocks afterwards") {
  const TemporaryDirectory dir;
  write_file(dir.file("worker"), "import fcntl, os\nfcntl.fcntl(0, fcntl.F_SETFL, os.O_NONBLOCK)\n");
  const auto outcome =
      finish({"/bin/sh", "-c",
              std::string("sleep 0.5 | (") + DDRUN_TEST_DDRUN + " -n 1 python3 " + dir.file("worker") + "; cat)"});
  DDRUN_SHOW(outcome);
  CHECK(outcome.code() == 0);
}

TEST_CASE("In the background a worker does not read what is typed for the shell") {
  const std::string stdin_option = GENERATE("--stdin=0", "--stdin=all");
  OnTerminal on;
  on.options.env = {{"PS1", "$ "}};
  Run run({"/bin/bash", "--norc", "-i"}, on.options);
  REQUIRE(on.wait_for("$ "));
  on.type(std::string(DDRUN_TEST_DDRUN) + " -n 1 " + stdin_option +
          " sh -c 'echo re''ady; read line; echo got-$line'\n");
  REQUIRE(on.wait_for("ready"));
  on.type("\x1a");
  REQUIRE(on.wait_for("Stopped"));
  // A key that comes before the worker has handled the signal may be read by it.
  const pid_t worker = descendants_of(run.pid()).back();
  REQUIRE(wait_until([&] { return is_stopped(worker); }));
  on.type("bg\n");
  // It may have been stopped before it began to read: what is typed meanwhile may still be its own.
  const bool stopped = stdin_option != "--stdin=0" || on.wait_for("is stopped: it reads from the terminal");
  INFO(on.text);
  REQUIRE(stopped);
  if (stdin_option == "--stdin=0") REQUIRE(wait_until([&] { return is_stopped(worker); }));
  on.type("echo $((40 + 2))-for-the-shell\n");
  CHECK(on.wait_for("42-for-the-shell"));
  on.type("fg\n");
  REQUIRE(wait_until([&] { return ::tcgetpgrp(on.front.get()) != run.pid(); }));
  on.type("echo for-the-worker\n");
  const bool read = on.wait_for("got-echo for-the-worker");
  INFO(on.text);
  CHECK(read);
  // What is typed before the job has ended may be read for its worker.
  CHECK(wait_until([&] { return ::tcgetpgrp(on.front.get()) == run.pid(); }));
  on.type("exit\n");
  run.wait();
  CHECK(run.all_gone());
}
