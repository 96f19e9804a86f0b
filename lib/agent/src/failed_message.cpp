#include "failed_message.hpp"

namespace ddrun::agent {

rendezvous::Failed failed_message(rendezvous::Round round, const WorkerEnd& worker) {
  rendezvous::Failed message;
  message.round = round;
  message.rank = worker.rank;
  message.local_rank = worker.local_rank;
  message.pid = worker.pid;
  if (const auto* signaled = std::get_if<Signaled>(&worker.status)) {
    message.by_signal = true;
    message.code = signaled->signal;
    message.core_dumped = signaled->core_dumped;
  } else {
    message.code = std::get<Exited>(worker.status).code;
  }
  return message;
}

}  // namespace ddrun::agent
