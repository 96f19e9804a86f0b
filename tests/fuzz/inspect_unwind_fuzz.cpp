// The reader of native frames in a process whose memory is anything, and that of a file's symbols.
//
// The input changes what was recorded of a small image of a program: ELF header, search table, .eh_frame and stack, as
// built below; single bytes and values. All other addresses fail, or hold bytes of the input over and over. Its first
// byte chooses the architecture, or the reader of symbols, for which the rest is the file.
//
// Checks: the number of reads is limited; so are the frames; each has an address in code, the innermost one excepted.
#include <elf.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "ddrun/base/text.hpp"
#include "ddrun/base/unique_fd.hpp"
#include "input.hpp"
#include "symbols.hpp"
#include "unwinder.hpp"

using namespace ddrun;
using namespace ddrun::inspect;
using ddrun::fuzz::Input;

namespace {

constexpr std::uint64_t image_begin = 0x400000;
constexpr std::uint64_t stack_begin = 0x7fff0000;
constexpr std::size_t image_size = 0x1000;
constexpr std::size_t stack_size = 0x400;
/// 128 frames, for each its description, and up to a read for each byte of its expressions.
constexpr std::size_t max_reads = 128 * (200 + 2 * 4096);

/// A program with an empty .eh_frame_hdr, whose table and descriptions the input fills.
class HostileMemory : public Memory {
 public:
  HostileMemory(std::string_view tables, std::string_view stack, std::string_view filler)
      : image_(image_size, '\0'), stack_(stack), filler_(filler) {
    Elf64_Ehdr header{};
    std::memcpy(header.e_ident, ELFMAG, SELFMAG);
    header.e_ident[EI_CLASS] = ELFCLASS64;
    header.e_phentsize = sizeof(Elf64_Phdr);
    header.e_phoff = sizeof header;
    header.e_phnum = 2;
    Elf64_Phdr segments[2]{};
    segments[0].p_type = PT_LOAD;
    segments[1].p_type = PT_GNU_EH_FRAME;
    segments[1].p_vaddr = tables_at;
    std::memcpy(image_.data(), &header, sizeof header);
    std::memcpy(image_.data() + sizeof header, segments, sizeof segments);
    image_.replace(tables_at, tables.size(), tables);
    image_.resize(image_size);
    stack_.resize(stack_size);
  }
  bool read(std::uint64_t address, void* to, std::size_t size) const override {
    DDRUN_FUZZ_CHECK(++reads_ <= max_reads);
    if (copy(image_, image_begin, address, to, size) || copy(stack_, stack_begin, address, to, size)) return true;
    if (filler_.empty()) return false;
    for (std::size_t i = 0; i < size; ++i) static_cast<char*>(to)[i] = filler_[(address + i) % filler_.size()];
    return true;
  }
  static constexpr std::size_t tables_at = 0x100;

 private:
  static bool copy(const std::string& from, std::uint64_t begin, std::uint64_t address, void* to, std::size_t size) {
    if (address < begin || size > from.size() || address - begin > from.size() - size) return false;
    std::memcpy(to, from.data() + (address - begin), size);
    return true;
  }
  std::string image_;
  std::string stack_;
  std::string_view filler_;
  mutable std::size_t reads_ = 0;
};

std::size_t number(Input& input) {
  const unsigned low = input.byte();
  return low | unsigned{input.byte()} << 8U;
}

void read_frames(Input& input, const Architecture& architecture) {
  const bool cached = (input.byte() & 1U) != 0;
  Registers registers;
  registers[architecture.program_counter] = image_begin + number(input) % image_size;
  registers[architecture.stack_pointer] = stack_begin + number(input) % stack_size;
  const std::string_view tables = input.bytes(number(input) % (image_size - HostileMemory::tables_at));
  const std::string_view stack = input.bytes(number(input) % stack_size);
  const HostileMemory memory(tables, stack, input.bytes(~std::size_t{0}));
  const CachedMemory cache(memory);
  const auto mappings = parse_mappings(
      "400000-401000 r-xp 0 00:00 0 /program\n"
      "500000-501000 r-xp 1000 00:00 0 /no_beginning\n"
      "7f0000000000-7fffffffffff r-xp 0 00:00 0 /large\n",
      1);
  CodeImages images(cached ? static_cast<const Memory&>(cache) : memory, mappings);
  const auto frames = unwind(memory, images, registers, architecture);
  DDRUN_FUZZ_CHECK(!frames.empty() && frames.size() <= 128);
  for (std::size_t i = 1; i < frames.size(); ++i) DDRUN_FUZZ_CHECK(frames[i].module != nullptr);
}

void read_symbols(Input& input) {
  std::vector<NativeFrame> frames(3);
  for (NativeFrame& frame : frames) frame.address = number(input);
  const std::string_view bytes = input.bytes(~std::size_t{0});
  const UniqueFd file(::memfd_create("module", MFD_CLOEXEC));
  struct stat info {};
  if (!file || ::write(file.get(), bytes.data(), bytes.size()) < 0 || ::fstat(file.get(), &info) != 0) return;
  const auto module = std::make_shared<const Module>(
      Module{concat("/proc/self/fd/", file.get()), ::getpid(), info.st_dev, info.st_ino});
  for (NativeFrame& frame : frames) frame.module = module;
  NameCache known;
  look_up_names(frames, known, Deadline::max());
  for (NativeFrame& frame : frames) set_name(frame, known);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Input input(data, size);
  const unsigned kind = input.byte() % 3;
  if (kind == 0) read_frames(input, x86_64);
  if (kind == 1) read_frames(input, aarch64);
  if (kind == 2) read_symbols(input);
  return 0;
}
