#include "ddrun/rendezvous/rendezvous.hpp"

#include <utility>

#include "back_ends.hpp"

namespace ddrun::rendezvous {

namespace {

struct BackEnd {
  bool (*supports)(const RendezvousSpec& spec);
  std::shared_ptr<Rendezvous> (*make)(boost::asio::any_io_executor, RendezvousOptions, RendezvousListener);
};

/// The first match is used.
constexpr BackEnd back_ends[] = {
    {[](const RendezvousSpec& spec) { return !spec.several_machines(); }, make_local_rendezvous},
    {[](const RendezvousSpec&) { return true; }, make_job_rendezvous},
};

}  // namespace

std::shared_ptr<Rendezvous> make_rendezvous(boost::asio::any_io_executor executor, RendezvousOptions options,
                                            RendezvousListener listener) {
  const BackEnd* back_end = back_ends;
  while (!back_end->supports(options.spec->rendezvous)) ++back_end;
  return back_end->make(std::move(executor), std::move(options), std::move(listener));
}

}  // namespace ddrun::rendezvous
