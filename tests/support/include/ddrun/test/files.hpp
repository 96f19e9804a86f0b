#pragma once

#include <sys/types.h>

#include <string>

namespace ddrun::test {

/// A new empty directory, removed with everything in it at the end.
class TemporaryDirectory {
 public:
  TemporaryDirectory();
  ~TemporaryDirectory();
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;
  [[nodiscard]] const std::string& path() const { return path_; }
  /// The path of a file in it, whether there is one or not.
  [[nodiscard]] std::string file(const std::string& name) const { return path_ + "/" + name; }
  /// Writes a file and creates its directories; returns its path.
  std::string file(const std::string& name, const std::string& content, mode_t mode = 0644) const;

 private:
  std::string path_;
};

/// The whole file; empty if there is none.
std::string read_file(const std::string& path);
void write_file(const std::string& path, const std::string& text);

}  // namespace ddrun::test
