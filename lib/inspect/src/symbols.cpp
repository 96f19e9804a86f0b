#include "symbols.hpp"

#include <cxxabi.h>
#include <elf.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <utility>

#include "ddrun/base/text.hpp"
#include "ddrun/base/unique_fd.hpp"

namespace ddrun::inspect {

namespace {

constexpr unsigned max_sections = 4096;
constexpr std::size_t max_symbol = 2048;
constexpr std::size_t max_function_name = 100;  ///< with template arguments
constexpr std::size_t max_whole_name = 300;
constexpr std::size_t symbols_at_once = 4096;
/// Of a table, which may be as long as a sparse file; PyTorch's have half a million.
constexpr std::uint64_t max_symbols = std::uint64_t{8} << 20U;
constexpr std::size_t max_cached_names = 10'000;
constexpr std::uint64_t max_offset = std::uint64_t{1} << 62U;  ///< in a file; sums with lengths in it do not wrap

/// The file of `module` if it is the one that is mapped. In two steps: to open a device or a FIFO has effects or
/// blocks. The device is not compared: on overlayfs and btrfs /proc/PID/maps has another than stat(2).
UniqueFd open_module(const Module& module) {
  for (const std::string& path : {concat("/proc/", module.pid, "/root", module.path), module.path}) {
    const UniqueFd place(::open(path.c_str(), O_PATH | O_CLOEXEC));
    struct stat info {};
    if (place && ::fstat(place.get(), &info) == 0 && S_ISREG(info.st_mode) && info.st_ino == module.inode) {
      return UniqueFd(::open(concat("/proc/self/fd/", place.get()).c_str(), O_RDONLY | O_CLOEXEC));
    }
  }
  return {};
}

bool read_file_at(int file, std::uint64_t offset, void* to, std::size_t size) {
  return ::pread(file, to, size, static_cast<off_t>(offset)) == static_cast<ssize_t>(size);
}

/// An address that is asked for, and the innermost symbol around it.
struct Wanted {
  std::uint64_t address = 0;
  std::uint64_t symbol = 0;
  std::uint64_t name_offset = 0;  ///< in the file; 0: no symbol
};

void search_table(int file, const Elf64_Shdr& table, const Elf64_Shdr& names, std::vector<Wanted>& wanted,
                  Deadline deadline) {
  std::vector<Elf64_Sym> symbols(symbols_at_once);
  const std::uint64_t count = std::min(table.sh_size / sizeof(Elf64_Sym), max_symbols);
  for (std::uint64_t first = 0; first < count && Clock::now() < deadline; first += symbols.size()) {
    symbols.resize(std::min<std::uint64_t>(symbols_at_once, count - first));
    if (!read_file_at(file, table.sh_offset + first * sizeof(Elf64_Sym), symbols.data(),
                      symbols.size() * sizeof(Elf64_Sym))) {
      return;
    }
    for (const Elf64_Sym& symbol : symbols) {
      const unsigned type = ELF64_ST_TYPE(symbol.st_info);
      if ((type != STT_FUNC && type != STT_GNU_IFUNC) || symbol.st_shndx == SHN_UNDEF) continue;
      if (symbol.st_name >= names.sh_size || names.sh_offset > max_offset) continue;
      if (symbol.st_value > wanted.back().address || symbol.st_value + symbol.st_size <= wanted.front().address)
        continue;
      auto one = std::ranges::lower_bound(wanted, symbol.st_value, {}, &Wanted::address);
      for (; one != wanted.end() && one->address - symbol.st_value < symbol.st_size; ++one) {
        if (one->name_offset != 0 && symbol.st_value <= one->symbol) continue;
        one->symbol = symbol.st_value;
        one->name_offset = names.sh_offset + symbol.st_name;
      }
    }
  }
}

void search_file(int file, std::vector<Wanted>& wanted, Deadline deadline) {
  Elf64_Ehdr header{};
  if (!read_file_at(file, 0, &header, sizeof header) || std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0 ||
      header.e_ident[EI_CLASS] != ELFCLASS64 || header.e_shentsize != sizeof(Elf64_Shdr) ||
      header.e_shnum > max_sections) {
    return;
  }
  std::vector<Elf64_Shdr> sections(header.e_shnum);
  if (!read_file_at(file, header.e_shoff, sections.data(), sections.size() * sizeof(Elf64_Shdr))) return;
  for (const Elf64_Shdr& section : sections) {
    const bool is_table = section.sh_type == SHT_SYMTAB || section.sh_type == SHT_DYNSYM;
    if (!is_table || section.sh_link >= sections.size()) continue;
    search_table(file, section, sections[section.sh_link], wanted, deadline);
  }
}

std::string read_name(int file, std::uint64_t offset) {
  std::string name(max_symbol, '\0');
  const ssize_t size = ::pread(file, name.data(), name.size(), static_cast<off_t>(offset));
  const std::size_t end = name.find('\0');
  return size > 0 && end < static_cast<std::size_t>(size) ? name.substr(0, end) : std::string();
}

bool is_identifier(char c) { return c == '_' || (c >= '0' && c <= '9') || ((c | 0x20) >= 'a' && (c | 0x20) <= 'z'); }

/// The length of "operator<<" and the like at the beginning of `text`; 0: none begins there.
std::size_t operator_length(std::string_view text) {
  constexpr std::string_view word = "operator";
  if (!text.starts_with(word)) return 0;
  // The longer ones first.
  for (const std::string_view sign :
       {"->*", "<=>", "<<=", ">>=", "()", "[]", "->", "<<", ">>", "<=", ">=", "==", "!=", "&&",
        "||",  "++",  "--",  "+=",  "-=", "*=", "/=", "%=", "^=", "&=", "|=", "<",  ">",  "+",
        "-",   "*",   "/",   "%",   "^",  "&",  "|",  "!",  "=",  "~",  ",",  " "}) {
    if (text.substr(word.size()).starts_with(sign)) return word.size() + sign.size();
  }
  return 0;
}

/// Where the group in parentheses ends that begins at `begin`.
std::size_t end_of_group(std::string_view text, std::size_t begin) {
  int depth = 0;
  for (std::size_t at = begin; at < text.size(); ++at) {
    if (text[at] == '(') ++depth;
    if (text[at] == ')' && --depth == 0) return at + 1;
  }
  return text.size();
}

/// A demangled name without result types and parameters; `whole` decides about template arguments.
std::string without_types(std::string_view full, bool whole) {
  constexpr std::string_view anonymous = "(anonymous namespace)";
  std::string name;
  int depth = 0;               // of brackets
  int angles = 0;              // of <> alone
  bool in_conversion = false;  // "operator unsigned int": these blanks are part of the name
  for (std::size_t at = 0; at < full.size(); ++at) {
    const std::string_view rest = full.substr(at);
    const char c = full[at];
    const bool begins_word = at == 0 || !is_identifier(full[at - 1]);
    std::size_t token = begins_word ? operator_length(rest) : 0;
    if (token > 0 && depth == 0) in_conversion = rest[token - 1] == ' ';
    if (rest.starts_with(anonymous)) token = anonymous.size();
    if (token > 0) {
      if (whole || angles == 0) name += rest.substr(0, token);
      at += token - 1;
      if (full.substr(at + 1).starts_with(" <")) ++at;  // operator< <int>
      continue;
    }
    if (c == '(' && depth == 0) {
      const bool is_pointer = rest.starts_with("(*") || rest.starts_with("(&");
      if (name.empty() && is_pointer) {  // void (*name(parameters))(parameters)
        ++at;
        continue;
      }
      at = end_of_group(full, at) - 1;
      if (name.empty() || name == "decltype") continue;
      for (const std::string_view qualifier : {" const", " volatile", " &&", " &"}) {
        if (full.substr(at + 1).starts_with(qualifier)) at += qualifier.size();
      }
      if (!full.substr(at + 1).starts_with("::")) break;
      in_conversion = false;
      continue;
    }
    if (c == ' ' && depth == 0 && !in_conversion) {
      name.clear();
      continue;
    }
    const bool is_arrow = c == '>' && at > 0 && full[at - 1] == '-';
    const bool closes = (c == '>' && !is_arrow) || c == '}' || c == ']';
    if (closes) --depth;
    if (c == '>' && !is_arrow && --angles == 0 && !whole) name += "…";
    if (whole || angles == 0) name += c;
    if (c == '<') ++angles;
    if (c == '<' || c == '{' || c == '[') ++depth;
  }
  return name;
}

/// Whether demangling could take exponential time: each level of substitutions ("S1_", "T_") can double a name, and
/// packs ("Dp", "sp") multiply it. Of the functions of PyTorch 99.9 % have at most 19.
bool is_explosive(std::string_view symbol) {
  constexpr std::size_t max_mangled = 640;
  constexpr unsigned max_weight = 24;
  constexpr unsigned pack_weight = 6;
  unsigned weight = 0;
  for (std::size_t i = 0; i + 1 < symbol.size(); ++i) {
    if (symbol.substr(i, 2) == "Dp" || symbol.substr(i, 2) == "sp") weight += pack_weight;
    if (symbol[i] != 'S' && symbol[i] != 'T') continue;
    const std::size_t end = symbol.find_first_not_of("0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ", i + 1);
    if (end != std::string_view::npos && symbol[end] == '_') ++weight;
  }
  return symbol.size() > max_mangled || weight > max_weight;
}

std::tuple<dev_t, ino_t, std::uint64_t> key_of(const NativeFrame& frame) {
  return {frame.module->device, frame.module->inode, frame.address};
}

/// Of a symbol that is not demangled, such as a lambda's of pybind11: "pybind11::cpp_function::initialize<…>".
std::string leading_names(const std::string& symbol) {
  std::string name;
  std::string_view left = symbol;
  left.remove_prefix(left.starts_with("_Z") ? std::min(left.find_first_not_of("_ZNKL"), left.size()) : left.size());
  if (left.starts_with("St")) name = "std", left.remove_prefix(2);
  for (std::size_t length = 0;; left.remove_prefix(length)) {
    const char* const end = std::from_chars(left.data(), left.data() + left.size(), length).ptr;
    if (end == left.data() || length > static_cast<std::size_t>(left.data() + left.size() - end)) break;
    left.remove_prefix(static_cast<std::size_t>(end - left.data()));
    name += concat(name.empty() ? "" : "::", left.substr(0, length));
  }
  return cut_line(name.empty() ? symbol : name + "<…>", max_whole_name);
}

}  // namespace

std::string function_name(const std::string& symbol) {
  std::string name = symbol.substr(0, symbol.find('@'));
  int status = 0;
  const std::unique_ptr<char, void (*)(void*)> demangled(
      (name.starts_with("_Z") || name.starts_with("_R")) && !is_explosive(name)
          ? abi::__cxa_demangle(name.c_str(), nullptr, nullptr, &status)
          : nullptr,
      std::free);
  if (!demangled) return leading_names(name);
  name = without_types(demangled.get(), true);
  if (name.size() > max_function_name) name = without_types(demangled.get(), false);
  return cut_line(name.empty() ? demangled.get() : name, max_whole_name);
}

void look_up_names(const std::vector<NativeFrame>& frames, NameCache& cache, Deadline deadline) {
  std::map<std::pair<dev_t, ino_t>, std::vector<const NativeFrame*>> by_file;
  if (cache.size() > max_cached_names) cache.clear();
  for (const NativeFrame& frame : frames) {
    if (!frame.module || frame.module->inode == 0 || !cache.try_emplace(key_of(frame)).second) continue;
    by_file[{frame.module->device, frame.module->inode}].push_back(&frame);
  }
  for (auto& [id, of_file] : by_file) {
    const UniqueFd file = open_module(*of_file.front()->module);
    if (!file) continue;
    std::ranges::sort(of_file, {}, &NativeFrame::address);
    std::vector<Wanted> wanted;
    for (const NativeFrame* frame : of_file) wanted.push_back({frame->address});
    search_file(file.get(), wanted, deadline);
    for (std::size_t i = 0; i < wanted.size(); ++i) {
      if (Clock::now() >= deadline) cache.erase(key_of(*of_file[i]));  // the next look-up may have the time
      else if (wanted[i].name_offset != 0)
        cache[key_of(*of_file[i])] = function_name(read_name(file.get(), wanted[i].name_offset));
    }
  }
}

void set_name(NativeFrame& frame, const NameCache& cache) {
  const auto found = frame.module ? cache.find(key_of(frame)) : cache.end();
  if (found != cache.end()) frame.function = found->second;
}

}  // namespace ddrun::inspect
