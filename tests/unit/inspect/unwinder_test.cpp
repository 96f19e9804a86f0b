// Threads of real programs, built in several ways, that are blocked in system calls or compute.
#include "unwinder.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "ddrun/base/proc.hpp"
#include "ddrun/base/text.hpp"
#include "ddrun/test/catch.hpp"
#include "ddrun/test/files.hpp"
#include "ddrun/test/processes.hpp"
#include "ddrun/test/soon.hpp"
#include "process_reader.hpp"
#include "recorded_memory.hpp"
#include "symbols.hpp"
#include "system_call.hpp"

using namespace ddrun;
using namespace ddrun::inspect;

namespace {

std::vector<pid_t> threads_of(pid_t pid) {
  std::vector<pid_t> threads;
  std::error_code ec;
  for (const auto& entry : std::filesystem::directory_iterator(concat("/proc/", pid, "/task"), ec)) {
    threads.push_back(std::atoi(entry.path().filename().c_str()));
  }
  std::sort(threads.begin(), threads.end());
  return threads;
}

std::string call_of(pid_t pid, pid_t thread) {
  return read_small_file(concat("/proc/", pid, "/task/", thread, "/syscall")).value_or("");
}

/// Named frames of a thread that is blocked.
std::vector<NativeFrame> frames_of(pid_t pid, pid_t thread) {
  const auto memory = ProcessMemory::open(pid);
  REQUIRE(memory);
  const CachedMemory tables(*memory);
  const auto mappings = read_mappings(pid);
  CodeImages images(tables, mappings);
  const auto call = parse_system_call(call_of(pid, thread));
  REQUIRE(call);
  auto frames = unwind(*memory, images, make_registers(call->stack_pointer, call->program_counter));
  NameCache known;
  look_up_names(frames, known, Deadline::max());
  for (NativeFrame& frame : frames) set_name(frame, known);
  return frames;
}

std::string names_of(const std::vector<NativeFrame>& frames) {
  std::string names;
  for (const NativeFrame& frame : frames) names += concat(frame.function, '\n');
  return names;
}

/// Whether these lines are in `names` in this order, others between them.
bool has_in_order(const std::string& names, const std::vector<std::string>& lines) {
  std::size_t at = 0;
  for (const std::string& line : lines) {
    at = concat('\n', names).find(concat('\n', line, '\n'), at);
    if (at == std::string::npos) return false;
    at += line.size() + 1;
  }
  return true;
}

/// Addresses of frames in the program itself.
std::vector<std::uint64_t> own_addresses(const std::vector<NativeFrame>& frames) {
  std::vector<std::uint64_t> addresses;
  for (const NativeFrame& frame : frames) {
    if (frame.module && frame.module->path.find("native_stacks") != std::string::npos)
      addresses.push_back(frame.address);
  }
  return addresses;
}

/// The program, after all its threads have blocked in this system call.
std::unique_ptr<test::Run> start_blocked(const std::string& program, const std::string& kind, const std::string& call,
                                         std::size_t threads = 1) {
  auto run = std::make_unique<test::Run>(std::vector<std::string>{program, kind});
  const bool blocked = test::wait_until([&] {
    const auto all = threads_of(run->pid());
    return all.size() == threads && std::all_of(all.begin(), all.end(), [&](pid_t thread) {
             return call_of(run->pid(), thread).starts_with(call);
           });
  });
  REQUIRE(blocked);
  return run;
}

#ifdef __clang__
const std::string lambda = "main::$_0";
#else
const std::string lambda = "main::{lambda(int)#1}";
#endif
const std::vector<std::string> outer{"native::block", lambda + "::operator()", "native::call<" + lambda + ">", "main",
                                     "_start"};

std::vector<std::string> below(std::vector<std::string> inner) {
  inner.insert(inner.end(), outer.begin(), outer.end());
  return inner;
}

/// False, with the reason printed, where the numbers of system calls here are others, or memory must not be read.
bool can_read_programs() {
#if defined(__x86_64__)
  if (read_small_file("/proc/self/syscall")) return true;
  WARN("skipped: this kernel has no /proc/PID/syscall");
#else
  WARN("skipped: for x86-64");
#endif
  return false;
}

}  // namespace

TEST_CASE("frames of a blocked thread go on to the start of the program") {
  if (!can_read_programs()) return;
  for (const std::string program :
       {DDRUN_NATIVE_STACKS, DDRUN_NATIVE_STACKS_STATIC, DDRUN_NATIVE_STACKS_FRAME_POINTERS}) {
    if (program.empty()) {
      WARN("skipped: no static C library to link with");
      continue;
    }
    CAPTURE(program);
    const auto check = [&](const std::string& kind, const std::string& call, const std::vector<std::string>& expected) {
      const auto run = start_blocked(program, kind, call);
      const std::string names = names_of(frames_of(run->pid(), run->pid()));
      CAPTURE(kind, names);
      CHECK(has_in_order(names, expected));
      CHECK(names.ends_with("\n_start\n"));
    };
    check("read", "0 ", below({"native::block_in_read"}));
    check("poll", "7 ", outer);
    check("sleep", "230 ", outer);
    check("mutex", "202 ", outer);
    check("handler", "0 ", below({"native::block_in_read", "native::on_signal"}));
  }
}

TEST_CASE("frames of a deep recursion are limited") {
  if (!can_read_programs()) return;
  const auto run = start_blocked(DDRUN_NATIVE_STACKS, "recursion", "0 ");
  const auto frames = frames_of(run->pid(), run->pid());
  CHECK(frames.size() == 128);
  CHECK(frames.back().function == "native::recurse");
}

