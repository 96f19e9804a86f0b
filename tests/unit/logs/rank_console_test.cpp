#include "ddrun/logs/rank_console.hpp"

#include <cstdlib>

#include "ddrun/test/files.hpp"
#include "ddrun/test/screen.hpp"
#include "ddrun/test/terminal.hpp"
#include "output_harness.hpp"

using namespace ddrun;
using namespace ddrun::logs;
using namespace ddrun::test;

namespace {

using Lines = std::vector<std::string>;

/// Workers, and a terminal of 80 columns and 24 lines as console.
struct ScreenHarness : Terminal, OutputHarness {
  explicit ScreenHarness(int workers, const std::function<void(OutputOptions&)>& adjust = {})
      : OutputHarness(workers, [&](OutputOptions& options) {
          ::setenv("TERM", "xterm", 1);
          options.console_out = options.console_err = tty.get();
          options.idle_flush_delay = Milliseconds(20);
          options.log.pty = PtyUse::never;
          options.log.color = When::never;
          if (adjust) adjust(options);
        }) {
    start();
  }
  bool shows(const Lines& lines) {
    const bool same = run_until([&] {
      const std::string bytes = shown();
      screen.write(bytes);
      all += bytes;
      return screen.lines() == lines;
    });
    CHECK(screen.lines() == lines);
    return same;
  }
  Screen screen{80, 24};
  std::string all;  ///< that the terminal got
};

}  // namespace

TEST_CASE("rows of several programs have roles, and stand in the programs' order") {
  ScreenHarness h(3, [](OutputOptions& options) {
    options.programs.resize(2);
    options.programs[0].role = "train";
    options.programs[1].role = "eval";
    options.places = {{0, 0, 0}, {0, 1, 1}, {1, 0, 0}};
    options.log.fold = When::always;
  });
  put(h.workers[2].out, "\r 10%");
  put(h.workers[0].out, "\r 20%");
  CHECK(h.shows({"[train:10]  20%", "[eval:12]  10%"}));
  put(h.workers[0].out, "\rsame\n");
  put(h.workers[1].out, "same\n");
  CHECK(h.shows({"[train:10,11] same", "[eval:12]  10%"}));
  put(h.workers[2].out, "\rsame\n");
  CHECK(h.shows({"[train:10,11] same", "[eval:12] same"}));
}

TEST_CASE("each progress bar has a row, and lines stand above") {
  ScreenHarness h(2);
  put(h.workers[0].out, "\r 10%");
  put(h.workers[1].out, "20%\r");
  CHECK(h.shows({"[10]  10%", "[11] 20%"}));
  put(h.workers[1].out, "\r30%\r");
  put(h.workers[0].out, "\r 15%");
  CHECK(h.shows({"[10]  15%", "[11] 30%"}));
  put(h.workers[1].out, "epoch done\n");
  CHECK(h.shows({"[11] epoch done", "[10]  15%"}));
  put(h.workers[1].out, "\r 40%");
  put(h.workers[0].out, "\r100%\n");
  CHECK(h.shows({"[11] epoch done", "[10] 100%", "[11]  40%"}));
  h.output->console_line("ddrun: hello\n");
  CHECK(h.shows({"[11] epoch done", "[10] 100%", "ddrun: hello", "[11]  40%"}));
  CHECK(h.end());
  CHECK(h.shows({"[11] epoch done", "[10] 100%", "ddrun: hello", "[11]  40%"}));
  CHECK_FALSE(h.output->close());
}

TEST_CASE("a block of lines that a worker moves in has rows, and other lines stand above") {
  ScreenHarness h(2);
  put(h.workers[1].out, "\r 40%");
  CHECK(h.shows({"[11]  40%"}));
  put(h.workers[0].out, "\rone\n\rtwo\033[A");
  CHECK(h.shows({"[10] one", "[10] two", "[11]  40%"}));
  put(h.workers[1].out, "\rhello\n\r 50%");
  put(h.workers[0].out, "\rONE");
  CHECK(h.shows({"[11] hello", "[10] ONE", "[10] two", "[11]  50%"}));
  CHECK(h.end());
  CHECK(h.shows({"[11] hello", "[10] ONE", "[10] two", "[11]  50%"}));
}

TEST_CASE("elsewhere the last state of a progress bar is shown") {
  OutputHarness h(2);
  h.start();
  put(h.workers[0].out, "\r 10%\r 20%\r100%\n");
  put(h.workers[0].out, "10%\r20%\rdone\r\nnext\n");
  put(h.workers[1].out, "\r 10%\r 50%");
  put(h.workers[1].err, "60%\r70%\r");
  CHECK(h.run_until([&] { return h.shown_out == "[10] 100%\n[10] done\n[10] next\n"; }));
  CHECK(h.end());
  CHECK(h.shown_out == "[10] 100%\n[10] done\n[10] next\n[11]  50%\n");
  CHECK(h.shown_err == "[11] 70%\n");
}

