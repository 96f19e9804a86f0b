#include "unwinder.hpp"

#include <algorithm>
#include <cstring>
#include <span>
#include <utility>

namespace ddrun::inspect {

namespace {

constexpr std::size_t max_stack_bytes = std::size_t{32} << 10U;
/// Of a description, in bytes: it bounds its instructions too, of which each has at least one.
constexpr std::size_t max_description = std::size_t{64} << 10U;
constexpr std::size_t max_saved_rows = 32;
constexpr std::size_t max_expression_stack = 64;
/// Below a stack pointer, where a function may store without moving it (x86-64).
constexpr std::uint64_t red_zone = 128;

/// Reads values from bytes that lie at an address in memory. Beyond the end they are 0 and failed() is true.
class Cursor {
 public:
  Cursor() = default;
  Cursor(std::span<const std::byte> bytes, std::uint64_t address) : bytes_(bytes), address_(address) {}

  template <class T>
  T get() {
    T value{};
    if (bytes_.size() - next_ < sizeof value) {
      fail();
      return value;
    }
    std::memcpy(&value, bytes_.data() + next_, sizeof value);
    next_ += sizeof value;
    return value;
  }
  std::uint64_t uleb() { return leb().first; }
  std::int64_t sleb() {
    auto [value, bits] = leb();
    if (bits < 64 && (value >> (bits - 1) & 1U) != 0) value |= ~std::uint64_t{0} << bits;
    return static_cast<std::int64_t>(value);
  }
  /// The next `size` bytes, which are skipped.
  Cursor part(std::uint64_t size) {
    if (size > bytes_.size() - next_) {
      fail();
      return {};
    }
    Cursor part(bytes_.subspan(next_, size), address());
    next_ += size;
    return part;
  }
  Cursor rest() { return part(bytes_.size() - next_); }
  [[nodiscard]] bool at_end() const { return next_ == bytes_.size(); }
  [[nodiscard]] bool failed() const { return failed_; }
  [[nodiscard]] std::uint64_t address() const { return address_ + next_; }

 private:
  std::pair<std::uint64_t, unsigned> leb() {
    std::uint64_t value = 0;
    unsigned bits = 0;
    for (bool more = true; more && !failed_; bits += 7) {
      const auto byte = get<std::uint8_t>();
      if (bits < 64) value |= std::uint64_t{byte & 0x7fU} << bits;
      more = (byte & 0x80U) != 0;
    }
    return {value, std::max(bits, 7U)};
  }
  void fail() {
    failed_ = true;
    next_ = bytes_.size();
  }

