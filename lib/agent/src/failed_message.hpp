#pragma once

#include "ddrun/agent/job_result.hpp"
#include "ddrun/rendezvous/messages.hpp"

namespace ddrun::agent {

/// What the rendezvous is told about a worker that failed; that it may restart is assumed.
[[nodiscard]] rendezvous::Failed failed_message(rendezvous::Round round, const WorkerEnd& worker);

}  // namespace ddrun::agent
