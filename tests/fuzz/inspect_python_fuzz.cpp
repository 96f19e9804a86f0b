// The reader of Python frames in a process whose memory is anything.
//
// The input changes the recorded memory of a real process (tests/unit/inspect/recorded): single bytes, values, and
// pointers to other places in it. All other addresses fail, or hold bytes of the input over and over.
//
// Checks: the number of reads is limited, and those after the end of the process; so is what is returned; text is
// UTF-8.
#include <array>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "ddrun/base/text.hpp"
#include "ddrun/test/files.hpp"
#include "input.hpp"
#include "python_frames.hpp"
#include "recorded_memory.hpp"

using namespace ddrun;
using namespace ddrun::inspect;
using ddrun::fuzz::Input;

namespace {

constexpr std::size_t max_reads = 2'200'000;
constexpr std::size_t max_reads_of_dead = 500;

class HostileMemory : public Memory {
 public:
  HostileMemory(const RecordedMemory& recorded, std::string_view filler, std::size_t lifetime)
      : recorded_(recorded), filler_(filler), lifetime_(lifetime) {}

  bool read(std::uint64_t address, void* to, std::size_t size) const override {
    ++reads_;
    DDRUN_FUZZ_CHECK(reads_ <= max_reads && (reads_ < lifetime_ || reads_ - lifetime_ < max_reads_of_dead));
    if (reads_ >= lifetime_) return false;
    if (recorded_.read(address, to, size)) return true;
    if (filler_.empty()) return false;
    for (std::size_t i = 0; i < size; ++i) static_cast<char*>(to)[i] = filler_[(address + i) % filler_.size()];
    return true;
  }

 private:
  const RecordedMemory& recorded_;
  std::string_view filler_;
  std::size_t lifetime_;
  mutable std::size_t reads_ = 0;
};

const std::vector<RecordedMemory>& records() {
  static const std::vector<RecordedMemory> all = [] {
    std::vector<RecordedMemory> loaded;
    for (const char* const version : {"3.11", "3.12", "3.13", "3.14", "3.15"}) {
      loaded.emplace_back(test::read_file(concat(DDRUN_RECORDED "/python", version)));
      DDRUN_FUZZ_CHECK(!loaded.back().mappings().empty());
    }
    return loaded;
  }();
  return all;
}

std::uint16_t number(Input& input) {
  const unsigned low = input.byte();
  return static_cast<std::uint16_t>(low | unsigned{input.byte()} << 8U);
}

void change(RecordedMemory& memory, Input& input) {
  const unsigned kind = input.byte() % 3;
  const std::uint64_t at = memory.address_at(number(input));
  if (kind == 0) memory.write(at, memory.address_at(number(input)));
  if (kind == 1) {
    std::uint64_t value = 0;
    const std::string_view bytes = input.bytes(sizeof value);
    std::memcpy(&value, bytes.data(), bytes.size());
    memory.write(at, value);
  }
  if (kind == 2) memory.write(at, input.byte());
}

bool is_utf8(std::string_view text) {
  while (!text.empty()) {
    const auto first = static_cast<unsigned char>(text[0]);
    const std::size_t size = first < 0x80 ? 1 : first < 0xc0 ? 0 : first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;
    if (size == 0 || size > text.size()) return false;
    for (const char c : text.substr(1, size - 1)) {
      if ((static_cast<unsigned char>(c) & 0xc0U) != 0x80) return false;
    }
    text.remove_prefix(size);
  }
  return true;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Input input(data, size);
  RecordedMemory memory = records()[input.byte() % records().size()];
  const unsigned flags = input.byte();
  const bool is_found_hostile = (flags & 1U) != 0;
  const bool dies = (flags & 2U) == 0;
  auto reader = PythonReader::find(memory, memory.mappings());
  DDRUN_FUZZ_CHECK(reader && reader->unsupported_reason().empty());

  for (unsigned changes = input.byte() % 32; changes > 0; --changes) change(memory, input);
  const std::string_view filler = input.bytes(size);
  const HostileMemory hostile(memory, filler, dies ? 20'000 : max_reads);
  if (is_found_hostile) reader = PythonReader::find(hostile, memory.mappings());
  if (!reader) return 0;

  for (const auto& [tid, stack] : reader->read(hostile)) {
    DDRUN_FUZZ_CHECK(tid > 0 && stack.frames.size() <= 512);
    for (const PythonFrame& frame : stack.frames) {
      DDRUN_FUZZ_CHECK(frame.function.size() <= 2048 && is_utf8(frame.function));
      DDRUN_FUZZ_CHECK(frame.file.size() <= 2048 && is_utf8(frame.file));
      DDRUN_FUZZ_CHECK(frame.numbers.size() <= 4);
      for (const auto& [name, value] : frame.numbers) DDRUN_FUZZ_CHECK(name.size() <= 2048 && is_utf8(name));
    }
  }
  return 0;
}
