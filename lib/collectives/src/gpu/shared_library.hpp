#pragma once

#include <string>

#include "ddrun/base/result.hpp"

namespace ddrun::collectives {

/// A library that is opened while the program runs. It stays open: drivers leave threads and exit handlers behind.
class SharedLibrary {
 public:
  /// `path` as dlopen(3) takes it: a path, or a name that is searched for. Fails with `unsupported` and says why; a
  /// program that is linked statically cannot open any.
  [[nodiscard]] static Result<SharedLibrary> open(const std::string& path);

  /// Null if there is no such function.
  [[nodiscard]] void* find(const char* name) const;
  /// As it was asked for.
  [[nodiscard]] const std::string& path() const { return path_; }
  /// Which file it turned out to be; path() if that cannot be known.
  [[nodiscard]] const std::string& file() const { return file_; }

 private:
  SharedLibrary(void* handle, std::string path) : handle_(handle), path_(std::move(path)), file_(path_) {}

  void* handle_;
  std::string path_;
  std::string file_;
};

/// Whether this program can open shared libraries: false if it is linked statically.
[[nodiscard]] bool can_open_libraries();

/// Puts the function `name` of `library` into `to`; false if it is not there.
template <class Function>
[[nodiscard]] bool load_function(const SharedLibrary& library, const char* name, Function*& to) {
  to = reinterpret_cast<Function*>(library.find(name));
  return to != nullptr;
}

}  // namespace ddrun::collectives
