#include "ddrun/store/prefix_store.hpp"

#include "ddrun/base/text.hpp"

namespace ddrun::store {

PrefixStore::PrefixStore(std::string_view prefix, Store& store) : prefix_(concat(prefix, '/')), store_(&store) {}

std::string PrefixStore::full(std::string_view key) const { return concat(prefix_, key); }

std::vector<std::string> PrefixStore::full(std::span<const std::string> keys) const {
  std::vector<std::string> names;
  names.reserve(keys.size());
  for (const auto& key : keys) names.push_back(full(key));
  return names;
}

Result<void> PrefixStore::set(std::string_view key, std::string_view value, Deadline deadline) {
  return store_->set(full(key), value, deadline);
}

Result<std::string> PrefixStore::get(std::string_view key, Deadline deadline) {
  return store_->get(full(key), deadline);
}

Result<std::int64_t> PrefixStore::add(std::string_view key, std::int64_t delta, Deadline deadline) {
  return store_->add(full(key), delta, deadline);
}

Result<void> PrefixStore::wait(std::span<const std::string> keys, Deadline deadline) {
  return store_->wait(full(keys), deadline);
}

Result<bool> PrefixStore::check(std::span<const std::string> keys, Deadline deadline) {
  return store_->check(full(keys), deadline);
}

Result<std::string> PrefixStore::compare_set(std::string_view key, std::string_view expected, std::string_view desired,
                                             Deadline deadline) {
  return store_->compare_set(full(key), expected, desired, deadline);
}

Result<bool> PrefixStore::delete_key(std::string_view key, Deadline deadline) {
  return store_->delete_key(full(key), deadline);
}

Result<std::int64_t> PrefixStore::num_keys(Deadline deadline) { return store_->num_keys(deadline); }

Result<void> PrefixStore::append(std::string_view key, std::string_view value, Deadline deadline) {
  return store_->append(full(key), value, deadline);
}

Result<std::vector<std::string>> PrefixStore::multi_get(std::span<const std::string> keys, Deadline deadline) {
  return store_->multi_get(full(keys), deadline);
}

Result<void> PrefixStore::multi_set(std::span<const std::string> keys, std::span<const std::string> values,
                                    Deadline deadline) {
  return store_->multi_set(full(keys), values, deadline);
}

Result<std::vector<std::string>> PrefixStore::list_keys(Deadline deadline) {
  auto all = store_->list_keys(deadline);
  if (!all) return all;
  std::vector<std::string> keys;
  for (const auto& key : *all) {
    if (key.starts_with(prefix_)) keys.push_back(key.substr(prefix_.size()));
  }
  return keys;
}

Result<void> PrefixStore::queue_push(std::string_view queue, std::string_view element, Deadline deadline) {
  return store_->queue_push(full(queue), element, deadline);
}

Result<std::string> PrefixStore::queue_pop(std::string_view queue, Deadline deadline) {
  return store_->queue_pop(full(queue), deadline);
}

Result<std::int64_t> PrefixStore::queue_length(std::string_view queue, Deadline deadline) {
  return store_->queue_length(full(queue), deadline);
}

Result<void> PrefixStore::barrier(std::string_view key, std::int64_t members, Deadline deadline) {
  return store_->barrier(full(key), members, deadline);
}

}  // namespace ddrun::store
