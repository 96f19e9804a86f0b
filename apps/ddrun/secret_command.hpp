#pragma once

#include "ddrun/cli/secret_command.hpp"

/// `ddrun secret new`. Returns the program's exit code.
int make_secret(const ddrun::cli::SecretNew& command);
