#include "job_mpi.hpp"

#include <array>
#include <cstddef>
#include <numeric>
#include <utility>
#include <variant>

#include "ddrun/base/bytes.hpp"
#include "ddrun/base/messages.hpp"

namespace ddrun::agent {

JobMpi::JobMpi(Job& job, OnFailure on_failure)
    : job_(job),
      on_failure_(std::move(on_failure)),
      listener_(job.io.get_executor(), {[this](int slot, std::string line) {
                                          step(pmi::pmi_event::Line{slot, std::move(line)});
                                        },
                                        [this](int slot, std::string why) {
                                          step(pmi::pmi_event::Garbage{slot, std::move(why)});
                                        }}),
      deadline_(job.io.get_executor()) {}

Result<worker_env::PmiFacts> JobMpi::begin_round() {
  const RankAssignment& ranks = job_.ranks;
  pmi::World world;
  world.size = ranks.world_size;
  world.ranks.resize(static_cast<std::size_t>(ranks.local_world_size));
  std::iota(world.ranks.begin(), world.ranks.end(), ranks.base_rank);
  world.nodes = ranks.node_count;
  if (ranks.node_rank == 0) {
    std::array<std::byte, 16> random{};
    if (auto filled = fill_random(random); !filled) return tl::unexpected(filled.error());
    world.random.assign(reinterpret_cast<const char*>(random.data()), random.size());
  }
  if (auto begun = listener_.begin_round(world.ranks, world.size); !begun) return tl::unexpected(begun.error());
  server_.emplace(std::move(world));
  step(pmi::pmi_event::Start{});
  return worker_env::PmiFacts{listener_.address(), [this](int local_rank) { return listener_.token(local_rank); }};
}

void JobMpi::on_worker_exit(int local_rank, bool success) {
  listener_.drain(local_rank);
  step(pmi::pmi_event::Ended{local_rank, success});
}

void JobMpi::end_round() {
  deadline_.cancel();
  server_.reset();
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
