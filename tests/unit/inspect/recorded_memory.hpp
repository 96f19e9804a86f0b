#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "memory.hpp"

namespace ddrun::inspect {

/// Notes what was read through it.
class RecordingMemory : public Memory {
 public:
  explicit RecordingMemory(const Memory& memory) : memory_(memory) {}
  bool read(std::uint64_t address, void* to, std::size_t size) const override {
    if (!memory_.read(address, to, size)) return false;
    for (std::size_t i = 0; i < size; ++i) bytes_[address + i] = static_cast<const char*>(to)[i];
    return true;
  }
  [[nodiscard]] const std::map<std::uint64_t, char>& bytes() const { return bytes_; }

 private:
  const Memory& memory_;
  mutable std::map<std::uint64_t, char> bytes_;
};

/// The memory of a process as ddrun_record_python has saved it: /proc/PID/maps, an empty line, and ranges: address and
/// size in 64 bits each, bytes.
class RecordedMemory : public Memory {
 public:
  /// Nothing is readable if `file` is no record.
  explicit RecordedMemory(const std::string& file) {
    const std::size_t end = file.find("\n\n");
    if (end == std::string::npos) return;
    mappings_ = parse_mappings(file.substr(0, end), 1);
    std::array<std::uint64_t, 2> head{};  // address, size
    for (std::size_t at = end + 2; at + sizeof head <= file.size(); at += sizeof head + head[1]) {
      std::memcpy(head.data(), file.data() + at, sizeof head);
      ranges_[head[0]] = file.substr(at + sizeof head, head[1]);
    }
  }
  bool read(std::uint64_t address, void* to, std::size_t size) const override {
    const auto [range, offset] = range_of(address, size);
    if (range != ranges_.end()) std::memcpy(to, range->second.data() + offset, size);
    return size == 0 || range != ranges_.end();
  }
  /// Changes what is at an address; nothing if that is not recorded.
  template <class T>
  void write(std::uint64_t address, T value) {
    const auto [range, offset] = range_of(address, sizeof value);
    if (range != ranges_.end()) std::memcpy(ranges_[range->first].data() + offset, &value, sizeof value);
  }
  /// The address of the recorded byte with this number, modulo their count.
  [[nodiscard]] std::uint64_t address_at(std::size_t number) const {
    std::size_t count = 0;
    for (const auto& [start, bytes] : ranges_) count += bytes.size();
    if (count == 0) return 0;
    number %= count;
    for (const auto& [start, bytes] : ranges_) {
      if (number < bytes.size()) return start + number;
      number -= bytes.size();
    }
    return 0;
  }
  [[nodiscard]] const std::vector<Mapping>& mappings() const { return mappings_; }

 private:
  using Ranges = std::map<std::uint64_t, std::string>;
  /// The range that holds these bytes, and where in it they begin.
  [[nodiscard]] std::pair<Ranges::const_iterator, std::uint64_t> range_of(std::uint64_t address,
                                                                          std::size_t size) const {
    auto range = ranges_.upper_bound(address);
    if (range == ranges_.begin()) return {ranges_.end(), 0};
    const std::uint64_t offset = address - (--range)->first;
    const std::size_t length = range->second.size();
    return {offset <= length && size <= length - offset ? range : ranges_.end(), offset};
  }

  std::vector<Mapping> mappings_;
  Ranges ranges_;
};

}  // namespace ddrun::inspect
