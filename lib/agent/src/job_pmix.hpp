#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "ddrun/base/alarm.hpp"
#include "ddrun/pmi/pmix_helper.hpp"
#include "ddrun/pmi/pmix_server.hpp"
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

}  // namespace ddrun::agent