TEST_CASE("frames of other threads go on to their start") {
  if (!can_read_programs()) return;
  const auto run = start_blocked(DDRUN_NATIVE_STACKS, "threads", "0 ", 3);
  for (const pid_t thread : threads_of(run->pid())) {
    const std::string names = names_of(frames_of(run->pid(), thread));
    CAPTURE(names);
    if (thread == run->pid()) CHECK(has_in_order(names, below({"native::block_in_read"})));
    else CHECK(has_in_order(names, {"native::block_in_read", "native::run_thread"}));
  }
}

TEST_CASE("frames need neither symbols nor the program's file") {
  if (!can_read_programs()) return;
  const test::TemporaryDirectory folder;
  const auto whole = start_blocked(DDRUN_NATIVE_STACKS, "read", "0 ");
  const auto expected = own_addresses(frames_of(whole->pid(), whole->pid()));
  REQUIRE(expected.size() >= 6);

  const std::string copy = folder.file("native_stacks");
  std::filesystem::copy_file(DDRUN_NATIVE_STACKS, copy);
  const auto run = start_blocked(copy, "read", "0 ");
  SECTION("stripped") {
    const auto stripped = start_blocked(DDRUN_NATIVE_STACKS_STRIPPED, "read", "0 ");
    const auto frames = frames_of(stripped->pid(), stripped->pid());
    CHECK(own_addresses(frames).size() == expected.size());
    CHECK(names_of(frames).find("native::") == std::string::npos);
  }
  SECTION("deleted, and replaced by another") {
    std::filesystem::remove(copy);
    for (const bool is_replaced : {false, true}) {
      if (is_replaced) std::filesystem::copy_file("/proc/self/exe", copy);
      const auto frames = frames_of(run->pid(), run->pid());
      CHECK(own_addresses(frames) == expected);
      for (const NativeFrame& frame : frames) {
        if (frame.module->path.find("native_stacks") != std::string::npos) CHECK(frame.function.empty());
      }
    }
  }
}

TEST_CASE("a thread that computes is found in its function") {
  if (!can_read_programs()) return;
  const test::Run run({DDRUN_NATIVE_STACKS, "spin"});
  std::string names;
  std::string reason;
  const bool found = test::wait_until([&] {
    const auto sample = sample_running_thread(run.pid(), test::soon());
    if (!sample) {
      reason = sample.error().message;
      return sample.error().code == Errc::unavailable;
    }
    const auto memory = ProcessMemory::open(run.pid());
    REQUIRE(memory);
    const CachedMemory tables(*memory);
    const auto mappings = read_mappings(run.pid());
    CodeImages images(tables, mappings);
    const StackSnapshot stack(*memory, *sample->registers[native_architecture.stack_pointer], sample->stack);
    auto frames = unwind(stack, images, sample->registers);
    NameCache known;
    look_up_names(frames, known, Deadline::max());
    for (NativeFrame& frame : frames) set_name(frame, known);
    names = names_of(frames);
    return names.starts_with("native::block\n");  // earlier it may be in the loader
  });
  if (!reason.empty() && names.empty()) {
    WARN("skipped: " << reason);
    return;
  }
  CAPTURE(names);
  CHECK(found);
  CHECK(has_in_order(names, {outer.begin(), outer.end() - 1}));  // _start is not found in each sample
}

TEST_CASE("a thread that sleeps is not found computing") {
  if (!can_read_programs()) return;
  const auto run = start_blocked(DDRUN_NATIVE_STACKS, "read", "0 ");
  const auto sample = sample_running_thread(run->pid(), Clock::now() + Milliseconds(50));
  REQUIRE(!sample);
  if (sample.error().code == Errc::unavailable) {
    WARN("skipped: " << sample.error().message);
    return;
  }
  CHECK(sample.error().code == Errc::timeout);
  CHECK(call_of(run->pid(), run->pid()).starts_with("0 "));
}

TEST_CASE("frames of a program for aarch64, whose return addresses may be signed") {
  const std::string record = GENERATE(as<std::string>(), "aarch64", "aarch64-pac-ret");
  CAPTURE(record);
  const std::string file = test::read_file(concat(DDRUN_RECORDED "/", record));
  const RecordedMemory memory(file);
  const auto saved = memory.get<std::array<std::uint64_t, 33>>(0x1000);
  REQUIRE(saved);
  Registers registers;
  for (const std::size_t number : {19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 31, 32}) {
    registers[number] = (*saved)[number];
  }
  std::string expected = "record_self ";  // it keeps its return address in a register
  SECTION("with the register that holds it") {
    registers[30] = (*saved)[30];
    expected += "recurse recurse recurse run leave _start ";
  }
  SECTION("without it, as in a system call") {}
  CodeImages images(memory, memory.mappings());
  std::string names;
  for (const NativeFrame& frame : unwind(memory, images, registers, aarch64)) {
    std::istringstream lines(file.substr(0, file.find("\n\n")));
    std::string line;
    while (std::getline(lines, line)) {
      std::istringstream words(line);
      std::string word;
      std::string name;
      std::uint64_t begin = 0;
      std::uint64_t size = 0;
      if (words >> word >> name >> std::hex >> begin >> size && word == "function" && frame.address - begin < size)
        names += concat(name, ' ');
    }
  }
  CHECK(names == expected);
}
