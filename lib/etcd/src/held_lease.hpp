#pragma once

#include <cstdint>
#include <functional>

#include "ddrun/etcd/etcd_lease.hpp"
#include "ddrun/lease/fence.hpp"

namespace ddrun::etcd {

/// A lease that this process has for another one, which alone knows whether it is well: it is tried for, and renewed,
/// only as long as that one says so.
class HeldLease : public lease::Lease {
 public:
  /// It is well in this moment. Renews what there is to renew, and lets a candidate try for half a time to live.
  virtual void keep_alive() = 0;
};

/// Called as lease::Callbacks are, in order with them.
struct HeldLeaseEvents {
  /// etcd was read, and what is there has been told.
  std::function<void()> on_read;
  /// I lead: the lease was taken, or renewed, by a request that was sent then.
  std::function<void(std::uint64_t term, lease::FenceClock::time_point sent)> on_held;
};

/// As make_etcd_lease().
[[nodiscard]] Result<std::shared_ptr<HeldLease>> make_held_lease(const boost::asio::any_io_executor& executor,
                                                                 const lease::LeaseOptions& options,
                                                                 const EtcdOptions& etcd, lease::Callbacks callbacks,
                                                                 HeldLeaseEvents events);

}  // namespace ddrun::etcd
