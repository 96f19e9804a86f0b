#pragma once

#include <string>

#include "ddrun/base/result.hpp"

namespace ddrun::collectives {

/// A library opened at run time. It is never closed, as drivers leave threads and exit handlers behind.
class SharedLibrary {
 public:
  /// `path` is a path or a name, as for dlopen(3). Fails with `unsupported`, always in a statically linked program.
  [[nodiscard]] static Result<SharedLibrary> open(const std::string& path);

  [[nodiscard]] void* find(const char* name) const;
  [[nodiscard]] const std::string& path() const { return path_; }
  /// The file that was loaded; path() if unknown.
  [[nodiscard]] const std::string& file() const { return file_; }

 private:
  SharedLibrary(void* handle, std::string path) : handle_(handle), path_(std::move(path)), file_(path_) {}

  void* handle_;
  std::string path_;
  std::string file_;
};

/// False if this program is linked statically.
[[nodiscard]] bool can_open_libraries();

/// Stores the function `name` in `to`; false if it is missing.
template <class Function>
[[nodiscard]] bool load(const SharedLibrary& library, const char* name, Function*& to) {
  to = reinterpret_cast<Function*>(library.find(name));
  return to != nullptr;
}

/// Loads functions that have to be there.
struct RequiredFunctions {
  const SharedLibrary& library;
  const char* missing = nullptr;  ///< name of the first missing function

  template <class Function>
  void operator()(const char* name, Function*& to) {
    if (!load(library, name, to) && missing == nullptr) missing = name;
  }
};

}  // namespace ddrun::collectives
