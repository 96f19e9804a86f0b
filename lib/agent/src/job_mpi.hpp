#pragma once

#include <functional>
#include <optional>
#include <string>

#include "ddrun/base/alarm.hpp"
#include "ddrun/base/result.hpp"
#include "ddrun/pmi/pmi_server.hpp"
#include "ddrun/pmi/rank_listener.hpp"
#include "ddrun/worker_env/worker_environment.hpp"
#include "job.hpp"
#include "participant.hpp"

namespace ddrun::agent {

/// Serves PMI-1 to the workers of this machine (--mpi): a new world for each round. All is borrowed.
class JobMpi : public Participant {
 public:
  /// A rank has failed by its own word, or by how it has ended.
  using OnFailure = std::function<void(int local_rank, int code, std::string what)>;
  JobMpi(Job& job, OnFailure on_failure);

  /// Opens the port, once. Fails as RankListener::open().
  Result<void> open() { return listener_.open(); }
  /// A new world for the workers of the present round, and what they need to find it. Fails as
  /// RankListener::begin_round().
  Result<worker_env::PmiFacts> begin_round();
  /// To be called when a worker has ended: judges it by what it has said. May call the failure's handler.
  void on_worker_exit(int local_rank, bool success);
  /// Of the present round.
  void on_told(const rendezvous::Exchanged& part) {
    step(pmi::pmi_event::Exchanged{part.tag, static_cast<int>(part.first), part.blobs, part.last});
  }
  /// No process of the round is left: removes what MPICH may have left in /dev/shm.
  void end_round();
  /// Of all rounds, on this machine.
  [[nodiscard]] bool was_used() const { return was_used_; }
  void close() override { listener_.close(); }

 private:
  void step(const pmi::PmiEvent& event);
  void carry_out(const pmi::pmi_action::Answer& answer) { listener_.answer(answer.slot, answer.text); }
  void carry_out(const pmi::pmi_action::CutOff& cut) { listener_.cut_off(cut.slot); }
  void carry_out(const pmi::pmi_action::Contribute& part) {
    job_.rendezvous->send(rendezvous::Exchange{job_.ranks.round, part.tag, part.blob});
  }
  void carry_out(const pmi::pmi_action::Fail& fail) { on_failure_(fail.slot, fail.code, fail.why); }
  void carry_out(const pmi::pmi_action::Notice& notice);

  Job& job_;
  OnFailure on_failure_;
  pmi::RankListener listener_;
  std::optional<pmi::PmiServer> server_;  ///< of the present round, while workers run
  Alarm deadline_;
  bool was_used_ = false;
};

}  // namespace ddrun::agent
