#pragma once

#include "job_settings.hpp"

namespace ddrun::rendezvous {

/// From STOP, or from the last SUCCEEDED, until a member that has not sent STOPPED is given up: its workers have the
/// grace time, and their output may be slow to write.
[[nodiscard]] inline Milliseconds stop_bound(const JobSettings& job) { return job.grace + Milliseconds{30'000}; }

}  // namespace ddrun::rendezvous
