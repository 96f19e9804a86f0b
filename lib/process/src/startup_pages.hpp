#pragma once

#include <time.h>

namespace ddrun::process {

/// A job that has run for this long is not one whose end comes any moment.
constexpr timespec settling_time{0, 200'000'000};

/// Gives back the pages of the program that this process has mapped so far; those it still needs come back from the
/// page cache as it touches them. Guard and sweeper call it once the job has run for `settling_time`: starting up runs
/// through much more of the program than they ever need again, and a short job is over before giving back pays.
void drop_startup_pages();

}  // namespace ddrun::process
