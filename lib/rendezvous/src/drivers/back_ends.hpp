#pragma once

#include <memory>

#include "ddrun/rendezvous/rendezvous.hpp"

// Factories of the rendezvous implementations; rendezvous.cpp selects one.

namespace ddrun::rendezvous {

/// local_rendezvous.cpp: a coordinator of one member, called directly.
[[nodiscard]] std::shared_ptr<Rendezvous> make_local_rendezvous(boost::asio::any_io_executor executor,
                                                                RendezvousOptions options, RendezvousListener listener);
/// job_rendezvous.cpp: a coordinator reached by the control protocol.
[[nodiscard]] std::shared_ptr<Rendezvous> make_job_rendezvous(boost::asio::any_io_executor executor,
                                                              RendezvousOptions options, RendezvousListener listener);

}  // namespace ddrun::rendezvous
