#pragma once

#include <unistd.h>

#include <string_view>

#include "ddrun/base/text.hpp"
#include "ddrun/base/unique_fd.hpp"

namespace ddrun::allreduce {

/// One line on stderr, in one piece so that lines of several ranks do not mix.
inline void say_error(std::string_view message) {
  const std::string line = concat("ddrun-allreduce: error: ", message, '\n');
  write_all(STDERR_FILENO, line.data(), line.size());
}

}  // namespace ddrun::allreduce
