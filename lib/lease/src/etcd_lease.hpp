#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <memory>

#include "ddrun/base/result.hpp"
#include "ddrun/lease/lease.hpp"

namespace ddrun::lease {

[[nodiscard]] Result<std::shared_ptr<Lease>> make_etcd_lease(const boost::asio::any_io_executor& executor,
                                                             const LeaseOptions& options, const EtcdOptions& etcd,
                                                             Callbacks callbacks);

}  // namespace ddrun::lease
