#include "job_mpi.hpp"

#include <sys/stat.h>

#include <array>
#include <cstddef>
#include <filesystem>
#include <numeric>
#include <utility>
#include <variant>

#include "ddrun/base/bytes.hpp"
#include "ddrun/base/messages.hpp"
#include "ddrun/base/text.hpp"
#include "ddrun/topology/cpus.hpp"

namespace ddrun::agent {

namespace {

/// From a request to the helper until it has answered: it opens a library, and writes to memory.
constexpr std::chrono::seconds answer_limit{30};

std::string random_suffix() {
  std::array<std::byte, 8> random{};
  return fill_random(random) ? in_hex(random) : std::to_string(::getpid());
}

bool is_oversubscribed(int workers) {
  const auto cpus = topology::allowed_cpus();
  return cpus && workers > cpus->count();
}

/// The ranks of this machine in the present round's MPI world. Fails with `unavailable` without random numbers.
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

}  // namespace

JobPmix::JobPmix(Job& job, OnFailure on_failure, std::function<void(std::string why)> on_lost)
    : job_(job),
      on_failure_(std::move(on_failure)),
      on_lost_(std::move(on_lost)),
      // Two machines may have one name.
      label_(concat(job.prepared.hostname, "-", random_suffix())),
      server_(label_),
      helper_(job.io.get_executor(), job.launcher,
              {[this](pmi::pmix_event::Frame frame) { on_frame(std::move(frame)); },
               [this](std::string why) { step(pmi::pmix_event::Lost{std::move(why)}); },
               [](std::string_view line) { say(Level::warning, concat("PMIx: ", line)); }}),
      answer_due_(job.io.get_executor()) {}

void JobPmix::begin(Done done) {
  done_ = std::move(done);
  auto world = make_world(job_);
  Result<void> ready = world ? Result<void>() : tl::unexpected(world.error());
  if (ready && directory_.empty()) ready = start_helper();
  if (ready) {
    round_directory_ = concat(directory_, "/", job_.ranks.round);
    ready = make_directory(round_directory_);
  }
  if (!ready) return finish(event::SpawnFailed{ready.error().message, exit_code(ready.error().code)});
  step(pmi::pmix_event::Begin{std::move(*world), job_.ranks.node_rank, round_directory_,
                              is_oversubscribed(job_.prepared.workers())});
}

Result<void> JobPmix::start_helper() {
  const std::string name = concat("ddrun-", random_suffix());
  job_.context.shared->set_mpi_directory(name);
  directory_ = concat("/dev/shm/", name);
  TRY(make_directory(directory_));
  auto environment = TRY(job_.environment_without({}, job_.mpi_program().command, job_.ranks));
  return helper_.start(job_.prepared.mpi.libpmix, directory_, label_, std::move(environment)).map([this] {
    await_answer();
  });
}

void JobPmix::await_answer() {
  answer_due_.set(Clock::now() + answer_limit, [this] {
    helper_.close();
    step(pmi::pmix_event::Lost{concat("it did not answer within ", format_duration(Milliseconds(answer_limit)))});
  });
}

Result<void> JobPmix::make_directory(const std::string& path) {
  if (::mkdir(path.c_str(), 0700) == 0) return {};
  return fail_errno(Errc::unavailable, concat("cannot make ", path, ", for shared memory of Open MPI"), errno);
}

void JobPmix::cancel(int /*signal*/) { finish({}); }

void JobPmix::finish(std::optional<event::SpawnFailed> failure) {
  if (auto done = std::exchange(done_, nullptr)) done(std::move(failure));
}

worker_env::PmixFacts JobPmix::facts() const {
  return {variables_, round_directory_, is_oversubscribed(job_.prepared.workers())};
}

void JobPmix::on_worker_exit(int local_rank, bool success) {
  helper_.drain();
  step(pmi::pmix_event::Ended{local_rank, success});
}

void JobPmix::end_round() {
  step(pmi::pmix_event::End{});
  std::error_code ignored;
  if (!round_directory_.empty()) std::filesystem::remove_all(std::exchange(round_directory_, {}), ignored);
}

void JobPmix::close() {
  helper_.close();
  job_.context.shared->remove_mpi_files();
}

void JobPmix::on_frame(pmi::pmix_event::Frame frame) {
  answer_due_.cancel();
  const bool was_open = !server_.version().empty();
  step(std::move(frame));
  if (!was_open && !server_.version().empty())
    say(Level::info, concat("serving PMIx by ", job_.prepared.mpi.libpmix, ": ", server_.version()));
}

void JobPmix::step(const pmi::PmixEvent& event) {
  for (auto& action : server_.step(event)) std::visit([this](auto& what) { carry_out(std::move(what)); }, action);
}

void JobPmix::carry_out(const pmi::pmix_action::Tell& tell) {
  helper_.send(tell.frame);
  if (done_) await_answer();  // START
}

void JobPmix::carry_out(pmi::pmix_action::Ready ready) {
  variables_ = std::move(ready.variables);
  finish({});
}

void JobPmix::carry_out(const pmi::pmix_action::GiveUp& give_up) {
  answer_due_.cancel();
  if (done_) finish(event::SpawnFailed{give_up.why, exit_codes::launcher_failed});
  else on_lost_(give_up.why);
}

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
