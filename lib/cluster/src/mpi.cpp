#include "ddrun/base/text.hpp"
#include "schemes.hpp"

// mpirun starts ranks; with one per machine they are agents. No variable gives the host of rank 0.

namespace ddrun::cluster {

namespace {

/// horovodrun starts ranks, too. Its address variable is that of Horovod's rendezvous server, so it is not used.
constexpr MpiVariables horovod{"Horovod", "HOROVOD_CROSS_RANK", "HOROVOD_CROSS_SIZE", "", "HOROVOD_LOCAL_SIZE", "", ""};

DetectResult find_mpi(const DetectContext& context, const MpiVariables& names) {
  const auto rank = number_of(context.variables, names.rank, 0, node_limit);
  const auto size = number_of(context.variables, names.size, 1, node_limit);
  const auto local = number_of(context.variables, names.local_size, 1, node_limit);
  for (const auto* number : {&rank, &size, &local}) {
    if (!*number) return tl::unexpected<Error>(number->error());
  }
  if (!*rank || !*size || !*local) return std::optional<Detected>{};
  if ((*rank)->value >= (*size)->value) {
    return contradiction(concat(names.rank, "=", (*rank)->value), concat(names.size, "=", (*size)->value));
  }
  Detected detected;
  detected.scheme = names.scheme;
  if ((*local)->value > 1) {
    detected.shape = Shape::ranks;
    const int all = (*size)->value;
    const int here = (*local)->value;
    const bool mpi = names.scheme != horovod.scheme;
    detected.refusal =
        concat(mpi ? concat("mpirun started ", all, " ddruns, ", here, " of them")
                   : concat("horovodrun started ", here, " ddruns"),
               " here (", names.local_size, "), and each would start workers of its own; write: ",
               mpi ? concat("mpirun ", names.one_per_node) : concat("horovodrun -np ", all, " -H HOST:1,..."),
               " ddrun --nproc-per-node=", here, " ... (or --nnodes=1, if each is meant to be a job of its own)");
    return detected;
  }
  detected.shape = Shape::agents;
  detected.nodes = {{{(*size)->value, (*size)->value}, std::string(names.size)}};
  set_node_rank(detected, **rank);
  return detected;
}

}  // namespace

DetectResult find_open_mpi(const DetectContext& context) {
  // Of a worker of `ddrun --mpi`; mpirun gives its ranks another name space.
  if (context.variables.get("PMIX_NAMESPACE").value_or("").starts_with("ddrun-")) return std::nullopt;
  return find_mpi(context, open_mpi);
}

DetectResult find_mpich(const DetectContext& context) {
  // A worker of `ddrun --mpi` has PMI_PORT; a launcher that it starts leaves that and adds PMI_FD.
  const Environment& variables = context.variables;
  const bool of_ddrun = variables.has("DDRUN_ROUND") && variables.has("PMI_PORT") && !variables.has("PMI_FD");
  auto found = of_ddrun ? DetectResult(std::nullopt) : find_mpi(context, mpich);
  if (!found || *found) return found;
  return find_mpi(context, mvapich);
}

DetectResult find_horovod(const DetectContext& context) { return find_mpi(context, horovod); }

}  // namespace ddrun::cluster
