#pragma once

#include "ddrun/cli/rendezvous_command.hpp"

/// `ddrun rendezvous`: serves until a signal comes, and says on stdout where it listens. Returns the exit code.
int serve_rendezvous(const ddrun::cli::RendezvousServe& command);
