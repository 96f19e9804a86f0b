#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>

#include "ddrun/base/random_bytes.hpp"
#include "ddrun/base/text.hpp"
#include "ddrun/base/unique_fd.hpp"
#include "ddrun/rendezvous/secret.hpp"

namespace ddrun::rendezvous {

namespace {

Result<void> make_directories(const std::string& path) {
  for (std::size_t at = path.find('/', 1); at != std::string::npos; at = path.find('/', at + 1)) {
    const std::string directory = path.substr(0, at);
    if (::mkdir(directory.c_str(), 0700) != 0 && errno != EEXIST && ::access(directory.c_str(), X_OK) != 0) {
      return fail_errno(Errc::unavailable, concat("cannot make the directory ", directory), errno);
    }
  }
  return {};
}

}  // namespace

std::optional<std::string> secret_path(const EnvironmentLookup& variable) {
  if (const auto config = variable("XDG_CONFIG_HOME"); config && config->starts_with('/')) {
    return concat(*config, "/ddrun/secret");
  }
  if (const auto home = variable("HOME"); home && home->starts_with('/')) {
    return concat(*home, "/.config/ddrun/secret");
  }
  return std::nullopt;
}

Result<std::string> new_secret_text() {
  std::array<std::byte, 32> bytes{};
  if (auto filled = fill_random(bytes); !filled) return tl::unexpected(filled.error());
  return in_hex(bytes);
}

Result<void> write_new_secret(const std::string& path, std::string_view text) {
  if (auto made = make_directories(path); !made) return made;
  UniqueFd fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!fd && errno == EEXIST) {
    return fail(Errc::invalid_argument,
                concat(path, " exists already and was left as it is: copy it to machines that are to join; remove it ",
                       "first to make a new one"));
  }
  if (!fd) return fail_errno(Errc::unavailable, concat("cannot write ", path), errno);
  // The mode first: the umask may have taken our own right to read. Network file systems tell of a full disk at the
  // end.
  bool written = ::fchmod(fd.get(), 0600) == 0 && write_all(fd.get(), text.data(), text.size()) &&
                 write_all(fd.get(), "\n", 1) && ::fsync(fd.get()) == 0;
  int error = errno;
  if (::close(fd.release()) != 0 && written) {
    written = false;
    error = errno;
  }
  if (written) return {};
  ::unlink(path.c_str());
  return fail_errno(Errc::unavailable, concat("cannot write ", path, ", nothing was kept"), error);
}

}  // namespace ddrun::rendezvous
