#include "mappings.hpp"

#include <sys/sysmacros.h>

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <string>

#include "ddrun/base/proc.hpp"
#include "ddrun/base/text.hpp"

namespace ddrun::inspect {

namespace {

constexpr std::size_t max_maps_bytes = std::size_t{16} << 20U;

/// Takes a number and the character after it off `text`.
template <class T>
bool take_number(std::string_view& text, T& number, int base, char after) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number, base);
  if (error != std::errc() || end == text.data() + text.size() || *end != after) return false;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()) + 1);
  return true;
}

}  // namespace

std::vector<Mapping> parse_mappings(std::string_view text, pid_t pid) {
  std::vector<Mapping> mappings;
  while (!text.empty()) {
    std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(text.size(), line.size() + 1));
    Mapping mapping;
    unsigned major = 0;
    unsigned minor = 0;
    ino_t inode = 0;
    if (!take_number(line, mapping.start, 16, '-') || !take_number(line, mapping.end, 16, ' ') || line.size() < 5) {
      continue;
    }
    mapping.executable = line[2] == 'x';
    line.remove_prefix(5);
    if (!take_number(line, mapping.offset, 16, ' ') || !take_number(line, major, 16, ':') ||
        !take_number(line, minor, 16, ' ') || !take_number(line, inode, 10, ' ')) {
      continue;
    }
    const std::size_t path = line.find_first_not_of(' ');
    if (path == std::string_view::npos || (!mapping.executable && mapping.offset != 0)) continue;
    line.remove_prefix(path);
    if (!mappings.empty() && mappings.back().module->path == line) mapping.module = mappings.back().module;
    else
      mapping.module = std::make_shared<const Module>(Module{std::string(line), pid, ::makedev(major, minor), inode});
    mappings.push_back(std::move(mapping));
  }
  return mappings;
}

std::vector<Mapping> read_mappings(pid_t pid) {
  const auto text = read_small_file(concat("/proc/", pid, "/maps"), max_maps_bytes);
  return text ? parse_mappings(*text, pid) : std::vector<Mapping>();
}

const Mapping* find_mapping(const std::vector<Mapping>& mappings, std::uint64_t address) {
  const auto after = std::ranges::upper_bound(mappings, address, {}, &Mapping::start);
  if (after == mappings.begin() || address >= std::prev(after)->end) return nullptr;
  return &*std::prev(after);
}

std::uint64_t base_of(const std::vector<Mapping>& mappings, const Mapping& mapping) {
  const Mapping* first = &mapping;
  while (first->offset != 0 && first != mappings.data() && (first - 1)->module == mapping.module) --first;
  return first->offset == 0 ? first->start : 0;
}

}  // namespace ddrun::inspect
