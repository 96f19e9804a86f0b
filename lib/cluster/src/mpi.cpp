#include "ddrun/base/text.hpp"
#include "findings.hpp"

// mpirun starts ranks. With one of them on each machine they are what ddrun calls agents; but where rank 0 runs, no
// variable says.

namespace ddrun::cluster {

namespace {

Found find_mpi(const Surroundings& around, const MpiVariables& names) {
  const auto rank = number_of(around.variables, names.rank, 0, most_nodes);
  const auto size = number_of(around.variables, names.size, 1, most_nodes);
  const auto local = number_of(around.variables, names.local_size, 1, most_nodes);
  for (const auto* number : {&rank, &size, &local}) {
    if (!*number) return tl::unexpected<Error>(number->error());
  }
  if (!*rank || !*size || !*local) return std::optional<Detected>{};
  if ((*rank)->value >= (*size)->value) {
    return contradiction(concat(names.rank, "=", (*rank)->value), concat(names.size, "=", (*size)->value),
                         "unset the wrong one, or give --env-detect=none");
  }
  Detected said;
  said.scheme = names.scheme;
  if ((*local)->value > 1) {
    said.shape = Shape::ranks;
    said.refusal = concat("mpirun started ", (*size)->value, " ddruns, ", (*local)->value, " of them here (",
                          names.local_size, "), and each would start workers of its own; write: mpirun ",
                          names.one_per_node, " ddrun --nproc-per-node=", (*local)->value,
                          " ... (or --nnodes=1, if each is meant to be a job of its own)");
    return said;
  }
  said.shape = Shape::agents;
  said.nodes = {{{(*size)->value, (*size)->value}, std::string(names.size)}};
  said.node_rank = *rank;
  said.is_host = {{(*rank)->value == 0, std::string(names.rank)}};
  return said;
}

}  // namespace

Found find_open_mpi(const Surroundings& around) { return find_mpi(around, open_mpi); }

Found find_mpich(const Surroundings& around) {
  auto found = find_mpi(around, mpich);
  if (!found || *found) return found;
  return find_mpi(around, mvapich);
}

// horovodrun too starts ranks. The address that it gives is that of its own rendezvous, on the machine where it runs.
Found find_horovod(const Surroundings& around) {
  const auto rank = number_of(around.variables, "HOROVOD_CROSS_RANK", 0, most_nodes);
  const auto size = number_of(around.variables, "HOROVOD_CROSS_SIZE", 1, most_nodes);
  const auto local = number_of(around.variables, "HOROVOD_LOCAL_SIZE", 1, most_nodes);
  for (const auto* number : {&rank, &size, &local}) {
    if (!*number) return tl::unexpected<Error>(number->error());
  }
  if (!*rank || !*size || !*local) return std::optional<Detected>{};
  if ((*rank)->value >= (*size)->value) {
    return contradiction(concat("HOROVOD_CROSS_RANK=", (*rank)->value), concat("HOROVOD_CROSS_SIZE=", (*size)->value),
                         "unset the wrong one, or give --env-detect=none");
  }
  Detected said;
  said.scheme = "Horovod";
  if ((*local)->value > 1) {
    said.shape = Shape::ranks;
    said.refusal = concat("horovodrun started ", (*local)->value,
                          " ddruns here (HOROVOD_LOCAL_SIZE), and each would start workers of its own; write: "
                          "horovodrun -np ",
                          (*size)->value, " -H HOST:1,... ddrun --nproc-per-node=", (*local)->value,
                          " ... (or --nnodes=1, if each is meant to be a job of its own)");
    return said;
  }
  said.shape = Shape::agents;
  said.nodes = {{{(*size)->value, (*size)->value}, "HOROVOD_CROSS_SIZE"}};
  said.node_rank = *rank;
  said.is_host = {{(*rank)->value == 0, "HOROVOD_CROSS_RANK"}};
  return said;
}

}  // namespace ddrun::cluster
