#pragma once

#include <optional>
#include <string>

#include "ddrun/agent/job_result.hpp"
#include "ddrun/base/result.hpp"

namespace ddrun::agent {

/// What a worker wrote to its TORCHELASTIC_ERROR_FILE, as PyTorch's `record` does:
///
///     {"message": {"message": "ValueError: boom", "extraInfo": {"py_callstack": "…", "timestamp": "1795223473"}}}
///     {"message": "some text", "timestamp": 1795223473}
///
/// Nothing if there is no such file or no message in it. A file whose end is missing (its writer was killed) gives
/// what stands before the break. Reads at most 4 MiB, never blocks on anything but a regular file.
[[nodiscard]] std::optional<WorkerError> read_error_file(const std::string& path);

/// Copies a worker's error file to `to`, the file that an outer launcher gave to ddrun itself, with the worker's end
/// added as "errorCode" inside "message" (minus the number for a signal), as torchrun does for outer schedulers.
/// Fails with `protocol` if `from` holds no complete JSON and with `unavailable` if `to` cannot be written.
[[nodiscard]] Result<void> hand_on_error_file(const std::string& from, const ExitStatus& status, const std::string& to);

}  // namespace ddrun::agent
