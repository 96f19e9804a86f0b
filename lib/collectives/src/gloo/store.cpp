#include "gloo/store.hpp"

#include <gloo/common/error.h>

#include <algorithm>

#include "ddrun/store/store.hpp"

namespace ddrun::collectives {

namespace {

template <class T>
void must(const Result<T>& result) {
  if (!result) throw gloo::IoException(result.error().message);
}

}  // namespace

void GlooStore::set(const std::string& key, const std::vector<char>& data) {
  must(group_.store->set(name_of(key), {data.data(), data.size()}, deadline_));
}

std::vector<char> GlooStore::get(const std::string& key) {
  const auto value = group_.store->get(name_of(key), deadline_);
  must(value);
  return {value->begin(), value->end()};
}

void GlooStore::wait(const std::vector<std::string>& keys) { wait_until(keys, deadline_); }

void GlooStore::wait(const std::vector<std::string>& keys, const std::chrono::milliseconds& timeout) {
  wait_until(keys, std::min(deadline_, Clock::now() + timeout));
}

void GlooStore::wait_until(const std::vector<std::string>& keys, Deadline deadline) {
  std::vector<std::string> names;
  for (const std::string& key : keys) names.push_back(name_of(key));
  must(group_.store->wait(names, deadline));
}

}  // namespace ddrun::collectives
