#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "ddrun/base/result.hpp"
#include "ddrun/spec/launch_spec.hpp"

namespace ddrun::rendezvous {

/// The secret shared by a job's agents: 16 to 4096 bytes. Never printed, overwritten when destroyed. Move-only, so that
/// copies are explicit.
class Secret {
 public:
  static constexpr std::size_t min_size = 16;
  static constexpr std::size_t max_size = 4096;

  /// Content of a file or a variable, stripped by trim_typed(). Errors: `invalid_argument` for a text that is too short
  /// or too long; the message does not show it.
  [[nodiscard]] static Result<Secret> from_text(std::string_view text);

  Secret(Secret&& other) noexcept;
  Secret& operator=(Secret&& other) noexcept;
  ~Secret();

  /// False for a short text that looks like words: a recorded handshake allows an offline dictionary attack. A
  /// heuristic, for a warning.
  [[nodiscard]] bool looks_strong() const;

  /// Valid as long as this object.
  [[nodiscard]] std::string_view bytes() const { return bytes_; }

 private:
  explicit Secret(std::string bytes) : bytes_(std::move(bytes)) {}
  std::string bytes_;  // never in the small-string buffer, as capacity is reserved
};

/// Overwrites the whole buffer, in a way that is not optimized away, and empties it.
void wipe(std::string& text) noexcept;

/// Value of an environment variable; empty optional if it is unset or empty.
using EnvironmentLookup = std::function<std::optional<std::string_view>(std::string_view name)>;

struct FoundSecret {
  Secret secret;
  std::string file;     ///< its source; empty: DDRUN_SECRET
  bool is_new = false;  ///< created by this call
};

/// The secret of `spec.secret_file`, else of the variable DDRUN_SECRET, else of the file secret_path(). Nothing if none
/// of them is there.
///
/// A file must be a regular one of this user that no other user may read or write. The one exception is a file of root
/// on a read-only tmpfs, which is how Kubernetes mounts a Secret: only the container's own processes see that file
/// system, whatever the mode says. One newline at the end is dropped. Reads a file; does not block on a FIFO.
///
/// Fails with `invalid_argument` for a secret that is too short, too long, or that others can read, and if secret_file
/// names nothing; with `unavailable` if a file cannot be read.
[[nodiscard]] Result<std::optional<FoundSecret>> find_secret(const RendezvousSpec& spec,
                                                             const EnvironmentLookup& variable);

/// find_secret(); where there is none, a new one is written to secret_path(). Of several processes that share that file
/// one writes it and all return its secret. Also fails with `invalid_argument` if there is no such path or nothing can
/// be written there; the message names --secret-file and DDRUN_SECRET.
[[nodiscard]] Result<FoundSecret> find_or_make_secret(const RendezvousSpec& spec, const EnvironmentLookup& variable);

/// For FoundSecret::is_new.
[[nodiscard]] std::string new_secret_message(const std::string& file);

/// Advice for an agent and a coordinator with different secrets. `file`: this machine's secret file, or empty; `host`:
/// this machine; copy the file from `from` to `to`, of which the empty one is this machine. The command has a line.
[[nodiscard]] std::string other_secret_advice(const std::string& file, const std::string& host, const std::string& from,
                                              const std::string& to);

/// Warning for a secret that does not look strong.
[[nodiscard]] std::string weak_secret_message();

/// "$XDG_CONFIG_HOME/ddrun/secret", else "$HOME/.config/ddrun/secret"; nothing if neither variable is an absolute path.
[[nodiscard]] std::optional<std::string> secret_path(const EnvironmentLookup& variable);

/// A new secret of 256 random bits, as 64 hexadecimal digits. Fails with `unavailable` if the kernel gives none.
[[nodiscard]] Result<std::string> new_secret_text();

/// Writes `text` and a newline to a new file at `path` with mode 0600, and makes its directories with 0700. The file
/// appears with its whole content. Never over one that exists (`invalid_argument`, with the cause `file_exists`). Fails
/// with `unavailable` if something cannot be written; nothing is left then.
[[nodiscard]] Result<void> write_new_secret(const std::string& path, std::string_view text);

/// A random UUID (version 4), as torchrun uses for a job that was given no name.
[[nodiscard]] std::string random_id();

}  // namespace ddrun::rendezvous
