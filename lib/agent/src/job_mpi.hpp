#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "ddrun/base/alarm.hpp"
#include "ddrun/base/result.hpp"
#include "ddrun/pmi/pmi_server.hpp"
#include "ddrun/pmi/pmix_helper.hpp"
#include "ddrun/pmi/pmix_server.hpp"
#include "ddrun/pmi/rank_listener.hpp"
#include "ddrun/worker_env/worker_environment.hpp"
#include "job.hpp"
#include "participant.hpp"

namespace ddrun::agent {

/// Serves PMIx to the workers of this machine: a helper for the job, a name space and a directory for each round. All
/// is borrowed.
class JobPmix : public StartStep {
 public:
  using OnFailure = std::function<void(int local_rank, int code, std::string what)>;
  /// `on_lost`: the ranks of the round cannot go on.
  JobPmix(Job& job, OnFailure on_failure, std::function<void(std::string why)> on_lost);

  /// Prepares the present round's world, with which all machines have to agree.
  void begin(Done done) override;
  void cancel(int signal) override;
  /// Of the round that was prepared.
  [[nodiscard]] worker_env::PmixFacts facts() const;
  void on_worker_exit(int local_rank, bool success);
  void on_told(const rendezvous::Exchanged& part) {
    step(pmi::pmix_event::Exchanged{part.tag, static_cast<int>(part.first), part.blobs, part.last});
  }
  void end_round();
  [[nodiscard]] bool was_used() const { return server_.was_used(); }
  void close();

 private:
  Result<void> start_helper();
  /// Without it the helper counts as lost.
  void await_answer();
  Result<void> make_directory(const std::string& path);
  void step(const pmi::PmixEvent& event);
  void on_frame(pmi::pmix_event::Frame frame);
  void carry_out(const pmi::pmix_action::Tell& tell);
  void carry_out(const pmi::pmix_action::Contribute& part) {
    job_.rendezvous->send(rendezvous::Exchange{job_.ranks.round, part.tag, part.blob});
  }
  void carry_out(pmi::pmix_action::Ready ready);
  void carry_out(const pmi::pmix_action::Fail& fail) { on_failure_(fail.slot, fail.code, fail.why); }
  void carry_out(const pmi::pmix_action::GiveUp& give_up);
  void finish(std::optional<event::SpawnFailed> failure);

  Job& job_;
  OnFailure on_failure_;
  std::function<void(std::string why)> on_lost_;
  std::string label_;
  std::string directory_;        ///< of the job; empty before the first round
  std::string round_directory_;  ///< in it
  pmi::PmixServer server_;
  pmi::PmixHelper helper_;
  Alarm answer_due_;
  Done done_;  ///< while a round is prepared
  std::vector<std::vector<std::string>> variables_;
};

/// Serves PMI-1, PMIx or both to the workers of this machine (--mpi): a new world for each round. All is borrowed.
class JobMpi : public Participant {
 public:
  /// A rank has failed by its own word, or by how it has ended.
  using OnFailure = JobPmix::OnFailure;
  /// `on_lost`: as JobPmix's.
  JobMpi(Job& job, OnFailure on_failure, std::function<void(std::string why)> on_lost);

  /// Opens the port of PMI-1, once. Fails as RankListener::open().
  Result<void> open() { return job_.prepared.mpi.pmi ? listener_.open() : Result<void>(); }
  /// Null without PMIx.
  [[nodiscard]] StartStep* start_step() { return pmix_ ? &*pmix_ : nullptr; }
  /// A new world for the workers of the present round: sets what they need to find it. Fails as
  /// RankListener::begin_round().
  Result<void> begin_round(worker_env::WorkerFacts& facts);
  /// To be called when a worker has ended: judges it by what it has said. May call the failure's handler.
  void on_worker_exit(int local_rank, bool success);
  /// Of the present round.
  void on_told(const rendezvous::Exchanged& part) {
    if ((part.tag & pmi::pmix_tag) == 0)
      step(pmi::pmi_event::Exchanged{part.tag, static_cast<int>(part.first), part.blobs, part.last});
    else if (pmix_) pmix_->on_told(part);
  }
  /// No process of the round is left: removes what MPI programs may have left in /dev/shm.
  void end_round();
  /// Of all rounds, on this machine.
  [[nodiscard]] bool was_used() const { return was_used_ || (pmix_ && pmix_->was_used()); }
  void close() override {
    listener_.close();
    if (pmix_) pmix_->close();
  }

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
  bool was_used_ = false;  ///< PMI-1
  std::optional<JobPmix> pmix_;
};

}  // namespace ddrun::agent
