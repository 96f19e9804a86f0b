#pragma once

#include <set>
#include <string_view>

#include "ddrun/inspect/stack_page.hpp"

// Who is at the other end of a rank's sockets: another rank, the worker store, or none of the job's.

namespace ddrun::inspect {

/// Of "10.0.0.2:4711"; 0: there is none.
[[nodiscard]] int port_of(std::string_view address);

/// Says of threads that wait on a socket whose it is: "receives from rank 2", "receives from the store". `store_ports`:
/// of the job's worker stores. `is_whole`: the page has all ranks of the job; other peers are then no ranks.
void name_peers(StackPage& page, const std::set<int>& store_ports, bool is_whole);

/// Of StackPage::store_waits: whose they are, and notes that say so.
void name_store_clients(StackPage& page);

/// For another machine: without those connections that it needs not, or cannot have in about `max_bytes`.
void reduce_connections(StackPage& page, std::size_t max_bytes);

}  // namespace ddrun::inspect
