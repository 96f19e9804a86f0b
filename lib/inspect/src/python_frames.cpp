#include "python_frames.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <iterator>
#include <limits>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "ddrun/base/text.hpp"

namespace ddrun::inspect {

namespace {

// Measured with offsetof() on CPython's headers. Public releases of a minor version do not change them.
constexpr PythonLayout layout_3_11{
    {40, 0, 16, 8, 56, 160, 48, 32, 56, 72, 69, 112, 128, 136, 72, 96, 104, 184, 16, 32, 32, 16, 48, 24, 16, 24},
    8,
    24,
    true};
constexpr PythonLayout layout_3_12{
    {40, 0, 72, 8, 56, 144, 8, 0, 56, 72, 70, 112, 128, 136, 68, 96, 104, 192, 16, 32, 32, 16, 40, 24, 16, 24},
    0,
    16,
    false};

// From 3.13 on _PyRuntime begins with _Py_DebugOffsets (pycore_debug_offsets.h): these are indices of its 64-bit words.
constexpr PythonOffsets words_3_13{5,  8,  9,  21, 23, 25, 29, 30, 31, 32, 33, 35, 37,
                                   38, 39, 41, 42, 43, 65, 66, 68, 69, 70, 51, 62, 63};
constexpr PythonOffsets words_3_14{5,  8,  9,  24, 26, 28, 32, 33, 34, 35, 36, 40, 42,
                                   43, 44, 46, 47, 48, 75, 76, 78, 79, 80, 57, 72, 73};
constexpr PythonOffsets words_3_15{5,  8,  9,  24, 26, 31, 40, 41, 42, 43, 44, 48, 50,
                                   51, 52, 54, 55, 56, 87, 88, 90, 91, 92, 69, 84, 85};
constexpr std::size_t table_words = 93;
constexpr std::size_t version_word = 1;
constexpr std::size_t free_threaded_word = 2;

using Fields = std::array<std::uint16_t, sizeof(PythonOffsets) / sizeof(std::uint16_t)>;

const PythonOffsets* words_of(unsigned minor) {
  if (minor == 13) return &words_3_13;
  if (minor == 14) return &words_3_14;
  return minor == 15 ? &words_3_15 : nullptr;
}

constexpr std::size_t max_images = 4;
constexpr unsigned max_interpreters = 64;
constexpr unsigned max_threads = 4096;
constexpr unsigned max_steps = 2000;  ///< from frame to frame
constexpr std::size_t max_frames = 512;
constexpr std::size_t max_numbers = 4;
constexpr std::size_t max_locals = 256;
constexpr std::size_t max_text = 1024;
constexpr std::size_t max_line_table = std::size_t{1} << 20U;
constexpr std::size_t read_limit = std::size_t{128} << 20U;
constexpr std::size_t cost_of_read = 64;  ///< in bytes

constexpr std::string_view preload_file = "<ddrun --preload>";
constexpr std::uint64_t object_type = 8;      ///< offset of ob_type
constexpr unsigned first_internal_owner = 3;  ///< enum _frameowner: from here on frames are the interpreter's own
constexpr std::uint64_t tag_bits = 3;         ///< of references in frames, from 3.14 on
// co_localspluskinds
constexpr unsigned kind_mask = 0xf0;
constexpr unsigned kind_local = 0x20;  ///< alone: neither cell nor free variable nor hidden

/// Fails after so many bytes and reads: whatever the structs of a process say, reading them ends.
class LimitedMemory : public Memory {
 public:
  explicit LimitedMemory(const Memory& memory) : memory_(memory) {}
  bool read(std::uint64_t address, void* to, std::size_t size) const override {
    return take(size + cost_of_read) && memory_.read(address, to, size);
  }
  /// For work that costs as much as reading so many bytes. False: there is nothing left.
  [[nodiscard]] bool take(std::size_t bytes) const {
    left_ = bytes > left_ ? 0 : left_ - bytes;
    return left_ != 0;
  }

