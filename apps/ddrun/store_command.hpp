#pragma once

#include "ddrun/cli/store_command.hpp"

// `ddrun store`. Both return the program's exit code.

/// Serves until a signal comes. Says on stdout where it listens; blocks.
int serve_store(const ddrun::cli::StoreServe& command);

/// One question; the answer goes to stdout.
int ask_store(const ddrun::cli::StoreAsk& command);