  std::span<const std::byte> bytes_;
  std::uint64_t address_ = 0;
  std::size_t next_ = 0;
  bool failed_ = false;
};

/// A pointer of .eh_frame (LSB, section 10.5.1). `data`: what DW_EH_PE_datarel counts from.
std::uint64_t read_encoded(Cursor& from, unsigned encoding, std::uint64_t data) {
  constexpr unsigned omitted = 0xff;
  constexpr unsigned pc_relative = 0x10;
  constexpr unsigned data_relative = 0x30;
  if (encoding == omitted) return 0;
  const std::uint64_t here = from.address();
  std::uint64_t value = 0;
  switch (encoding & 0xfU) {
    case 0x0:
    case 0x4:
    case 0xc: value = from.get<std::uint64_t>(); break;
    case 0x1: value = from.uleb(); break;
    case 0x2: value = from.get<std::uint16_t>(); break;
    case 0x3: value = from.get<std::uint32_t>(); break;
    case 0x9: value = static_cast<std::uint64_t>(from.sleb()); break;
    case 0xa: value = static_cast<std::uint64_t>(std::int64_t{from.get<std::int16_t>()}); break;
    case 0xb: value = static_cast<std::uint64_t>(std::int64_t{from.get<std::int32_t>()}); break;
    default: break;
  }
  if ((encoding & 0x70U) == pc_relative) value += here;
  if ((encoding & 0x70U) == data_relative) value += data;
  return value;
}

/// How a register of the caller is found.
struct Rule {
  enum class Kind { same, undefined, at_cfa, is_cfa, in_register, at_expression, is_expression };
  Kind kind = Kind::same;
  std::int64_t value = 0;  ///< offset from the canonical frame address, or a register
  Cursor expression{};
};

/// A row of the table that instructions describe.
struct Row {
  std::array<Rule, std::tuple_size_v<Registers>> rules{};
  std::uint64_t cfa_register = 0;
  std::int64_t cfa_offset = 0;
  std::optional<Cursor> cfa_expression{};
};

/// The description of a function (FDE) with that of its kind (CIE).
struct Description {
  std::vector<std::byte> cie_bytes;
  std::vector<std::byte> fde_bytes;
  Cursor initial;  ///< instructions
  Cursor instructions;
  std::uint64_t begin = 0;
  std::uint64_t code_alignment = 1;
  std::int64_t data_alignment = 1;
  std::uint64_t return_address = 0;
  unsigned encoding = 0;
  bool is_signal_frame = false;
};

std::optional<Cursor> read_entry(const Memory& memory, std::uint64_t address, std::vector<std::byte>& bytes) {
  const auto size = memory.get<std::uint32_t>(address);
  if (!size || *size < sizeof(std::uint32_t) || *size > max_description) return std::nullopt;
  bytes.resize(*size);
  if (!memory.read(address + sizeof *size, bytes.data(), bytes.size())) return std::nullopt;
  return Cursor(bytes, address + sizeof *size);
}

bool read_cie(const Memory& memory, std::uint64_t address, Description& to) {
  auto entry = read_entry(memory, address, to.cie_bytes);
  if (!entry || entry->get<std::uint32_t>() != 0) return false;
  const auto version = entry->get<std::uint8_t>();
  std::string augmentation;
  for (char c = entry->get<char>(); c != '\0' && !entry->failed(); c = entry->get<char>()) augmentation += c;
  to.code_alignment = entry->uleb();
  to.data_alignment = entry->sleb();
  to.return_address = version == 1 ? entry->get<std::uint8_t>() : entry->uleb();
  if (augmentation.starts_with('z')) {
    Cursor data = entry->part(entry->uleb());
    for (const char c : augmentation.substr(1)) {
      if (c == 'R') to.encoding = data.get<std::uint8_t>();
      else if (c == 'L') (void)data.get<std::uint8_t>();
      else if (c == 'P') (void)read_encoded(data, data.get<std::uint8_t>(), 0);
      else if (c == 'S') to.is_signal_frame = true;
    }
  } else if (!augmentation.empty()) {
    return false;
  }
  to.initial = entry->rest();
  return !entry->failed();
}

/// That of the function with this address in memory.
bool read_description(const Memory& memory, const CodeImage& image, std::uint64_t pc, Description& to) {
  struct Entry {
    std::int32_t function;
    std::int32_t description;
  };
  std::uint64_t low = 0;
  for (std::uint64_t high = image.entries; high - low > 1;) {
    const std::uint64_t middle = low + (high - low) / 2;
    const auto entry = memory.get<Entry>(image.table + middle * sizeof(Entry));
    if (!entry) return false;
    if (image.header + static_cast<std::uint64_t>(std::int64_t{entry->function}) <= pc) low = middle;
    else high = middle;
  }
  const auto entry = memory.get<Entry>(image.table + low * sizeof(Entry));
  if (!entry) return false;
  const std::uint64_t address = image.header + static_cast<std::uint64_t>(std::int64_t{entry->description});
  auto fde = read_entry(memory, address, to.fde_bytes);
  if (!fde) return false;
  const std::uint64_t id_address = fde->address();
  if (!read_cie(memory, id_address - fde->get<std::uint32_t>(), to)) return false;
  to.begin = read_encoded(*fde, to.encoding, image.header);
  if ((to.encoding & 0x70U) == 0 && to.begin < image.bias) to.begin += image.bias;
  const std::uint64_t size = read_encoded(*fde, to.encoding & 0xfU, 0);
  if (pc < to.begin || pc - to.begin >= size) return false;
  (void)fde->part(fde->uleb());  // augmentation data; ddrun reads no file without
  to.instructions = fde->rest();
  return !fde->failed();
}

/// Runs call frame instructions (DWARF 5, section 6.4.2) up to the row of `pc`. False: there is one that is not known.
bool run_instructions(Cursor code, const Description& of, std::uint64_t pc, Row& row, const Row& initial) {
  using Kind = Rule::Kind;
  std::vector<Row> saved;
  std::uint64_t location = of.begin;
  const auto set = [&](std::uint64_t number, Rule rule) {
    if (number < row.rules.size()) row.rules[number] = rule;
  };
  const auto restore = [&](std::uint64_t number) {
    if (number < row.rules.size()) row.rules[number] = initial.rules[number];
  };
  const auto factored = [&](std::uint64_t offset) {
    return static_cast<std::int64_t>(offset * static_cast<std::uint64_t>(of.data_alignment));
  };
  const auto factored_signed = [&] { return factored(static_cast<std::uint64_t>(code.sleb())); };
  while (!code.at_end()) {
    const unsigned instruction = code.get<std::uint8_t>();
    const unsigned low = instruction & 0x3fU;
    std::uint64_t advance = 0;
    switch (instruction & 0xc0U) {
      case 0x40: advance = low; break;
      case 0x80: set(low, {Kind::at_cfa, factored(code.uleb())}); continue;
      case 0xc0: restore(low); continue;
      default:
        switch (instruction) {
          case 0x00: continue;
          case 0x01:
            location = read_encoded(code, of.encoding, 0);
            if (location > pc) return !code.failed();
            continue;
          case 0x02: advance = code.get<std::uint8_t>(); break;
          case 0x03: advance = code.get<std::uint16_t>(); break;
          case 0x04: advance = code.get<std::uint32_t>(); break;
          default: break;
        }
    }
    if (advance > 0 || (instruction >= 0x02 && instruction <= 0x04)) {
      location += advance * of.code_alignment;
      if (location > pc) return !code.failed();
      continue;
    }
    // The operands of most begin with a register.
    const bool no_register = instruction == 0x0a || instruction == 0x0b || instruction == 0x0e || instruction == 0x0f ||
                             instruction == 0x13 || instruction == 0x2d || instruction == 0x2e;
    const std::uint64_t number = no_register ? 0 : code.uleb();
    switch (instruction) {
      case 0x05: set(number, {Kind::at_cfa, factored(code.uleb())}); break;
      case 0x06: restore(number); break;
      case 0x07: set(number, {Kind::undefined}); break;
      case 0x08: set(number, {Kind::same}); break;
      case 0x09: set(number, {Kind::in_register, static_cast<std::int64_t>(code.uleb())}); break;
      case 0x0a:
        if (saved.size() == max_saved_rows) return false;
        saved.push_back(row);
        break;
      case 0x0b:
        if (saved.empty()) return false;
        row = std::move(saved.back());
        saved.pop_back();
        break;
      case 0x0c:
        row.cfa_offset = static_cast<std::int64_t>(code.uleb());
        row.cfa_register = number;
        row.cfa_expression.reset();
        break;
      case 0x0d: row.cfa_register = number; break;
      case 0x0e: row.cfa_offset = static_cast<std::int64_t>(code.uleb()); break;
      case 0x0f: row.cfa_expression = code.part(code.uleb()); break;
      case 0x10: set(number, {Kind::at_expression, 0, code.part(code.uleb())}); break;
      case 0x11: set(number, {Kind::at_cfa, factored_signed()}); break;
      case 0x12:
        row.cfa_offset = factored_signed();
        row.cfa_register = number;
        row.cfa_expression.reset();
        break;
      case 0x13: row.cfa_offset = factored_signed(); break;
      case 0x14: set(number, {Kind::is_cfa, factored(code.uleb())}); break;
      case 0x15: set(number, {Kind::is_cfa, factored_signed()}); break;
      case 0x16: set(number, {Kind::is_expression, 0, code.part(code.uleb())}); break;
      case 0x2d: break;                     // DW_CFA_AARCH64_negate_ra_state: code_mask takes the signature off
      case 0x2e: (void)code.uleb(); break;  // DW_CFA_GNU_args_size
      default: return false;
    }
  }
  return !code.failed();
}

/// A DWARF expression (DWARF 5, section 2.5) of those operations that compilers and the C library use in call frame
/// information; it has no branches and so ends.
std::optional<std::uint64_t> evaluate(Cursor code, const Registers& registers, const Memory& memory,
                                      std::optional<std::uint64_t> first) {
  std::vector<std::uint64_t> stack;
  if (first) stack.push_back(*first);
  const auto pop = [&] {
    if (stack.empty()) return std::uint64_t{0};
    const std::uint64_t value = stack.back();
    stack.pop_back();
    return value;
  };
  while (!code.at_end() && stack.size() < max_expression_stack) {
    const unsigned operation = code.get<std::uint8_t>();
    if (operation >= 0x30 && operation <= 0x4f) {
      stack.push_back(operation - 0x30U);
      continue;
    }
    if ((operation >= 0x70 && operation <= 0x8f) || operation == 0x92) {
      const std::uint64_t number = operation == 0x92 ? code.uleb() : operation - 0x70U;
      if (number >= registers.size() || !registers[number]) return std::nullopt;
      stack.push_back(*registers[number] + static_cast<std::uint64_t>(code.sleb()));
      continue;
    }
    // Those with two operands on the stack.
    const bool is_binary = operation == 0x1a || operation == 0x1c || (operation >= 0x20 && operation <= 0x2e);
    const std::uint64_t second = is_binary && operation != 0x23 ? pop() : 0;
    switch (operation) {
      case 0x06: {
        const auto value = memory.pointer(pop());
        if (!value) return std::nullopt;
        stack.push_back(*value);
        break;
      }
      case 0x08: stack.push_back(code.get<std::uint8_t>()); break;
      case 0x09: stack.push_back(static_cast<std::uint64_t>(std::int64_t{code.get<std::int8_t>()})); break;
      case 0x0a: stack.push_back(code.get<std::uint16_t>()); break;
      case 0x0b: stack.push_back(static_cast<std::uint64_t>(std::int64_t{code.get<std::int16_t>()})); break;
      case 0x0c: stack.push_back(code.get<std::uint32_t>()); break;
      case 0x0d: stack.push_back(static_cast<std::uint64_t>(std::int64_t{code.get<std::int32_t>()})); break;
      case 0x10: stack.push_back(code.uleb()); break;
      case 0x11: stack.push_back(static_cast<std::uint64_t>(code.sleb())); break;
      case 0x12: stack.push_back(stack.empty() ? 0 : stack.back()); break;
      case 0x1a: stack.push_back(pop() & second); break;
      case 0x1c: stack.push_back(pop() - second); break;
      case 0x21: stack.push_back(pop() | second); break;
      case 0x22: stack.push_back(pop() + second); break;
      case 0x23: stack.push_back(pop() + code.uleb()); break;
      case 0x24: stack.push_back(pop() << (second & 63U)); break;
      case 0x2a: stack.push_back(static_cast<std::int64_t>(pop()) >= static_cast<std::int64_t>(second) ? 1 : 0); break;
      default: return std::nullopt;
    }
  }
  return code.failed() || stack.empty() ? std::nullopt : std::optional(stack.back());
}

/// Whether the instruction before `back` calls `function`: directly, by a stub of the PLT, or by its slot (-fno-plt).
bool is_call_of(const Memory& code, const Memory& data, std::uint64_t back, std::uint64_t function) {
  constexpr std::uint16_t call_slot = 0x15ff;
  constexpr std::uint16_t jump_slot = 0x25ff;
  constexpr std::uint8_t call = 0xe8;
  constexpr std::uint32_t landing_pad = 0xfa1e0ff3;  // endbr64
  constexpr std::uint8_t bound_prefix = 0xf2;
  const auto relative = [&](std::uint64_t after) {
    const auto distance = code.get<std::int32_t>(after - 4);
    return distance ? std::optional(after + static_cast<std::uint64_t>(std::int64_t{*distance})) : std::nullopt;
  };
  const auto in_slot = [&](std::uint64_t after) {
    const auto slot = relative(after);
    return slot ? data.pointer(*slot) : std::nullopt;
  };
  if (code.get<std::uint16_t>(back - 6) == call_slot) return in_slot(back) == function;
  auto target = relative(back);
  if (!target || code.get<std::uint8_t>(back - 5) != call) return false;
  if (*target == function) return true;
  if (code.get<std::uint32_t>(*target) == landing_pad) *target += sizeof landing_pad;
  if (code.get<std::uint8_t>(*target) == bound_prefix) ++*target;
  return code.get<std::uint16_t>(*target) == jump_slot && in_slot(*target + 6) == function;
}

/// Of a thread that waits the stack pointer is known, not the frame pointer: code that was compiled with frame pointers
/// (-O0, the C library of some distributions) would be the last frame. In the saved pair of frame pointer and return
/// address, which lies where the former points, the latter follows a call of this function.
std::optional<std::uint64_t> find_frame_pointer(const Description& of, const Row& row, const Memory& stack,
                                                CodeImages& images, const Registers& registers) {
  constexpr std::size_t frame_pointer = 6;
  constexpr std::int64_t pair_size = 16;
  constexpr std::uint64_t max_frame_size = 16384;
  if (row.cfa_register != frame_pointer || row.cfa_offset != pair_size) return std::nullopt;
  const std::uint64_t begin = (registers[x86_64.stack_pointer].value_or(0) + 7) & ~std::uint64_t{7};
  for (std::uint64_t at = begin; at < begin + max_frame_size; at += 8) {
    const auto back = stack.pointer(at + 8);
    if (!back) return std::nullopt;
    if (images.find(*back - 1) != nullptr && is_call_of(images.tables(), stack, *back, of.begin)) return at;
  }
  return std::nullopt;
}

/// From the registers in a function to those in its caller. False: there is none that can be found.
bool step(const Description& of, const Memory& stack, CodeImages& images, const Architecture& architecture,
          Registers& registers) {
  using Kind = Rule::Kind;
  Row row;
  constexpr std::uint64_t whole = ~std::uint64_t{0};
  if (!run_instructions(of.initial, of, whole, row, row)) return false;
  const Row initial = row;
  if (!run_instructions(of.instructions, of, *registers[architecture.program_counter], row, initial)) return false;
  const bool has_register = row.cfa_register < registers.size() && registers[row.cfa_register];
  if (!row.cfa_expression && !has_register && &architecture == &x86_64) {
    if (const auto found = find_frame_pointer(of, row, stack, images, registers)) registers[row.cfa_register] = found;
  }
  std::optional<std::uint64_t> cfa;
  if (row.cfa_expression) cfa = evaluate(*row.cfa_expression, registers, stack, {});
  else if (row.cfa_register < registers.size() && registers[row.cfa_register])
    cfa = *registers[row.cfa_register] + static_cast<std::uint64_t>(row.cfa_offset);
  if (!cfa || of.return_address >= registers.size() || row.rules[of.return_address].kind == Kind::undefined)
    return false;
  Registers caller;
  for (std::size_t i = 0; i < registers.size(); ++i) {
    const Rule& rule = row.rules[i];
    const std::uint64_t from_cfa = *cfa + static_cast<std::uint64_t>(rule.value);
    switch (rule.kind) {
      case Kind::same:
        if ((architecture.callee_saved >> i & 1U) != 0 || i == of.return_address) caller[i] = registers[i];
        break;
      case Kind::undefined: break;
      case Kind::at_cfa: caller[i] = stack.pointer(from_cfa); break;
      case Kind::is_cfa: caller[i] = from_cfa; break;
      case Kind::in_register:
        if (static_cast<std::uint64_t>(rule.value) < registers.size()) {
          caller[i] = registers[static_cast<std::size_t>(rule.value)];
        }
        break;
      case Kind::at_expression:
        if (const auto address = evaluate(rule.expression, registers, stack, cfa)) caller[i] = stack.pointer(*address);
        break;
      case Kind::is_expression: caller[i] = evaluate(rule.expression, registers, stack, cfa); break;
    }
  }
  if (row.rules[architecture.stack_pointer].kind == Kind::same) caller[architecture.stack_pointer] = cfa;
  auto& pc = caller[architecture.program_counter];
  pc = caller[of.return_address];
  if (pc) *pc &= architecture.code_mask;
  const bool moved = pc != registers[architecture.program_counter] ||
                     caller[architecture.stack_pointer] != registers[architecture.stack_pointer];
  registers = caller;
  return pc && *pc != 0 && moved;
}

}  // namespace

const CodeImage* CodeImages::find(std::uint64_t address) {
  const Mapping* const mapping = find_mapping(mappings_, address);
  if (mapping == nullptr || !mapping->executable) return nullptr;
  const std::uint64_t base = base_of(mappings_, *mapping);
  const auto [found, is_new] = images_.try_emplace(base != 0 ? base : mapping->start);
  CodeImage& image = found->second;
  if (!is_new) return &image;
  image.module = mapping->module;
  image.bias = mapping->start - mapping->offset;
  const auto elf = base != 0 ? ElfImage::read(tables_, base) : std::nullopt;
  if (!elf) return &image;
  image.bias = elf->bias();
  image.header = elf->eh_frame_header();
  std::array<std::byte, 32> bytes{};
  if (image.header == 0 || !tables_.read(image.header, bytes.data(), bytes.size())) return &image;
  Cursor header(bytes, image.header);
  constexpr unsigned sorted_table = 0x3b;  // pairs of 32 bits, relative to the header
  const auto version = header.get<std::uint8_t>();
  const auto pointer_encoding = header.get<std::uint8_t>();
  const auto count_encoding = header.get<std::uint8_t>();
  const auto table_encoding = header.get<std::uint8_t>();
  (void)read_encoded(header, pointer_encoding, image.header);
  image.entries = read_encoded(header, count_encoding, image.header);
  if (version == 1 && table_encoding == sorted_table && image.entries > 0 && !header.failed())
    image.table = header.address();
  return &image;
}

std::vector<NativeFrame> unwind(const Memory& stack, CodeImages& images, Registers registers,
                                const Architecture& architecture) {
  std::vector<NativeFrame> frames;
  Description description;
  bool is_exact = true;  // else the address is that behind a call, perhaps of the next function
  while (registers[architecture.program_counter] && frames.size() < max_native_frames) {
    auto& pc = *registers[architecture.program_counter];
    if (!is_exact) --pc;
    const CodeImage* const image = images.find(pc);
    if (image == nullptr) {
      if (frames.empty()) frames.push_back({nullptr, pc, {}});
      break;
    }
    frames.push_back({image->module, pc - image->bias, {}});
    description = {};
    if (image->table == 0 || !read_description(images.tables(), *image, pc, description) ||
        !step(description, stack, images, architecture, registers)) {
      break;
    }
    is_exact = description.is_signal_frame;
  }
  return frames;
}

StackSnapshot::StackSnapshot(const Memory& live, std::uint64_t stack_pointer)
    : live_(live), begin_(stack_pointer < red_zone ? 0 : stack_pointer - red_zone) {
  // In pieces: the stack may end before.
  constexpr std::size_t piece = std::size_t{16} << 10U;
  std::vector<std::byte> bytes(piece);
  while (bytes_.size() < max_stack_bytes && live_.read(begin_ + bytes_.size(), bytes.data(), piece)) {
    bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
  }
}

bool StackSnapshot::read(std::uint64_t address, void* to, std::size_t size) const {
  if (address < begin_ || bytes_.size() < size || address - begin_ > bytes_.size() - size) {
    return live_.read(address, to, size);
  }
  std::memcpy(to, bytes_.data() + (address - begin_), size);
  return true;
}

}  // namespace ddrun::inspect
