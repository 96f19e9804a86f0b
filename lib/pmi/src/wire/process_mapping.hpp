#pragma once

#include <optional>
#include <string>
#include <vector>

#include "ddrun/pmi/pmi_server.hpp"

namespace ddrun::pmi {

/// `placement` with nodes numbered from 0 in the order in which they come, without empty parts and with neighbours of
/// one node joined.
[[nodiscard]] Placement number_nodes(const Placement& placement);

/// The node's number, as of number_nodes(), that has this rank; 0 if there is none.
[[nodiscard]] int node_of_rank(const Placement& numbered, int rank);

/// PMI_process_mapping: "(vector,(0,2,8),(2,1,4))" is 8 ranks on each of the nodes 0 and 1, then 4 on node 2. A reader
/// begins again at the first part until each rank has a node. Nothing where that takes 674 bytes or more, which MPICH
/// up to 4.0 would cut off without an error.
[[nodiscard]] std::optional<std::string> process_mapping(const Placement& numbered);

}  // namespace ddrun::pmi
