#include "ddrun/process/child.hpp"

// Boost.Process 1.81 forgets this one (asio::detail::throw_error).
#include <boost/asio/detail/throw_error.hpp>
#include <boost/process/v2/process.hpp>
#include <utility>

namespace ddrun::process {

struct Child::Handle {
  Handle(boost::asio::any_io_executor executor, pid_t pid, int pidfd) : process(std::move(executor), pid, pidfd) {}
  boost::process::v2::process process;
};

Child::Child(boost::asio::any_io_executor executor, Spawned spawned) : pid_(spawned.pid), pidfd_(spawned.pidfd.get()) {
  if (pidfd_ >= 0) handle_ = std::make_unique<Handle>(std::move(executor), pid_, spawned.pidfd.release());
}

Child::Child(Child&&) noexcept = default;

Child& Child::operator=(Child&& other) noexcept {
  std::swap(handle_, other.handle_);
  std::swap(pid_, other.pid_);
  std::swap(pidfd_, other.pidfd_);
  return *this;
}

Child::~Child() {
  // Boost's destructor kills and waits. By now the process id may be another's.
  if (handle_) handle_->process.detach();
}

}  // namespace ddrun::process