 private:
  const Memory& memory_;
  mutable std::size_t left_ = read_limit;
};

/// The beginning of a struct, read at once.
class Struct {
 public:
  /// Up to and with the 64-bit fields at these offsets.
  template <class... Offsets>
  bool read(const Memory& memory, std::uint64_t address, Offsets... offsets) {
    size_ = std::max<std::size_t>({static_cast<std::size_t>(offsets)...}) + sizeof(std::uint64_t);
    return size_ <= bytes_.size() && memory.read(address, bytes_.data(), size_);
  }
  template <class T = std::uint64_t>
  [[nodiscard]] T get(std::size_t offset) const {
    T value{};
    if (offset + sizeof value <= size_) std::memcpy(&value, bytes_.data() + offset, sizeof value);
    return value;
  }

 private:
  std::array<std::byte, 512> bytes_;
  std::size_t size_ = 0;
};

/// co_linetable (CPython, InternalDocs/code_objects.md): the line of the instruction at byte `offset` of the code.
int line_at(const std::vector<unsigned char>& table, int first_line, std::uint64_t offset) {
  std::size_t next = 0;
  const auto number = [&] {
    std::uint32_t value = 0;
    for (unsigned shift = 0; next < table.size(); shift += 6) {
      const unsigned part = table[next++];
      if (shift < 32) value |= (part & 0x3fU) << shift;
      if ((part & 0x40U) == 0) break;
    }
    return value;
  };
  // Unsigned: the table may be any bytes.
  auto line = static_cast<std::uint32_t>(first_line);
  const auto add_number = [&] {
    const std::uint32_t value = number();
    line += (value & 1U) != 0 ? 0 - (value >> 1U) : value >> 1U;
  };
  std::uint64_t end = 0;
  while (next < table.size()) {
    const unsigned first = table[next++];
    const unsigned form = first >> 3U & 0xfU;
    if (form <= 9) next += 1;
    else if (form <= 12) line += form - 10, next += 2;
    else if (form <= 14) add_number();
    if (form == 14) number(), number(), number();  // last line and columns
    end += ((first & 7U) + 1) * 2;
    if (offset < end) return static_cast<int>(line);
  }
  return first_line;
}

/// Frames of all threads, at one point in time.
class FrameReader {
 public:
  FrameReader(const Memory& memory, const PythonLayout& layout, std::uint64_t code_type, std::uint64_t int_type,
              std::size_t max_bytes, Deadline deadline)
      : memory_(memory),
        at_(layout.at),
        layout_(layout),
        code_type_(code_type),
        int_type_(int_type),
        max_bytes_(max_bytes),
        deadline_(deadline) {}

  /// By thread id.
  std::map<pid_t, PythonStack> read(std::uint64_t runtime) {
    std::map<pid_t, PythonStack> threads;
    unsigned thread_count = 0;
    std::uint64_t interpreter = pointer(runtime + at_.runtime_interpreters);
    for (unsigned i = 0; interpreter != 0 && i < max_interpreters; ++i) {
      Struct state;
      std::vector<std::pair<std::uint64_t, pid_t>> found;
      for (std::uint64_t thread = pointer(interpreter + at_.interpreter_threads);
           thread != 0 && thread_count++ < max_threads && state.read(memory_, thread, at_.thread_next, at_.thread_id);
           thread = state.get(at_.thread_next)) {
        const std::uint64_t tid = state.get(at_.thread_id);  // 0: it does not run yet
        if (tid == 0 || tid > std::uint64_t{std::numeric_limits<pid_t>::max()}) continue;
        found.emplace_back(thread, static_cast<pid_t>(tid));
      }
      // The newest thread comes first, and the newest interpreter. All fail once the process is gone.
      for (auto one = found.rbegin(); one != found.rend() && pointer(runtime + at_.runtime_interpreters) != 0; ++one) {
        add(read_thread(one->first), threads[one->second]);
      }
      interpreter = pointer(interpreter + at_.interpreter_next);
    }
    for (auto& [tid, stack] : threads) {
      const auto preload = std::ranges::find(stack.frames, preload_file, &PythonFrame::file);
      if (preload != stack.frames.end()) stack.left_out = 0;
      stack.frames.erase(preload, stack.frames.end());
    }
    return threads;
  }

