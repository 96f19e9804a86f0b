#include "python_frames.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "ddrun/base/text.hpp"
#include "ddrun/test/catch.hpp"
#include "ddrun/test/files.hpp"
#include "ddrun/test/processes.hpp"
#include "recorded_memory.hpp"

using namespace ddrun;
using namespace ddrun::inspect;
using namespace ddrun::test;

namespace {

using Threads = std::map<pid_t, std::vector<PythonFrame>>;

Threads frames_of(const std::map<pid_t, PythonStack>& stacks) {
  Threads threads;
  for (const auto& [tid, stack] : stacks) threads[tid] = stack.frames;
  return threads;
}

// What recorded/hang.py does once it says "ready".
const std::vector<std::string> main_thread = {
    "wait hang.py:62",
    "𠀀 hang.py:55",
    "δ hang.py:49 a=0 b=1 c=257 d=1073741823",
    "lädt hang.py:41 index=1 inner=2 zero=0",
    "Trainer.batches hang.py:28 inner=2 index=1",
    "Trainer.step hang.py:17 step=1204 lost=-7 item=1 last=1",
    "main hang.py:96",
    "<module> hang.py:102",
};
const std::vector<std::string> coroutine_thread = {
    "wait hang.py:62",
    "Loader.fetch hang.py:69 attempt=3",
    "Loader.load hang.py:74",
    "load hang.py:80",
};

/// FUNCTION FILE:LINE NAME=VALUE…, up to the frame with this function.
std::vector<std::string> describe(const std::vector<PythonFrame>& frames, const std::string& last) {
  std::vector<std::string> lines;
  for (const PythonFrame& frame : frames) {
    std::string line =
        concat(frame.function, ' ', std::filesystem::path(frame.file).filename().string(), ':', frame.line);
    for (const auto& [name, value] : frame.numbers) line += concat(' ', name, '=', value);
    lines.push_back(line);
    if (frame.function == last) break;
  }
  return lines;
}

/// The thread that has called this function.
std::vector<PythonFrame> thread_in(const Threads& threads, const std::string& function) {
  for (const auto& [tid, frames] : threads) {
    for (const PythonFrame& frame : frames) {
      if (frame.function == function) return frames;
    }
  }
  return {};
}

void check_frames(const Threads& threads) {
  CHECK(threads.size() == 3);
  CHECK(describe(thread_in(threads, "main"), "") == main_thread);
  CHECK(describe(thread_in(threads, "announce"), "announce") == std::vector<std::string>{"announce hang.py:87"});
  const auto coroutine = thread_in(threads, "load");
  CHECK(describe(coroutine, "load") == coroutine_thread);
  REQUIRE_FALSE(coroutine.empty());
  CHECK(coroutine.back().function == "Thread._bootstrap");
}

/// Programs of supported versions, each once.
std::vector<std::string> pythons() {
  std::vector<std::string> directories;
  std::istringstream path(std::getenv("PATH") != nullptr ? std::getenv("PATH") : "");
  for (std::string directory; std::getline(path, directory, ':');) directories.push_back(directory);
  directories.emplace_back("/usr/bin");
  std::error_code error;
  const std::string home = std::getenv("HOME") != nullptr ? std::getenv("HOME") : "";
  for (const auto& version : std::filesystem::directory_iterator(home + "/.pyenv/versions", error)) {
    directories.push_back(version.path().string() + "/bin");
  }
  std::set<std::string> programs;
  for (const std::string& directory : directories) {
    // pyenv's scripts of all versions, which run another one or none.
    if (directory.ends_with("/shims")) continue;
    for (const char* const name : {"python3.11", "python3.12", "python3.13", "python3.14", "python3.15"}) {
      const auto program = std::filesystem::canonical(concat(directory, '/', name), error);
      if (!error && ::access(program.c_str(), X_OK) == 0) programs.insert(program.string());
    }
  }
  return {programs.begin(), programs.end()};
}

struct Live {
  std::string unsupported_reason;
  Threads threads;
};

/// The frames of a Python process that runs hang.py, once it sleeps.
Live read_sleeping(Run& python) {
  REQUIRE(python.wait_for_out("ready"));
  const auto memory = ProcessMemory::open(python.pid());
  if (!memory) skip(concat("cannot read other processes: ", memory.error().message));
  const CachedMemory cached(*memory);
  const auto reader = PythonReader::find(cached, read_mappings(python.pid()));
  REQUIRE(reader);
  Live live{reader->unsupported_reason(), {}};
  if (!live.unsupported_reason.empty()) return live;
  // It says so a moment before its threads sleep.
  const auto is_asleep = [&] {
    live.threads = frames_of(reader->read(*memory));
    return std::ranges::all_of(live.threads, [](const auto& thread) {
      const auto& frames = thread.second;
      return !frames.empty() && (frames[0].line == 62 || frames[0].line == 87);
    });
  };
  CHECK(wait_until(is_asleep));
  return live;
}

/// Where the first thread is.
struct Located {
  PythonLayout layout{};
  std::uint64_t thread = 0;
  std::uint64_t frame = 0;
};

Threads read_threads(const RecordedMemory& memory) {
  const auto reader = PythonReader::find(memory, memory.mappings());
  REQUIRE(reader);
  return frames_of(reader->read(memory));
}

Located locate(const RecordedMemory& memory) {
  Located at;
  for (const Mapping& mapping : memory.mappings()) {
    const auto image = ElfImage::read(memory, mapping.start);
    const std::uint64_t runtime = image ? image->symbol("_PyRuntime") : 0;
    if (runtime == 0) continue;
    const auto version = memory.pointer(image->symbol("Py_Version"));
    REQUIRE(read_python_layout(memory, runtime, *version, at.layout).empty());
    const auto interpreter = memory.pointer(runtime + at.layout.at.runtime_interpreters);
    at.thread = *memory.pointer(*interpreter + at.layout.at.interpreter_threads);
    at.frame = *memory.pointer(at.thread + at.layout.at.thread_frame);
    return at;
  }
  FAIL("no interpreter");
  return at;
}

/// The first read at an address gives a pointer that leads nowhere.
class Stale : public Memory {
 public:
  Stale(const Memory& memory, std::uint64_t address) : memory_(memory), address_(address) {}
  bool read(std::uint64_t address, void* to, std::size_t size) const override {
    if (!memory_.read(address, to, size)) return false;
    if (address == std::exchange(address_, address == address_ ? 0 : address_)) std::memset(to, 0x11, size);
    return true;
  }

