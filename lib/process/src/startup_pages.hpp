#pragma once

namespace ddrun::process {

/// Gives back the pages of the program that this process has mapped so far; those it still needs come back from the
/// page cache as it touches them. Guard and sweeper call it once they have nothing left to do but wait: starting up
/// runs through much more of the program than they ever need again.
void drop_startup_pages();

}  // namespace ddrun::process
