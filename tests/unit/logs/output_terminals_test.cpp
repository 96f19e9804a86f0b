#include <sys/ioctl.h>
#include <sys/resource.h>
#include <termios.h>

#include <cstdlib>
#include <filesystem>

#include "ddrun/test/files.hpp"
#include "ddrun/test/terminal.hpp"
#include "output_harness.hpp"
#include "pseudo_terminal.hpp"

using namespace ddrun;
using namespace ddrun::logs;
using namespace ddrun::test;

namespace {

/// Workers get pseudo-terminals, though the consoles are pipes.
void always(OutputOptions& options) { options.log.pty = PtyUse::always; }

winsize size_of(const UniqueFd& fd) {
  winsize size{};
  REQUIRE(::ioctl(fd.get(), TIOCGWINSZ, &size) == 0);
  return size;
}

}  // namespace

TEST_CASE("a worker's terminal passes every byte as it is, to the console and to its file") {
  const TemporaryDirectory dir;
  OutputHarness h(2, [&](OutputOptions& options) {
    always(options);
    options.log.dir = dir.path();
    options.programs[0].streams.tee.all_ranks = Streams::both;
    options.log.label = Label::rank;
  });
  h.start();
  CHECK(::isatty(h.workers[0].out.get()) == 1);
  CHECK(::isatty(h.workers[0].err.get()) == 1);
  CHECK(h.workers[0].terminal == 1);
  CHECK(h.output->descriptors_per_worker(0) == 4);
  std::string bytes;
  for (int byte = 0; byte < 256; ++byte) bytes += static_cast<char>(byte);
  put(h.workers[0].out, bytes + "\tend\n");
  put(h.workers[0].err, "one\r\ntwo\n");
  const std::string file = h.output->stdout_log(0);
  CHECK(h.end());
  CHECK(read_file(file) == bytes + "\tend\n");
  CHECK(h.shown_err == "[10] one\r\n[10] two\n");
  const auto tail = h.output->stderr_tail(0, 5);
  REQUIRE(tail.size() == 2);
  CHECK(tail[1].text == "two");
}

TEST_CASE("what a worker wrote to its terminal before its exit is shown before the exit is reported") {
  OutputHarness h(2, always);
  h.start();
  // More than one read gives, less than a terminal holds.
  std::string text;
  for (int i = 0; i < 100; ++i) text += std::string(60, 'x') + '\n';
  put(h.workers[0].out, text);
  h.workers[0] = {};
  h.output->drain(0);
  h.output->console_line("after\n");
  put(h.workers[1].out, "later\n");
  REQUIRE(h.run_until([&] { return h.shown_out.ends_with("later\n"); }));
  CHECK(h.shown_out.size() == 100 * (61 + 5) + std::string("[11] later\n").size());
  CHECK(h.end());
}

TEST_CASE("a worker may close its terminal and open it again") {
  OutputHarness h(1, always);
  h.start();
  const std::string path = ::ttyname(h.workers[0].out.get());
  for (const char* text : {"one\n", "two\n", "three\n"}) {
    put(h.workers[0].out, text);
    h.workers[0].out.reset();
    REQUIRE(h.run_until([&] { return h.shown_out.ends_with(text); }));
    // No process has it open: that must not keep the loop busy.
    int turns = 0;
    h.run_until([&] { return ++turns == 5; });
    h.io.restart();
    CHECK(h.io.poll() == 0);
    h.workers[0].out.reset(::open(path.c_str(), O_WRONLY | O_NOCTTY));
    REQUIRE(h.workers[0].out);
  }
  CHECK(h.end());
  CHECK(h.shown_out == "one\ntwo\nthree\n");
}

TEST_CASE("a terminal is as wide as the console without the prefix, also when that changes") {
  winsize size{};
  size.ws_row = 40;
  size.ws_col = 100;
  const Terminal terminal(&size);
  OutputHarness h(2, [&](OutputOptions& options) {
    options.console_out = terminal.tty.get();
    options.log.timestamps = true;  // "HH:MM:SS.mmm [10] "
  });
  h.start();
  CHECK(::isatty(h.workers[0].out.get()) == 1);
  CHECK(::isatty(h.workers[0].err.get()) == 0);  // its console is a pipe
  CHECK(size_of(h.workers[0].out).ws_col == 100 - 21);
  CHECK(size_of(h.workers[0].out).ws_row == 40);
  size.ws_col = 132;
  size.ws_row = 50;
  terminal.resize(size);
  h.output->screen_resized();
  CHECK(size_of(h.workers[1].out).ws_col == 132 - 21);
  CHECK(size_of(h.workers[1].out).ws_row == 50);
  CHECK(h.end());
}

TEST_CASE("what follows a prompt on a terminal is shown at once") {
  const Terminal terminal;
  OutputHarness h(2, [&](OutputOptions& options) {
    options.console_out = terminal.tty.get();
    options.log.progress = Progress::all;
    options.log.color = When::never;
    options.log.pty = PtyUse::never;  // bytes are there as soon as they are written
  });
  h.start();
  std::string screen;
  const auto shows = [&](const std::string& text) {
    return h.run_until([&] { return (screen += terminal.shown()).ends_with(text); });
  };
  put(h.workers[0].out, "(Pdb) ");
  REQUIRE(shows("[10] (Pdb) "));
  // The other worker's prompt waits for the idle delay; the key, which came later, does not.
  put(h.workers[1].out, "another? ");
  put(h.workers[0].out, "x");
  REQUIRE(shows("[11] another? "));
  CHECK(screen == "[10] (Pdb) x\r\n[11] another? ");
  CHECK(h.end());
}

TEST_CASE("a cursor that is shown again at a worker's end makes no line") {
  const Terminal terminal;
  OutputHarness h(2, [&](OutputOptions& options) {
    options.console_out = terminal.tty.get();
    options.log.progress = Progress::all;
    options.log.color = When::never;
  });
  h.start();
  put(h.workers[0].out, "\033[?25lbar\n\033[?25h");
  CHECK(h.end());
  CHECK(terminal.shown() == "[10] bar\r\n");
}

TEST_CASE("no terminal is narrower than 20 columns, and a prefix counts in characters") {
  CHECK(ScreenSize{24, 80}.without_prefix(5).columns == 75);
  CHECK(ScreenSize{24, 30}.without_prefix(25).columns == 20);
  CHECK(ScreenSize{24, 30}.without_prefix(100).columns == 20);
  const UniqueFd none(::open("/dev/null", O_RDONLY));
  ::setenv("COLUMNS", "111", 1);
  CHECK(screen_size(none.get()).columns == 111);
  ::unsetenv("COLUMNS");
  CHECK(screen_size(none.get()).columns == 80);
}
