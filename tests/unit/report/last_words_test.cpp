#include "evidence.hpp"

#include "ddrun/base/text.hpp"
#include "ddrun/test/catch.hpp"

using namespace ddrun;
using namespace ddrun::agent;
using namespace std::chrono_literals;

namespace {

using Lines = std::vector<std::string>;
using Time = std::chrono::system_clock::time_point;

/// Lines at intervals of a tenth of a second.
std::optional<LastWords> last_words(std::string_view text) {
  if (text.ends_with('\n')) text.remove_suffix(1);
  std::vector<logs::TailLine> tail;
  for (const std::string& line : split(text, '\n')) {
    tail.push_back({line, Time(1000s + 100ms * static_cast<int>(tail.size())), tail.size()});
  }
  return find_last_words(tail);
}

Lines reason(std::string_view text) {
  const auto words = last_words(text);
  return words ? words->reason : Lines{};
}

}  // namespace

TEST_CASE("the reason of a traceback is its exception") {
  const auto words = last_words(
      "loading\n"
      "Traceback (most recent call last):\n"
      "  File \"train.py\", line 3, in <module>\n"
      "    main()\n"
      "    ~~~~^^\n"
      "\033[1;31mValueError\033[0m: shard 17 is corrupt\n"
      "wandb: one\n"
      "wandb: two\n");
  REQUIRE(words);
  CHECK(words->reason == Lines{"ValueError: shard 17 is corrupt"});
  CHECK(words->text.size() == 5);
  CHECK(words->text.front() == "Traceback (most recent call last):");
  CHECK(words->text.back() == "ValueError: shard 17 is corrupt");
  CHECK(words->at == Time(1000s + 500ms));
  CHECK(words->shown == 5);
  CHECK(words->lines_after == 2);
  CHECK_FALSE(words->continued);
  CHECK_FALSE(words->blames_peer);

  CHECK(reason("[rank3]: Traceback (most recent call last):\n[rank3]:   File \"a\", line 1, in f\n[rank3]: "
               "torch.OutOfMemoryError: CUDA out of memory.\n") ==
        Lines{"torch.OutOfMemoryError: CUDA out of memory."});
  CHECK(reason("Traceback (most recent call last):\n  File \"a\", line 1\n    f()\nKeyboardInterrupt") ==
        Lines{"KeyboardInterrupt"});
  CHECK(reason("  File \"a.py\", line 1\n    x x\n      ^\nSyntaxError: invalid syntax\n") ==
        Lines{"SyntaxError: invalid syntax"});
  // Output of another thread in between.
  CHECK(reason("Traceback (most recent call last):\n  File \"a\", line 1\n10% of the data\nKeyError: 'x'\n") ==
        Lines{"KeyError: 'x'"});
  CHECK(reason("Traceback (most recent call last):") == Lines{"Traceback (most recent call last):"});
}

TEST_CASE("a chain gives the exception and the one before it") {
  const std::string first = "Traceback (most recent call last):\n  File \"a\", line 1, in f\nKeyError: 'lr'\n";
  const std::string second =
      "Traceback (most recent call last):\n  File \"a\", line 3, in g\nRuntimeError: bad config\n";
  for (const char* link : {"\nDuring handling of the above exception, another exception occurred:\n\n",
                           "\nThe above exception was the direct cause of the following exception:\n\n"}) {
    const auto words = last_words(first + link + second);
    REQUIRE(words);
    CHECK(words->reason == Lines{"RuntimeError: bad config", "after KeyError: 'lr'"});
    CHECK(words->text.size() == 9);
  }
  // The end of the process group fails because of the failure.
  const auto words = last_words(first + "\nDuring handling of the above exception, another exception occurred:\n\n" +
                                "Traceback (most recent call last):\n  File \"a\", line 9, in h\n"
                                "RuntimeError: [gloo] Connection closed by peer\n");
  REQUIRE(words);
  CHECK(words->reason == Lines{"KeyError: 'lr'"});
  CHECK_FALSE(words->blames_peer);
}

TEST_CASE("an exception group gives its members") {
  const auto words = last_words(
      "  + Exception Group Traceback (most recent call last):\n"
      "  |   File \"a.py\", line 4, in <module>\n"
      "  |     raise ExceptionGroup(\"two\", [ValueError(\"a\"), KeyError(\"b\")])\n"
      "  | ExceptionGroup: two (2 sub-exceptions)\n"
      "  +-+---------------- 1 ----------------\n"
      "    | Traceback (most recent call last):\n"
      "    |   File \"a.py\", line 2, in f\n"
      "    | ValueError: a\n"
      "    +---------------- 2 ----------------\n"
      "    | KeyError: 'b'\n"
      "    +------------------------------------\n");
  REQUIRE(words);
  CHECK(words->reason == Lines{"ExceptionGroup: two (2 sub-exceptions)", "ValueError: a", "KeyError: 'b'"});
  CHECK_FALSE(words->blames_peer);
}

