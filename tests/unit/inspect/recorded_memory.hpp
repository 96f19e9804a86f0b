#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "mappings.hpp"
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
    const std::string* const range = range_of(address, size);
    if (range != nullptr) std::memcpy(to, range->data() + offset_, size);
    return size == 0 || range != nullptr;
  }
  /// Changes what is at an address that can be read.
  void write(std::uint64_t address, std::uint64_t value) {
    if (auto* const range = const_cast<std::string*>(range_of(address, sizeof value)); range != nullptr) {
      std::memcpy(range->data() + offset_, &value, sizeof value);
    }
  }
  [[nodiscard]] const std::vector<Mapping>& mappings() const { return mappings_; }

 private:
  const std::string* range_of(std::uint64_t address, std::size_t size) const {
    auto after = ranges_.upper_bound(address);
    if (after == ranges_.begin()) return nullptr;
    const auto& [start, bytes] = *--after;
    offset_ = address - start;
    return offset_ <= bytes.size() && size <= bytes.size() - offset_ ? &bytes : nullptr;
  }

  std::vector<Mapping> mappings_;
  std::map<std::uint64_t, std::string> ranges_;
  mutable std::uint64_t offset_ = 0;
};

}  // namespace ddrun::inspect
