#include "ddrun/helper/host_lookup.hpp"

#include <algorithm>
#include <utility>

#include "ddrun/base/address.hpp"
#include "ddrun/base/text.hpp"

namespace ddrun::helper {

namespace {

/// No more addresses than a host can have.
constexpr std::size_t longest_answer = 64 * 1024;

/// The first words of the lines, without doubles.
std::vector<std::string> addresses_in(const std::string& text) {
  std::vector<std::string> addresses;
  for (const auto& line : split(text, '\n')) {
    std::string word = line.substr(0, line.find_first_of(" \t"));
    if (!IpAddress::parse(word) || std::find(addresses.begin(), addresses.end(), word) != addresses.end()) continue;
    addresses.push_back(std::move(word));
  }
  return addresses;
}

Result<std::vector<std::string>> addresses_of(const std::string& host, Clock::duration patience,
                                              const Result<Output>& answer) {
  if (!answer) {
    const Error& error = answer.error();
    return fail(Errc::unavailable,
                concat("cannot find the address of host '", host, "': ",
                       error.code == Errc::timeout
                           ? concat("no answer from the system's resolver within ", format_duration(patience))
                           : concat("the program getent, which asks the system, cannot be started (",
                                    error.cause.message(), "); give an IP address")));
  }
  auto addresses = addresses_in(answer->out);
  if (addresses.empty()) return fail(Errc::unavailable, concat("host '", host, "' is not known (DNS, /etc/hosts)"));
  return addresses;
}

std::vector<std::string> question(const std::string& host) { return {"getent", "ahosts", "--", host}; }

}  // namespace

Running look_up_host(boost::asio::any_io_executor executor, const std::string& host, Clock::duration patience,
                     OnFound on_found) {
  return start(std::move(executor), question(host), {patience, longest_answer},
               [host, patience, on_found = std::move(on_found)](const Result<Output>& answer) {
                 on_found(addresses_of(host, patience, answer));
               });
}

Result<std::vector<std::string>> look_up_host(const std::string& host, Clock::duration patience) {
  return addresses_of(host, patience, run(question(host), {patience, longest_answer}));
}

}  // namespace ddrun::helper