TEST_CASE("fatal messages of other languages and libraries are known") {
  CHECK(reason("terminate called after throwing an instance of 'std::runtime_error'\n  what():  boom\n") ==
        Lines{"std::runtime_error: boom"});
  CHECK(reason("terminate called without an active exception\n") ==
        Lines{"terminate called without an active exception"});
  CHECK(reason("train: a.cpp:3: int main(): Assertion `x > 0' failed.\n") ==
        Lines{"train: a.cpp:3: int main(): Assertion `x > 0' failed."});
  CHECK(reason("free(): double free detected in tcache 2\n").size() == 1);
  CHECK(reason("*** stack smashing detected ***: terminated\n").size() == 1);
  CHECK(reason("thread 'main' panicked at src/main.rs:2:5:\nindex out of bounds\nnote: run with\n") ==
        Lines{"thread 'main' panicked at src/main.rs:2:5:", "index out of bounds"});
  CHECK(reason("panic: runtime error: index out of range [3]\n\ngoroutine 1 [running]:\n").size() == 1);
  const auto asan = last_words(
      "==7==ERROR: AddressSanitizer: heap-use-after-free on address 0x60\n    #0 0x4 in main a.cpp:3\n    #1 0x5\n");
  REQUIRE(asan);
  CHECK(asan->reason == Lines{"==7==ERROR: AddressSanitizer: heap-use-after-free on address 0x60"});
  CHECK(asan->text.size() == 3);
  CHECK(reason("loss 0.3\nstep 7: all is well\n").empty());
  CHECK(reason("").empty());
}

TEST_CASE("a crash of a Python program gives the place") {
  const std::string frames =
      "Fatal Python error: Segmentation fault\n\n"
      "Thread 0x00007f1 (most recent call first):\n"
      "  File \"loader.py\", line 5 in wait\n\n"
      "Current thread 0x00007f2 (most recent call first):\n"
      "  File \"train.py\", line 7 in step\n"
      "  File \"train.py\", line 9 in <module>\n\n"
      "Extension modules: numpy (total: 1)\n";
  CHECK(reason(frames) == Lines{"Fatal Python error: Segmentation fault", "File \"train.py\", line 7 in step"});
  const std::string aborted =
      "terminate called after throwing an instance of 'c10::Error'\n  what():  bad size\n"
      "Fatal Python error: Aborted\n\nCurrent thread 0x1 (most recent call first):\n"
      "  File \"train.py\", line 7 in step\n";
  CHECK(reason(aborted) == Lines{"c10::Error: bad size", "File \"train.py\", line 7 in step"});
}

TEST_CASE("messages about peers do not hide the worker's own failure") {
  const std::string own = "Traceback (most recent call last):\n  File \"a\", line 1, in f\nValueError: mine\n";
  const std::string victim =
      "terminate called after throwing an instance of 'gloo::IoException'\n  what():  [pair.cc] Connection closed by "
      "peer\n";
  auto words = last_words(own + victim);
  REQUIRE(words);
  CHECK(words->reason == Lines{"ValueError: mine"});
  CHECK_FALSE(words->blames_peer);
  words = last_words(victim);
  REQUIRE(words);
  CHECK(words->blames_peer);
  // Failures followed by other output were survived, and so were those before the exception that ends an interpreter.
  const std::string uncaught =
      "Traceback (most recent call last):\n  File \"a\", line 9, in g\n"
      "RuntimeError: Connection closed by peer\n";
  const std::string noise = "[rank0]:[W1125 12:00:00.1 ProcessGroupNCCL.cpp:1250] Warning: not destroyed\n\n";
  for (const std::string& text : {own + "step 1\n" + victim, own + uncaught, own + "step 1\nlost: Broken pipe\n\n",
                                  "CUDA error, trying again\n" + uncaught}) {
    INFO(text);
    words = last_words(text);
    REQUIRE(words);
    CHECK(words->blames_peer);
  }
  for (const std::string& text :
       {own + noise + victim, "Process Process-1:\n" + own + uncaught,
        own + "Exception in thread Thread-1:\n" + uncaught, own + "Error in atexit._run_exitfuncs:\n" + uncaught,
        own + "Exception ignored in: <function f>\n" + uncaught + noise}) {
    INFO(text);
    words = last_words(text);
    REQUIRE(words);
    CHECK(words->reason == Lines{"ValueError: mine"});
    CHECK_FALSE(words->continued);
  }
  // Long before: that one was survived.
  std::string long_after = own;
  for (int i = 0; i < 200; ++i) long_after += "step\n";
  words = last_words(long_after + victim);
  REQUIRE(words);
  CHECK(words->blames_peer);
}
