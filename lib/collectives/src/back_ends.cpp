#include "back_ends.hpp"

#include <algorithm>
#include <array>

#include "ddrun/base/text.hpp"

namespace ddrun::collectives {

namespace {

Result<BackendConnection> connect_auto(const Ranks& ranks, Deadline deadline);

/// In the order in which `auto` tries them.
constexpr std::array table{
    BackEnd{.name = "auto",
            .backend = Backend::automatic,
            .help = "nccl with a GPU per rank, else shm inside a machine, else tcp",
            .connect = connect_auto,
            .gpus = GpuUse::optional},
    BackEnd{.name = "nccl",
            .backend = Backend::nccl,
            .help = "NVIDIA's library, between GPUs",
            .probe = probe_nccl,
            .connect = connect_nccl,
            .eligibility = nccl_eligibility,
            .gpus = GpuUse::required},
    BackEnd{.name = "shm",
            .backend = Backend::shm,
            .help = "memory shared by the processes of one machine",
            .connect = connect_shm,
            .eligibility = shm_eligibility},
    BackEnd{.name = "tcp",
            .backend = Backend::tcp,
            .help = "connections between the ranks",
            .connect = connect_tcp,
            .eligibility = [](const Ranks& /*ranks*/) { return Eligibility{}; }},
    BackEnd{.name = "gloo",
            .backend = Backend::gloo,
            .help = "the Gloo library, as a second opinion",
            .probe = probe_gloo,
            .connect = connect_gloo},
};

/// Errors after which `auto` does not try the next back end.
bool is_final(const Error& error) { return error.code == Errc::timeout || error.code == Errc::connection_lost; }

Result<BackendConnection> connect_first_eligible(const Ranks& ranks, bool with_gpus, Deadline deadline) {
  std::string why;
  std::string remarks;
  Result<BackendConnection> made;
  for (const BackEnd& one : table) {
    const bool on_gpus = one.gpus == GpuUse::required;
    if (one.eligibility == nullptr || (on_gpus && !with_gpus)) continue;
    const Eligibility verdict = one.eligibility(ranks);
    if (verdict.eligible) {
      made = one.connect(ranks, deadline);
      if (made) {
        if (made->why.empty()) made->why = why;
        made->why += remarks;
      }
      if (made || on_gpus || is_final(made.error())) return made;
      why = made.error().message;
    } else if (on_gpus && !verdict.reason.empty()) {
      remarks += concat("; not ", one.name, ": ", verdict.reason);
    } else if (why.empty()) {
      why = verdict.reason;
    }
  }
  return made;
}

Result<BackendConnection> connect_auto(const Ranks& ranks, Deadline deadline) {
  return connect_first_eligible(ranks, true, deadline);
}

}  // namespace

const BackEnd& back_end(Backend backend) {
  return *std::find_if(table.begin(), table.end(), [&](const BackEnd& one) { return one.backend == backend; });
}

Result<BackendConnection> connect_backend(const Ranks& ranks, Deadline deadline) {
  const BackEnd& wanted = back_end(ranks.options.backend);
  auto chosen = wanted.connect(ranks, deadline);
  if (chosen && chosen->why.empty()) chosen->why = concat("--backend=", wanted.name);
  return chosen;
}

Result<std::shared_ptr<Communicator>> connect_control(const Ranks& ranks, Deadline deadline) {
  Ranks without_buffers = ranks;
  without_buffers.options.buffer_bytes = 0;
  return TRY(connect_first_eligible(without_buffers, false, deadline)).communicator;
}

std::span<const Backend> backends() {
  static const std::vector<Backend> all = [] {
    std::vector<Backend> found;
    for (const BackEnd& one : table) found.push_back(one.backend);
    return found;
  }();
  return all;
}

std::string_view name_of(Backend backend) { return back_end(backend).name; }

std::optional<Backend> backend_named(std::string_view name) {
  for (const BackEnd& one : table) {
    if (one.name == name) return one.backend;
  }
  return std::nullopt;
}

Result<std::string> probe(Backend backend) {
  const BackEnd& one = back_end(backend);
  return one.probe != nullptr ? one.probe() : std::string(one.help);
}

bool works_on_gpus(Backend backend) { return back_end(backend).gpus == GpuUse::required; }

}  // namespace ddrun::collectives
