#include "member_driver.hpp"

#include "ddrun/base/wrong_step.hpp"
#include "ddrun/rendezvous/secret.hpp"
#include "settings.hpp"

namespace ddrun::rendezvous {

void MemberDriver::start_machine(MemberOptions options) {
  const LaunchSpec& spec = *options_.spec;
  options.spec = spec.rendezvous;
  options.run_id = run_id_;
  options.host = options_.host;
  options.new_agent_id = random_id;
  options.join.version = options_.version;
  options.join.job_id = run_id_;
  options.join.host = options_.full_host;
  options.join.local_world_size = static_cast<std::uint32_t>(options_.local_world_size);
  options.join.role = spec.first().role;
  options.join.settings = join_settings(spec, options_.mpi);
  options.on_step = wrong_step_hook("member");
  machine_.emplace(std::move(options));
}

void MemberDriver::step(MemberEvent event) {
  events_.push_back(std::move(event));
  if (events_.size() > 1) return;  // handled by the outer call
  for (; !events_.empty(); events_.pop_front()) {
    for (const MemberAction& action : machine_->step(events_.front(), now())) carry_out(action);
  }
  const auto next = machine_->next_deadline();
  if (next == armed_) return;
  armed_ = next;
  if (!next) return timer_.cancel();
  timer_.set(*next + (Clock::now() - now()), [this] {
    armed_.reset();
    step(member_event::TimeIsUp{});
  });
}

std::shared_ptr<Rendezvous> make_rendezvous(boost::asio::any_io_executor executor, RendezvousOptions options,
                                            RendezvousListener listener) {
  const bool several = options.spec->rendezvous.several_machines();
  return (several ? make_job_rendezvous : make_local_rendezvous)(std::move(executor), std::move(options),
                                                                 std::move(listener));
}

}  // namespace ddrun::rendezvous