 private:
  const Memory& memory_;
  mutable std::uint64_t address_;
};

/// A page of zeros but for a table.
class TableMemory : public Memory {
 public:
  bool read(std::uint64_t address, void* to, std::size_t size) const override {
    std::memset(to, 0, size);
    if (address == 0x1000) std::memcpy(to, table.data(), std::min(size, sizeof table));
    return address == 0x1000;
  }
  std::array<std::uint64_t, 128> table{};
};

}  // namespace

TEST_CASE("frames of the installed Pythons: qualified names, lines of calls, small ints") {
  const std::vector<std::string> programs = pythons();
  if (programs.empty()) skip("no python3.11 to python3.15 is installed");
  for (const std::string& program : programs) {
    INFO(program);
    Run python({program, DDRUN_RECORDED "/hang.py"});
    const Live live = read_sleeping(python);
    if (!live.unsupported_reason.empty()) {
      WARN(program << ": " << live.unsupported_reason);
      continue;
    }
    check_frames(live.threads);
    CHECK(thread_in(live.threads, "main").front().file == DDRUN_RECORDED "/hang.py");
  }
}

TEST_CASE("frames of ddrun's preload server and what called it are left out") {
  const std::vector<std::string> programs = pythons();
  if (programs.empty()) skip("no python3.11 to python3.15 is installed");
  const std::string server = "import runpy; runpy.run_path('" DDRUN_RECORDED "/hang.py', run_name='__main__')";
  Run python({programs.front(), "-c", concat("exec(compile(\"\"\"", server, "\"\"\", '<ddrun --preload>', 'exec'))")});
  const Live live = read_sleeping(python);
  if (!live.unsupported_reason.empty()) skip(live.unsupported_reason);
  const auto frames = thread_in(live.threads, "main");
  const auto lines = describe(frames, "<module>");
  CHECK(lines == main_thread);
  REQUIRE(frames.size() > lines.size());
  CHECK(frames.back().function == "run_path");
}

