#include "ddrun/base/io_context.hpp"

#include <boost/asio/steady_timer.hpp>
#include <cerrno>
#include <exception>

#include "ddrun/base/messages.hpp"
#include "ddrun/base/text.hpp"

namespace ddrun {

Result<std::unique_ptr<boost::asio::io_context>> make_io_context() {
  try {
    auto context = std::make_unique<boost::asio::io_context>(1);
    const boost::asio::steady_timer opens_descriptors(*context);
    return context;
  } catch (const boost::system::system_error& error) {
    return fail_errno(Errc::unavailable, "cannot watch for events", error.code().value());
  }
}

int assign_descriptor(boost::asio::posix::stream_descriptor& to, UniqueFd fd) {
  if (!fd) return errno;
  boost::system::error_code failed;  // the user's limit of epoll watches
  to.assign(fd.get(), failed);
  if (!failed) (void)fd.release();
  return failed.value();
}

int run_main(int code_after_exception, const std::function<int()>& run) {
  std::string what;
  try {
    return run();
  } catch (const boost::system::system_error& error) {
    what = error.code().message();  // what() names a file of Boost
  } catch (const std::exception& error) {
    what = error.what();
  }
  set_message_sink({});  // its owner may be gone
  say_error(concat("cannot go on: ", what));
  return code_after_exception;
}

}  // namespace ddrun
