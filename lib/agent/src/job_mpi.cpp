#include "job_mpi.hpp"

#include <array>
#include <cstddef>
#include <numeric>
#include <utility>
#include <variant>

#include "ddrun/base/bytes.hpp"
#include "ddrun/base/messages.hpp"

namespace ddrun::agent {

JobMpi::JobMpi(Job& job, OnFailure on_failure, std::function<void(std::string why)> on_lost)
    : job_(job),
      on_failure_(std::move(on_failure)),
      listener_(job.io.get_executor(), {[this](int slot, std::string line) {
                                          step(pmi::pmi_event::Line{slot, std::move(line)});
                                        },
                                        [this](int slot, std::string why) {
                                          step(pmi::pmi_event::Garbage{slot, std::move(why)});
                                        }}),
      deadline_(job.io.get_executor()) {
  if (!job.prepared.mpi.libpmix.empty()) pmix_.emplace(job, on_failure_, std::move(on_lost));
}

Result<pmi::World> make_world(const Job& job) {
  const RankAssignment& ranks = job.ranks_of(job.mpi_program());
  pmi::World world;
  world.size = ranks.world_size;
  world.ranks.resize(static_cast<std::size_t>(ranks.local_world_size));
  std::iota(world.ranks.begin(), world.ranks.end(), ranks.base_rank);
  int appnum = 0;
  for (const PreparedProgram& program : job.prepared.programs) {
    if (program.world != job.prepared.mpi_world) continue;
    world.appnums.insert(world.appnums.end(), static_cast<std::size_t>(program.workers), appnum++);
  }
  world.nodes = ranks.node_count;
  if (ranks.node_rank == 0) {
    std::array<std::byte, 16> random{};
    TRY(fill_random(random));
    world.random.assign(reinterpret_cast<const char*>(random.data()), random.size());
  }
  return world;
}

Result<void> JobMpi::begin_round(worker_env::WorkerFacts& facts) {
  if (pmix_) facts.pmix = pmix_->facts();
  if (!job_.prepared.mpi.pmi) return {};
  auto world = TRY(make_world(job_));
  TRY(listener_.begin_round(world.ranks, world.size));
  server_.emplace(std::move(world));
  step(pmi::pmi_event::Start{});
  facts.pmi = {listener_.address(), [this](int local_rank) { return listener_.token(local_rank); }};
  return {};
}

void JobMpi::on_worker_exit(int local_rank, bool success) {
  if (server_) listener_.drain(local_rank);
  step(pmi::pmi_event::Ended{local_rank, success});
  if (pmix_) pmix_->on_worker_exit(local_rank, success);
}

void JobMpi::end_round() {
  deadline_.cancel();
  server_.reset();
  if (pmix_) pmix_->end_round();
  job_.context.shared->remove_mpi_segments();
}

void JobMpi::step(const pmi::PmiEvent& event) {
  if (!server_) return;
  auto actions = server_->step(event, Clock::now());
  // Before the answer that names the key space.
  const auto* const exchanged = std::get_if<pmi::pmi_event::Exchanged>(&event);
  const bool may_be_named = std::holds_alternative<pmi::pmi_event::Start>(event) || (exchanged && exchanged->tag == 0);
  if (may_be_named) job_.context.shared->set_mpi_segments(server_->segments());
  was_used_ = was_used_ || server_->was_used();
  if (const auto at = server_->next_deadline()) deadline_.set(*at, [this] { step(pmi::pmi_event::TimeIsUp{}); });
  else deadline_.cancel();
  for (const auto& action : actions) std::visit([this](const auto& what) { carry_out(what); }, action);
}

void JobMpi::carry_out(const pmi::pmi_action::Notice& notice) { say(Level::warning, notice.text); }

}  // namespace ddrun::agent