TEST_CASE("frames of recorded processes of all supported versions") {
  const std::string version = GENERATE("3.11", "3.12", "3.13", "3.14", "3.15");
  INFO(version);
  const std::string file = read_file(concat(DDRUN_RECORDED "/python", version));
  const RecordedMemory memory(file);
  const auto reader = PythonReader::find(memory, memory.mappings());
  REQUIRE(reader);
  CHECK(reader->unsupported_reason().empty());
  const Threads threads = frames_of(reader->read(memory));
  check_frames(threads);
  CHECK(thread_in(threads, "main").front().file == "/tmp/job/hang.py");
  // It holds all that was read.
  CHECK(file.find("secret") == std::string::npos);
}

TEST_CASE("a circle of frames ends") {
  RecordedMemory memory(read_file(DDRUN_RECORDED "/python3.13"));
  const Located at = locate(memory);
  memory.write(at.frame + at.layout.at.frame_previous, at.frame);
  const Threads threads = read_threads(memory);
  CHECK(threads.size() == 3);
  CHECK(std::ranges::count_if(threads, [](const auto& thread) { return thread.second.size() == 512; }) == 1);
  // What is above the limit is counted.
  const auto stacks = PythonReader::find(memory, memory.mappings())->read(memory);
  CHECK(std::ranges::count_if(stacks, [](const auto& thread) { return thread.second.left_out == 2000 - 512; }) == 1);
}

TEST_CASE("a circle of threads ends") {
  RecordedMemory memory(read_file(DDRUN_RECORDED "/python3.13"));
  const Located at = locate(memory);
  memory.write(at.thread + at.layout.at.thread_next, at.thread);
  const Threads threads = read_threads(memory);
  REQUIRE(threads.size() == 1);
  CHECK(threads.begin()->second.size() == 512);
}

TEST_CASE("a function that returned while it was read does not hide its callers") {
  RecordedMemory memory(read_file(DDRUN_RECORDED "/python3.14"));
  const Located at = locate(memory);
  memory.write(at.frame + at.layout.at.frame_code, std::uint64_t{0});
  const Threads threads = read_threads(memory);
  CHECK(thread_in(threads, "announce").empty());
  CHECK(std::ranges::count_if(threads, [](const auto& thread) { return thread.second[0].function == "Thread.run"; }) ==
        1);
}

TEST_CASE("a thread that has left a frame while it was read is read once more") {
  const RecordedMemory memory(read_file(DDRUN_RECORDED "/python3.13"));
  const auto reader = PythonReader::find(memory, memory.mappings());
  REQUIRE(reader);
  const Located at = locate(memory);
  check_frames(frames_of(reader->read(Stale(memory, at.thread + at.layout.at.thread_frame))));
}

TEST_CASE("what cannot be read is named") {
  PythonLayout layout;
  TableMemory memory;
  const auto reason = [&](std::uint64_t version) { return read_python_layout(memory, 0x1000, version, layout); };
  CHECK(reason(0x030a00f0) == "Python 3.10: native frames only");
  CHECK(reason(0x031000f0) == "Python 3.16: native frames only");
  CHECK(reason(0x040b00f0) == "Python 4.11: native frames only");
  CHECK(reason(0x030f00b1) == "Python 3.15 pre-release: native frames only");
  CHECK(reason(0x030e00f0) == "Python 3.14 without a table of offsets: native frames only");
  std::memcpy(memory.table.data(), "xdebugpy", 8);
  memory.table[1] = 0x030e00f0;
  CHECK(reason(0x030e00f0).empty());
  CHECK(reason(0x030d00f0) == "Python 3.13 without a table of offsets: native frames only");
  memory.table[2] = 1;
  CHECK(reason(0x030e00f0) == "Python 3.14 free-threaded: native frames only");
  memory.table[2] = 0;
  memory.table[5] = 1ULL << 40U;
  CHECK(reason(0x030e00f0) == "Python 3.14 with unknown offsets: native frames only");

  const auto pypy = PythonReader::find(memory, parse_mappings("1000-2000 r-xp 0 00:00 0 /usr/bin/pypy3.10\n", 1));
  REQUIRE(pypy);
  CHECK(pypy->unsupported_reason() == "PyPy: native frames only");
  CHECK_FALSE(PythonReader::find(memory, parse_mappings("1000-2000 r-xp 0 00:00 0 /usr/bin/sleep\n", 1)));
}