TEST_CASE("a bar without a row is shown now and then while it changes") {
  const Pipe pipe = make_pipe().value();
  boost::asio::io_context io;
  RankConsoleOptions options;
  options.progress = Progress::last;
  options.state_interval = Milliseconds(20);
  RankConsole console(io.get_executor(), pipe.write.get(), options);
  RankStream stream;
  stream.prefix = "[3] ";
  console.open_stream(stream);
  console.feed(stream, "\r10%");
  CHECK(io.run_for(std::chrono::seconds(10)) > 0);  // ends when no timer is left
  CHECK(read_now(pipe.read.get()) == "[3] 10%\n");
  console.feed(stream, "\r10%\r20%");
  io.restart();
  io.run_for(std::chrono::seconds(10));
  CHECK(read_now(pipe.read.get()) == "[3] 20%\n");
  console.close_stream(stream);
  console.close();
  CHECK(read_now(pipe.read.get()).empty());
}

TEST_CASE("log files have every byte of a progress bar and every line") {
  const TemporaryDirectory dir;
  ScreenHarness h(2, [&](OutputOptions& options) {
    options.log.dir = dir.path();
    options.programs[0].streams.tee.all_ranks = Streams::both;
    options.log.label = Label::rank;
  });
  for (auto& worker : h.workers) put(worker.out, "\r 10%\r 20%\nsame\n");
  CHECK(h.shows({"[10,11]  20%", "[10,11] same"}));
  const std::string file = h.output->stdout_log(1);
  CHECK(h.end());
  CHECK(read_file(file) == "\r 10%\r 20%\nsame\n");
}

TEST_CASE("equal lines on a terminal are shown once, before a message of ddrun") {
  ScreenHarness h(3);
  put(h.workers[0].out, "same\n");
  put(h.workers[1].err, "same\n");
  h.output->drain(0);
  h.output->drain(1);
  h.output->console_line("ddrun: hello\n");
  CHECK(h.shows({"[10,11] same", "ddrun: hello"}));
  put(h.workers[2].out, "alone\n");
  CHECK(h.shows({"[10,11] same", "ddrun: hello", "[12] alone"}));  // after 100 ms
  for (auto& worker : h.workers) put(worker.out, "killed");
  CHECK(h.end());
  CHECK(h.shows({"[10,11] same", "ddrun: hello", "[12] alone", "[10-12] killed"}));
}

TEST_CASE("a label of several ranks does not break a line that fits without it") {
  ScreenHarness h(6);
  const std::string line(72, 'x');  // as wide as workers know: the widest label is "[14-15] "
  for (const std::size_t rank : {0U, 2U, 4U}) put(h.workers[rank].out, line + '\n');
  CHECK(h.shows({"[10] " + line, "[12] " + line, "[14] " + line}));
  for (const std::size_t rank : {0U, 1U, 2U}) put(h.workers[rank].out, line + '\n');
  CHECK(h.shows({"[10] " + line, "[12] " + line, "[14] " + line, "[10-12] " + line}));
  CHECK(h.end());
}

TEST_CASE("what a rank echoes stands behind its prompt, below the bars of others") {
  ScreenHarness h(2, [](OutputOptions& options) { options.input_rank = 10; });
  put(h.workers[1].out, "\r10%");
  put(h.workers[0].out, "name? ");
  CHECK(h.shows({"[11] 10%", "[10] name?"}));
  put(h.workers[0].out, "bx");
  CHECK(h.shows({"[11] 10%", "[10] name? bx"}));
  put(h.workers[0].out, "\b \bob");
  put(h.workers[1].out, "\r20%");
  CHECK(h.shows({"[11] 20%", "[10] name? bob"}));
  put(h.workers[0].out, "\nhello bob\ndots");
  CHECK(h.shows({"[10] name? bob", "[10] hello bob", "[11] 20%", "[10] dots"}));
  put(h.workers[0].out, "...\n");
  CHECK(h.shows({"[10] name? bob", "[10] hello bob", "[10] dots...", "[11] 20%"}));
  CHECK(h.end());
}

TEST_CASE("labels have the colour of their rank on a terminal") {
  ScreenHarness h(2, [](OutputOptions& options) { options.log.color = When::automatic; });
  put(h.workers[1].out, "x\n");
  CHECK(h.shows({"[11] x"}));
  CHECK(h.all == "\033[33m[11] \033[mx\r\n");
  CHECK(h.end());
}