 private:
  struct Code {
    std::string function;
    std::string file;
    int first_line = 0;
    std::uint64_t instructions = 0;
    std::vector<unsigned char> lines;
    std::vector<std::pair<std::size_t, std::uint64_t>> locals;  ///< index and name
  };

  /// 0 if it cannot be read.
  [[nodiscard]] std::uint64_t pointer(std::uint64_t address) const { return memory_.pointer(address).value_or(0); }

  [[nodiscard]] std::uint64_t innermost_frame(std::uint64_t thread) const {
    const std::uint64_t frame = pointer(thread + at_.thread_frame);
    const bool is_frame = layout_.cframe_frame == PythonLayout::no_cframe || frame == 0;
    return is_frame ? frame : pointer(frame + layout_.cframe_frame);
  }

  static void add(PythonStack outer, PythonStack& to) {
    const auto room = static_cast<std::ptrdiff_t>(std::min(outer.frames.size(), max_frames - to.frames.size()));
    std::move(outer.frames.begin(), outer.frames.begin() + room, std::back_inserter(to.frames));
    to.left_out += outer.left_out + outer.frames.size() - static_cast<std::size_t>(room);
  }

  PythonStack read_thread(std::uint64_t thread) {
    PythonStack stack;
    const std::uint64_t innermost = innermost_frame(thread);
    if (!walk(innermost, stack)) {
      // A thread that runs may leave a frame while it is read: once more.
      if (const std::uint64_t now = innermost_frame(thread); now != innermost) walk(now, stack);
    }
    return stack;
  }

  /// False: a frame had gone while the chain was read. The others are in `stack`.
  bool walk(std::uint64_t address, PythonStack& stack) {
    stack = {};
    bool is_whole = true;
    Struct frame;
    for (unsigned i = 0; address != 0 && i < max_steps; ++i) {
      if (!frame.read(memory_, address, at_.frame_previous, at_.frame_code, at_.frame_instruction, at_.frame_owner)) {
        return false;
      }
      if (frame.get<std::uint8_t>(at_.frame_owner) < first_internal_owner) {
        const bool is_late = Clock::now() >= deadline_;
        if (stack.frames.size() == max_frames || frame_bytes_ > max_bytes_ || is_late) {
          ++stack.left_out;
          if (is_late) return true;
          address = frame.get(at_.frame_previous);
          continue;
        }
        // Without code: the function has just returned, and its caller follows.
        const Code* const code = read_code(frame.get(at_.frame_code) & ~tag_bits);
        is_whole = is_whole && code != nullptr;
        if (code != nullptr && !add_frame(*code, frame, address, stack.frames)) return false;
      }
      address = frame.get(at_.frame_previous);
    }
    return is_whole;
  }

  bool add_frame(const Code& code, const Struct& frame, std::uint64_t address, std::vector<PythonFrame>& frames) {
    // What it costs here: a copy of the names and the search for the line.
    const std::size_t bytes = sizeof(PythonFrame) + code.function.size() + code.file.size();
    if (!memory_.take(bytes + code.lines.size())) return false;
    const std::uint64_t offset = frame.get(at_.frame_instruction) - code.instructions;
    frames.push_back({code.function, code.file, line_at(code.lines, code.first_line, offset), {}});
    add_numbers(code, address + at_.frame_locals, frames.back());
    frame_bytes_ += bytes;
    for (const auto& number : frames.back().numbers) frame_bytes_ += sizeof number + number.first.size();
    return true;
  }

