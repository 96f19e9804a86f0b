#include "ddrun/base/text.hpp"
#include "schemes.hpp"

// mpirun starts ranks; with one per machine they are agents. No variable gives the host of rank 0.

namespace ddrun::cluster {

namespace {

DetectResult find_mpi(const DetectContext& context, const MpiVariables& names) {
  const auto rank = number_of(context.variables, names.rank, 0, node_limit);
  const auto size = number_of(context.variables, names.size, 1, node_limit);
  const auto local = number_of(context.variables, names.local_size, 1, node_limit);
  for (const auto* number : {&rank, &size, &local}) {
    if (!*number) return tl::unexpected<Error>(number->error());
  }
  if (!*rank || !*size || !*local) return std::optional<Detected>{};
  if ((*rank)->value >= (*size)->value) {
    return contradiction(concat(names.rank, "=", (*rank)->value), concat(names.size, "=", (*size)->value),
                         "unset the wrong one, or give --env-detect=none");
  }
  Detected detected;
  detected.scheme = names.scheme;
  if ((*local)->value > 1) {
    detected.shape = Shape::ranks;
    detected.refusal = concat("mpirun started ", (*size)->value, " ddruns, ", (*local)->value, " of them here (",
                              names.local_size, "), and each would start workers of its own; write: mpirun ",
                              names.one_per_node, " ddrun --nproc-per-node=", (*local)->value,
                              " ... (or --nnodes=1, if each is meant to be a job of its own)");
    return detected;
  }
  detected.shape = Shape::agents;
  detected.nodes = {{{(*size)->value, (*size)->value}, std::string(names.size)}};
  detected.node_rank = *rank;
  detected.is_host = {{(*rank)->value == 0, std::string(names.rank)}};
  return detected;
}

}  // namespace

DetectResult find_open_mpi(const DetectContext& context) { return find_mpi(context, open_mpi); }

DetectResult find_mpich(const DetectContext& context) {
  auto found = find_mpi(context, mpich);
  if (!found || *found) return found;
  return find_mpi(context, mvapich);
}

// horovodrun starts ranks, too. Its address variable is that of Horovod's rendezvous server, so it is not used.
DetectResult find_horovod(const DetectContext& context) {
  const auto rank = number_of(context.variables, "HOROVOD_CROSS_RANK", 0, node_limit);
  const auto size = number_of(context.variables, "HOROVOD_CROSS_SIZE", 1, node_limit);
  const auto local = number_of(context.variables, "HOROVOD_LOCAL_SIZE", 1, node_limit);
  for (const auto* number : {&rank, &size, &local}) {
    if (!*number) return tl::unexpected<Error>(number->error());
  }
  if (!*rank || !*size || !*local) return std::optional<Detected>{};
  if ((*rank)->value >= (*size)->value) {
    return contradiction(concat("HOROVOD_CROSS_RANK=", (*rank)->value), concat("HOROVOD_CROSS_SIZE=", (*size)->value),
                         "unset the wrong one, or give --env-detect=none");
  }
  Detected detected;
  detected.scheme = "Horovod";
  if ((*local)->value > 1) {
    detected.shape = Shape::ranks;
    detected.refusal = concat("horovodrun started ", (*local)->value,
                              " ddruns here (HOROVOD_LOCAL_SIZE), and each would start workers of its own; write: "
                              "horovodrun -np ",
                              (*size)->value, " -H HOST:1,... ddrun --nproc-per-node=", (*local)->value,
                              " ... (or --nnodes=1, if each is meant to be a job of its own)");
    return detected;
  }
  detected.shape = Shape::agents;
  detected.nodes = {{{(*size)->value, (*size)->value}, "HOROVOD_CROSS_SIZE"}};
  detected.node_rank = *rank;
  detected.is_host = {{(*rank)->value == 0, "HOROVOD_CROSS_RANK"}};
  return detected;
}

}  // namespace ddrun::cluster
