#include "ddrun/helper/host_lookup.hpp"

#include <algorithm>
#include <boost/asio/post.hpp>
#include <memory>
#include <utility>

#include "ddrun/base/address.hpp"
#include "ddrun/base/text.hpp"

namespace ddrun::helper {

namespace {

/// Above any real list of addresses.
constexpr std::size_t max_output_bytes = 64 * 1024;

/// The first words of the lines, without duplicates.
std::vector<std::string> addresses_in(const std::string& text) {
  std::vector<std::string> addresses;
  for (const auto& line : split(text, '\n')) {
    std::string word = line.substr(0, line.find_first_of(" \t"));
    if (!IpAddress::parse(word) || std::find(addresses.begin(), addresses.end(), word) != addresses.end()) continue;
    addresses.push_back(std::move(word));
  }
  return addresses;
}

Result<std::vector<std::string>> addresses_of(const std::string& host, Clock::duration timeout,
                                              const Result<Output>& output) {
  if (!output) {
    const Error& error = output.error();
    return fail(Errc::unavailable,
                concat("cannot find the address of host '", host, "': ",
                       error.code == Errc::timeout
                           ? concat("no answer from the system's resolver within ", format_duration(timeout))
                           : concat("the program getent, which asks the system, cannot be started (",
                                    error.cause.message(), "); give an IP address")));
  }
  auto addresses = addresses_in(output->out);
  if (addresses.empty()) return fail(Errc::unavailable, concat("host '", host, "' is not known (DNS, /etc/hosts)"));
  return addresses;
}

// Without "--", which musl's getent takes for the name.
std::vector<std::string> getent_command(const std::string& host) { return {"getent", "ahosts", host}; }

bool is_option(const std::string& host) { return host.starts_with('-'); }

tl::unexpected<Error> refuse_option(const std::string& host) {
  return fail(Errc::invalid_argument, concat("'", host, "' is no host: a host's name does not begin with '-'"));
}

}  // namespace

Running look_up_host(boost::asio::any_io_executor executor, const std::string& host, Clock::duration timeout,
                     OnFound on_found) {
  if (is_option(host)) {
    auto handle = std::make_shared<OnFound>(std::move(on_found));
    boost::asio::post(executor, [weak = std::weak_ptr(handle), host] {
      if (const auto alive = weak.lock()) (*alive)(refuse_option(host));
    });
    return handle;
  }
  return start(std::move(executor), getent_command(host), {timeout, max_output_bytes},
               [host, timeout, on_found = std::move(on_found)](const Result<Output>& output) {
                 on_found(addresses_of(host, timeout, output));
               });
}

Result<std::vector<std::string>> look_up_host(const std::string& host, Clock::duration timeout) {
  if (is_option(host)) return refuse_option(host);
  return addresses_of(host, timeout, run(getent_command(host), {timeout, max_output_bytes}));
}

}  // namespace ddrun::helper