  /// Null: at `address` is no code object.
  const Code* read_code(std::uint64_t address) {
    const auto [found, is_new] = codes_.try_emplace(address);
    Struct object;
    if (is_new &&
        object.read(memory_, address, at_.code_file, at_.code_function, at_.code_lines, at_.code_first_line,
                    at_.code_names, at_.code_kinds) &&
        object.get(object_type) == code_type_) {
      Code& code = found->second.emplace();
      code.function = text(object.get(at_.code_function));
      code.file = text(object.get(at_.code_file));
      code.first_line = object.get<std::int32_t>(at_.code_first_line);
      code.instructions = address + at_.code_instructions;
      code.lines = bytes(object.get(at_.code_lines), max_line_table);
      const std::vector<unsigned char> kinds = bytes(object.get(at_.code_kinds), max_locals);
      std::array<std::uint64_t, max_locals> names{};
      memory_.read(object.get(at_.code_names) + at_.tuple_items, names.data(), kinds.size() * sizeof names[0]);
      for (std::size_t i = 0; i < kinds.size(); ++i) {
        if ((kinds[i] & kind_mask) == kind_local) code.locals.emplace_back(i, names[i]);
      }
    }
    return found->second ? &*found->second : nullptr;
  }

  [[nodiscard]] std::vector<unsigned char> bytes(std::uint64_t address, std::size_t limit) const {
    std::vector<unsigned char> data(std::min<std::uint64_t>(pointer(address + at_.bytes_size), limit));
    if (!data.empty() && !memory_.read(address + at_.bytes_data, data.data(), data.size())) data.clear();
    return data;
  }

  [[nodiscard]] std::string text(std::uint64_t address) const {
    std::string text;
    Struct object;
    if (!object.read(memory_, address, at_.string_length, at_.string_state)) return text;
    // PyASCIIObject.state: interned 2 bits, kind 3, compact 1, ascii 1.
    const auto state = object.get<std::uint32_t>(at_.string_state);
    const std::size_t width = state >> 2U & 7U;
    const bool is_ascii = (state >> 6U & 1U) != 0;
    if ((state >> 5U & 1U) == 0 || (width != 1 && width != 2 && width != 4)) return text;
    std::string data(std::min<std::uint64_t>(object.get(at_.string_length), max_text / width) * width, '\0');
    const std::uint64_t start = address + at_.string_data + (is_ascii ? 0 : layout_.wide_head);
    if (!memory_.read(start, data.data(), data.size())) return text;
    for (std::size_t i = 0; i < data.size(); i += width) {
      std::uint32_t character = 0;
      std::memcpy(&character, data.data() + i, width);
      append_utf8(text, character);
    }
    return text;
  }

  void add_numbers(const Code& code, std::uint64_t locals, PythonFrame& frame) const {
    std::array<std::uint64_t, max_locals> values{};
    const std::size_t count = code.locals.empty() ? 0 : code.locals.back().first + 1;
    if (!memory_.read(locals, values.data(), count * sizeof values[0])) return;
    for (const auto& [index, name_address] : code.locals) {
      const auto value = number(values[index]);
      std::string name = value ? text(name_address) : std::string();
      if (name.empty() || name[0] == '_' || name[0] == '.') continue;
      frame.numbers.emplace_back(std::move(name), *value);
      if (frame.numbers.size() == max_numbers) return;
    }
  }

  /// The small int that a local variable refers to.
  [[nodiscard]] std::optional<std::int64_t> number(std::uint64_t reference) const {
    if ((reference & tag_bits) == tag_bits) return static_cast<std::int64_t>(reference) >> 2U;  // the int itself
    const std::uint64_t address = reference & ~tag_bits;
    Struct object;
    // Nothing may follow the digit, which has 32 bits.
    if (address == 0 || !object.read(memory_, address, object_type, at_.int_size, at_.int_digit - 4) ||
        object.get(object_type) != int_type_) {
      return std::nullopt;
    }
    const std::uint64_t size = object.get(at_.int_size);
    const bool is_negative = layout_.int_size_is_signed ? size >> 63U != 0 : (size & 3U) == 2;
    const std::uint64_t digits = !layout_.int_size_is_signed ? size >> 3U : is_negative ? 0 - size : size;
    if (digits > 1) return std::nullopt;
    const std::int64_t value = digits == 0 ? 0 : object.get<std::uint32_t>(at_.int_digit);
    return is_negative ? -value : value;
  }

