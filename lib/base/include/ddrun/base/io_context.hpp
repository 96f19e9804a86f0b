#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <functional>
#include <memory>

#include "ddrun/base/result.hpp"
#include "ddrun/base/unique_fd.hpp"

namespace ddrun {

/// An event loop for one thread. It has its descriptors already, so that timers and unopened descriptors can be made
/// without an exception. Errors: `unavailable`.
[[nodiscard]] Result<std::unique_ptr<boost::asio::io_context>> make_io_context();

/// Passes `fd` to Asio, without an exception. Returns 0, or the errno with `fd` closed: errno of the call that made it
/// if it holds none.
[[nodiscard]] int assign_descriptor(boost::asio::posix::stream_descriptor& to, UniqueFd fd);

/// The result of `run`; after an exception, such as Asio's without descriptors, an error message on stderr and
/// `code_after_exception`. For the outermost function of a process.
[[nodiscard]] int run_main(int code_after_exception, const std::function<int()>& run);

}  // namespace ddrun
