#include "host_lookup.hpp"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/buffer.hpp>
#include <boost/asio/post.hpp>
#include <cerrno>

#include "ddrun/base/address.hpp"
#include "ddrun/base/text.hpp"
#include "ddrun/base/unique_fd.hpp"

namespace ddrun::rendezvous {

namespace {

/// getent with its output in `output`; 0 or an error number.
int start_getent(const std::string& host, int output, pid_t& child) {
  posix_spawn_file_actions_t files;
  posix_spawnattr_t attributes;
  ::posix_spawn_file_actions_init(&files);
  ::posix_spawnattr_init(&attributes);
  ::posix_spawn_file_actions_addopen(&files, 0, "/dev/null", O_RDONLY, 0);
  ::posix_spawn_file_actions_adddup2(&files, output, 1);
  ::posix_spawn_file_actions_addopen(&files, 2, "/dev/null", O_WRONLY, 0);
  sigset_t none, all;
  ::sigemptyset(&none);
  ::sigfillset(&all);
  ::posix_spawnattr_setsigmask(&attributes, &none);
  ::posix_spawnattr_setsigdefault(&attributes, &all);
  ::posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
  const char* const argv[] = {"getent", "ahosts", "--", host.c_str(), nullptr};
  const int error = ::posix_spawnp(&child, "getent", &files, &attributes, const_cast<char* const*>(argv), environ);
  ::posix_spawnattr_destroy(&attributes);
  ::posix_spawn_file_actions_destroy(&files);
  return error;
}

}  // namespace

std::vector<std::string> addresses_in(const std::string& text) {
  std::vector<std::string> addresses;
  for (const auto& line : split(text, '\n')) {
    std::string word = line.substr(0, line.find_first_of(" \t"));
    if (!IpAddress::parse(word) || std::find(addresses.begin(), addresses.end(), word) != addresses.end()) continue;
    addresses.push_back(std::move(word));
  }
  return addresses;
}

HostLookup::HostLookup(boost::asio::any_io_executor executor) : output_(executor), timer_(executor) {}

HostLookup::~HostLookup() { end_child(); }

void HostLookup::start(const std::string& host, Clock::duration patience, OnFound on_found) {
  host_ = host;
  on_found_ = std::move(on_found);
  text_.clear();
  const auto later = [this](std::string why) {
    boost::asio::post(output_.get_executor(), [self = shared_from_this(), why = std::move(why)] {
      self->finish(fail(Errc::unavailable, why));
    });
  };
  auto pipe = make_pipe();
  if (!pipe) return later(pipe.error().message);
  pid_t child = -1;
  if (const int error = start_getent(host, pipe->write.get(), child); error != 0) {
    return later(concat("cannot find the address of host '", host,
                        "': the program getent, which asks the system, cannot be started (",
                        std::generic_category().message(error), "); give an IP address"));
  }
  child_ = child;
  output_.assign(pipe->read.release());
  timer_.expires_after(patience);
  timer_.async_wait([self = shared_from_this(), patience](const boost::system::error_code& ec) {
    if (ec || !self->on_found_) return;
    self->finish(
        fail(Errc::unavailable, concat("cannot find the address of host '", self->host_,
                                       "': no answer from the system's resolver within ", format_duration(patience))));
  });
  read();
}

void HostLookup::read() {
  output_.async_read_some(
      boost::asio::buffer(buffer_), [self = shared_from_this()](const boost::system::error_code& ec, std::size_t got) {
        if (!self->on_found_) return;
        if (!ec) {
          self->text_.append(self->buffer_, got);
          if (self->text_.size() < 64 * 1024) return self->read();
        }
        auto addresses = addresses_in(self->text_);
        if (!addresses.empty()) return self->finish(std::move(addresses));
        self->finish(fail(Errc::unavailable, concat("host '", self->host_, "' is not known (DNS, /etc/hosts)")));
      });
}

void HostLookup::finish(Result<std::vector<std::string>> found) {
  if (!on_found_) return;
  const auto on_found = std::move(on_found_);
  cancel();
  on_found(std::move(found));
}

void HostLookup::cancel() {
  on_found_ = nullptr;
  timer_.cancel();
  boost::system::error_code ignored;
  if (output_.is_open()) output_.close(ignored);
  end_child();
}

/// Somebody else may have taken its status: whoever looks after all children of this process. That it is killed, if it
/// still runs, makes waiting for it short.
void HostLookup::end_child() {
  if (child_ <= 0) return;
  if (::waitpid(child_, nullptr, WNOHANG) == 0 && ::kill(child_, SIGKILL) == 0) {
    while (::waitpid(child_, nullptr, 0) < 0 && errno == EINTR) {
    }
  }
  child_ = -1;
}

}  // namespace ddrun::rendezvous