  LimitedMemory memory_;
  const PythonOffsets& at_;
  const PythonLayout& layout_;
  std::uint64_t code_type_;
  std::uint64_t int_type_;
  std::unordered_map<std::uint64_t, std::optional<Code>> codes_;
  std::size_t max_bytes_;
  Deadline deadline_;
  std::size_t frame_bytes_ = 0;
};

}  // namespace

std::string read_python_layout(const Memory& memory, std::uint64_t runtime, std::uint64_t version,
                               PythonLayout& layout) {
  const auto minor = static_cast<unsigned>(version >> 16U & 0xffU);
  const bool is_3 = version >> 24U == 3;
  if (is_3 && (minor == 11 || minor == 12)) {
    layout = minor == 11 ? layout_3_11 : layout_3_12;
    return {};
  }
  const std::string name = concat("Python ", version >> 24U & 0xffU, '.', minor);
  const PythonOffsets* const words = is_3 ? words_of(minor) : nullptr;
  if (words == nullptr) return concat(name, ": native frames only");
  // Before its first release candidate a version's table changes from one pre-release to the next.
  if ((version >> 4U & 0xfU) < 0xc) return concat(name, " pre-release: native frames only");
  std::array<std::uint64_t, table_words> table{};
  if (!memory.read(runtime, table.data(), sizeof table) || std::memcmp(table.data(), "xdebugpy", 8) != 0 ||
      table[version_word] != version) {
    return concat(name, " without a table of offsets: native frames only");
  }
  if (table[free_threaded_word] != 0) return concat(name, " free-threaded: native frames only");
  auto fields = std::bit_cast<Fields>(*words);
  for (std::uint16_t& field : fields) {
    const std::uint64_t offset = table[field];
    if (offset > 0xffff) return concat(name, " with unknown offsets: native frames only");
    field = static_cast<std::uint16_t>(offset);
  }
  layout = {std::bit_cast<PythonOffsets>(fields), PythonLayout::no_cframe, 16, false};
  return {};
}

std::optional<PythonReader> PythonReader::find(const Memory& cached, const std::vector<Mapping>& mappings) {
  PythonReader reader;
  std::vector<ElfImage> images;
  std::string_view version_in_name = "before 3.11";
  const Module* last = nullptr;
  for (const Mapping& mapping : mappings) {
    if (mapping.module.get() == last) continue;
    const bool is_lowest = std::exchange(last, mapping.module.get()) == nullptr;
    std::string_view name = std::string_view(last->path).substr(last->path.rfind('/') + 1);
    if (name.starts_with("lib")) name.remove_prefix(3);
    if (name.starts_with("pypy")) {
      reader.unsupported_reason_ = "PyPy: native frames only";
      return reader;
    }
    if ((!is_lowest && !name.starts_with("python")) || images.size() == max_images) continue;
    if (auto image = ElfImage::read(cached, base_of(mappings, mapping))) images.push_back(*image);
    // python3.10, libpython3.10.so.1.0
    if (name.starts_with("python3.")) version_in_name = name.substr(6, name.find_first_not_of("0123456789", 8) - 6);
  }
  // In the order of the loader: a program may have copies of a library's variables.
  const auto symbol = [&](std::string_view name) {
    std::uint64_t address = 0;
    for (const ElfImage& image : images) address = address != 0 ? address : image.symbol(name);
    return address;
  };
  reader.runtime_ = symbol("_PyRuntime");
  if (reader.runtime_ == 0) return std::nullopt;
  const std::uint64_t version = symbol("Py_Version");  // from 3.11 on
  if (version == 0) {
    reader.unsupported_reason_ = concat("Python ", version_in_name, ": native frames only");
    return reader;
  }
  const auto value = cached.pointer(version);
  if (!value) return std::nullopt;
  reader.unsupported_reason_ = read_python_layout(cached, reader.runtime_, *value, reader.layout_);
  reader.code_type_ = symbol("PyCode_Type");
  reader.int_type_ = symbol("PyLong_Type");
  return reader;
}

std::map<pid_t, PythonStack> PythonReader::read(const Memory& live, std::size_t max_bytes, Deadline deadline) const {
  if (!unsupported_reason_.empty()) return {};
  return FrameReader(live, layout_, code_type_, int_type_, max_bytes, deadline).read(runtime_);
}

}  // namespace ddrun::inspect
