#pragma once

#include <string>
#include <vector>

#include "ddrun/base/environment.hpp"
#include "gpu/shared_library.hpp"

namespace ddrun::collectives::nccl {

/// The prefixes whose Python packages PyTorch would be among, without starting Python: $VIRTUAL_ENV; that of `program`,
/// the path with which this program was started; that of python3 in PATH, and unless it is a virtual environment that
/// of the file behind the link, and where pip installs for a user and on Debian. Reads the file system.
[[nodiscard]] std::vector<std::string> python_prefixes(const Environment& environment, const std::string& program);

/// Opens `name` where the dynamic linker finds it, else the first libnccl.so.2 of pip below the prefixes:
/// lib/python3.11/site-packages/nvidia/nccl/lib. Fails with `unsupported`, and with where it was looked for.
[[nodiscard]] Result<SharedLibrary> open_nccl(const std::string& name, const std::vector<std::string>& prefixes);

}  // namespace ddrun::collectives::nccl
