#pragma once

#include <cstdint>
#include <functional>

#include "ddrun/etcd/etcd_lease.hpp"
#include "ddrun/lease/fence.hpp"

namespace ddrun::etcd {

/// A lease held for another process, which must keep calling keep_alive(): it is acquired and renewed only then.
class HeldLease : public lease::Lease {
 public:
  /// The other process is alive now: renews a held lease, and lets a candidate try for half a time to live.
  virtual void keep_alive() = 0;
};

/// Called like lease::Callbacks, in order with them.
struct HeldLeaseEvents {
  /// etcd was read, and the callbacks for its state were called.
  std::function<void()> on_read;
  /// This process leads: the lease was acquired or renewed by a request sent at `sent`.
  std::function<void(std::uint64_t term, lease::FenceClock::time_point sent)> on_held;
};

/// As make_etcd_lease().
[[nodiscard]] Result<std::shared_ptr<HeldLease>> make_held_lease(const boost::asio::any_io_executor& executor,
                                                                 const lease::LeaseOptions& options,
                                                                 const EtcdOptions& etcd, lease::Callbacks callbacks,
                                                                 HeldLeaseEvents events);

}  // namespace ddrun::etcd
