#include "key_space.hpp"

#include <algorithm>
#include <charconv>

namespace ddrun::store {

/// One waiter for one name: an element of the name's list (doubly linked, oldest first) and of the waiter's list.
struct WaitNode {
  Waiter* waiter;
  KeySpace::WaitMap* map;
  KeySpace::WaitMap::value_type* key;
  WaitNode* previous;  // the first node's points to the last one, so that adding at the end is quick
  WaitNode* next;
  WaitNode* previous_of_waiter;
  WaitNode* next_of_waiter;
};

namespace {

/// As std::stoll: blanks, a sign, digits, then anything.
std::optional<std::int64_t> parse_number(std::string_view text) {
  const auto start = text.find_first_not_of(" \t\n\v\f\r");
  if (start == std::string_view::npos) return std::nullopt;
  text.remove_prefix(start);
  if (text.front() == '+') {
    text.remove_prefix(1);
    if (text.empty() || text.front() == '-') return std::nullopt;
  }
  std::int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc{}) return std::nullopt;
  return number;
}

/// A number as decimal text, without allocating.
class Decimal {
 public:
  explicit Decimal(std::int64_t number) : end_(std::to_chars(text_, text_ + sizeof text_, number).ptr) {}
  [[nodiscard]] std::string_view view() const { return {text_, static_cast<std::size_t>(end_ - text_)}; }

 private:
  char text_[24];
  const char* end_;
};

}  // namespace

KeySpace::~KeySpace() {
  for (auto* map : {&waits_, &barriers_}) {
    for (auto& [key, list] : *map) {
      for (WaitNode* node = list; node != nullptr;) {
        node->waiter->first_ = nullptr;
        delete std::exchange(node, node->next);
      }
    }
  }
  while (free_ != nullptr) delete std::exchange(free_, free_->next);
}

/// Adds a new key.
void KeySpace::create(std::string_view key, std::string_view value) {
  keys_.emplace(key, value);
  memory_ += key.size() + value.size() + overhead;
  if (!watchers_.empty()) notify_watchers(KeyChange::created, key, {}, value);
  wake(waits_, key);
}

/// Changes the value of an existing key, for which no client can be waiting.
void KeySpace::replace(const std::string& key, std::string& value, std::string_view now) {
  if (!watchers_.empty()) notify_watchers(KeyChange::updated, key, value, now);
  memory_ += now.size();
  memory_ -= value.size();
  value.assign(now);
}

void KeySpace::set(std::string_view key, std::string_view value) {
  if (const auto it = keys_.find(key); it != keys_.end()) return replace(it->first, it->second, value);
  create(key, value);
}

const std::string* KeySpace::find(std::string_view key) const {
  const auto it = keys_.find(key);
  return it == keys_.end() ? nullptr : &it->second;
}

std::optional<std::int64_t> KeySpace::add(std::string_view key, std::int64_t delta) {
  const auto it = keys_.find(key);
  if (it == keys_.end()) {
    create(key, Decimal(delta).view());
    return delta;
  }
  const auto number = parse_number(it->second);
  if (!number) return std::nullopt;
  const auto sum = static_cast<std::int64_t>(static_cast<std::uint64_t>(*number) + static_cast<std::uint64_t>(delta));
  replace(it->first, it->second, Decimal(sum).view());
  return sum;
}

std::string_view KeySpace::compare_set(std::string_view key, std::string_view expected, std::string_view desired) {
  if (const auto it = keys_.find(key); it != keys_.end()) {
    if (it->second == expected) replace(it->first, it->second, desired);
    return it->second;
  }
  if (!expected.empty()) return expected;
  create(key, desired);
  return desired;
}

bool KeySpace::append(std::string_view key, std::string_view value, std::size_t limit) {
  if (const auto it = keys_.find(key); it != keys_.end()) {
    if (it->second.size() + value.size() > limit) return false;
    if (watchers_.empty()) {
      it->second.append(value);
      memory_ += value.size();
    } else {
      replace(it->first, it->second, it->second + std::string(value));
    }
    return true;
  }
  if (value.size() > limit) return false;
  create(key, value);
  return true;
}

bool KeySpace::erase(std::string_view key) {
  const auto it = keys_.find(key);
  if (it == keys_.end()) return false;
  if (!watchers_.empty()) notify_watchers(KeyChange::deleted, key, it->second, {});
  memory_ -= it->first.size() + it->second.size() + overhead;
  keys_.erase(it);
  return true;
}

void KeySpace::push(std::string_view queue, std::string_view element) {
  auto it = queues_.find(queue);
  if (it == queues_.end()) {
    it = queues_.emplace(queue, std::deque<std::string>()).first;
    memory_ += queue.size() + overhead;
  }
  it->second.emplace_back(element);
  memory_ += element.size() + overhead;
  wake_one(queue);
}

std::optional<std::string> KeySpace::pop(std::string_view queue, Waiter& by) {
  if (by.granted_queue_ && *by.granted_queue_ == queue) by.granted_queue_.reset();
  const auto it = queues_.find(queue);
  if (it == queues_.end()) return std::nullopt;
  std::optional<std::string> element(std::move(it->second.front()));
  it->second.pop_front();
  memory_ -= element->size() + overhead;
  if (it->second.empty()) {
    memory_ -= queue.size() + overhead;
    queues_.erase(it);
  }
  return element;
}

std::size_t KeySpace::queue_size(std::string_view queue) const {
  const auto it = queues_.find(queue);
  return it == queues_.end() ? 0 : it->second.size();
}

bool KeySpace::exists(std::string_view name) const {
  return keys_.find(name) != keys_.end() || (!queues_.empty() && queues_.find(name) != queues_.end());
}

void KeySpace::await(std::string_view name, Waiter& waiter) {
  if (!exists(name)) add_wait(waits_, name, waiter);
}

std::optional<bool> KeySpace::arrive(std::string_view key, std::int64_t members, Waiter& waiter) {
  const auto arrived = add(key, 1);
  if (!arrived) return std::nullopt;
  if (*arrived < members) {
    add_wait(barriers_, key, waiter);
    return true;
  }
  wake(barriers_, key);
  return false;
}

/// Adds a node to the end of the name's list and to the start of the waiter's.
void KeySpace::add_wait(WaitMap& map, std::string_view key, Waiter& waiter) {
  auto it = map.find(key);
  if (it == map.end()) {
    it = map.emplace(key, nullptr).first;
    memory_ += key.size() + overhead;
  }
  WaitNode* node = free_;
  if (node != nullptr) {
    free_ = node->next;
  } else {
    node = new WaitNode;
  }
  memory_ += sizeof(WaitNode);
  WaitNode*& first = it->second;
  *node = {&waiter, &map, &*it, node, nullptr, nullptr, waiter.first_};
  if (first == nullptr) {
    first = node;
  } else {
    node->previous = std::exchange(first->previous, node);
    node->previous->next = node;
  }
  if (waiter.first_ != nullptr) waiter.first_->previous_of_waiter = node;
  else waiter.since_ = Clock::now();
  waiter.first_ = node;
}

void KeySpace::release(WaitNode* node) {
  memory_ -= sizeof(WaitNode);
  node->next = free_;
  free_ = node;
}

void KeySpace::erase_list(WaitMap& map, WaitMap::iterator it) {
  memory_ -= it->first.size() + overhead;
  map.erase(it);
}

void KeySpace::unlink_from_waiter(WaitNode* node) {
  if (node->previous_of_waiter != nullptr) {
    node->previous_of_waiter->next_of_waiter = node->next_of_waiter;
  } else {
    node->waiter->first_ = node->next_of_waiter;
  }
  if (node->next_of_waiter != nullptr) node->next_of_waiter->previous_of_waiter = node->previous_of_waiter;
}

/// Removes a node from both lists and recycles it.
void KeySpace::remove_wait(WaitNode* node) {
  unlink_from_waiter(node);
  WaitNode*& first = node->key->second;
  if (first == node) {
    first = node->next;
    if (first != nullptr) first->previous = node->previous;
  } else {
    node->previous->next = node->next;
    (node->next != nullptr ? node->next : first)->previous = node->previous;
  }
  if (first == nullptr) erase_list(*node->map, node->map->find(node->key->first));
  release(node);
}

std::vector<std::string_view> KeySpace::awaited_by(const Waiter& waiter) const {
  std::vector<std::string_view> names;
  for (const WaitNode* node = waiter.first_; node != nullptr; node = node->next_of_waiter)
    names.emplace_back(node->key->first);
  std::ranges::reverse(names);
  return names;
}

void KeySpace::cancel(Waiter& waiter) {
  while (waiter.first_ != nullptr) remove_wait(waiter.first_);
  if (!waiter.granted_queue_) return;
  const auto queue = std::exchange(waiter.granted_queue_, nullptr);
  if (queue_size(*queue) > 0) wake_one(*queue);
}

/// Ends the waits of the whole list.
void KeySpace::wake(WaitMap& map, std::string_view key) {
  if (map.empty()) return;
  const auto it = map.find(key);
  if (it == map.end()) return;
  WaitNode* node = it->second;
  erase_list(map, it);
  while (node != nullptr) {
    Waiter& waiter = *node->waiter;
    unlink_from_waiter(node);
    release(std::exchange(node, node->next));
    if (!waiter.waiting()) waiter.on_keys_exist();
  }
}

/// One element wakes one consumer: the first that waits for nothing else.
void KeySpace::wake_one(std::string_view queue) {
  for (;;) {
    const auto it = waits_.find(queue);
    if (it == waits_.end()) return;
    Waiter& waiter = *it->second->waiter;
    remove_wait(it->second);
    if (waiter.waiting()) continue;
    waiter.granted_queue_ = std::make_unique<std::string>(queue);
    waiter.on_keys_exist();
    return;
  }
}

void KeySpace::watch(std::string_view key, Waiter& watcher) {
  auto it = watchers_.find(key);
  if (it == watchers_.end()) {
    it = watchers_.emplace(key, std::vector<Waiter*>()).first;
    memory_ += key.size() + overhead;
  }
  if (std::find(it->second.begin(), it->second.end(), &watcher) != it->second.end()) return;
  it->second.push_back(&watcher);
  memory_ += sizeof(Waiter*);
  watcher.is_watching_ = true;
}

void KeySpace::notify_watchers(KeyChange change, std::string_view key, std::string_view before, std::string_view now) {
  const auto it = watchers_.find(key);
  if (it == watchers_.end()) return;
  for (Waiter* watcher : it->second) watcher->on_key_changed(change, key, before, now);
}

void KeySpace::leave(Waiter& waiter) {
  cancel(waiter);
  if (!std::exchange(waiter.is_watching_, false)) return;
  for (auto it = watchers_.begin(); it != watchers_.end();) {
    memory_ -= std::erase(it->second, &waiter) * sizeof(Waiter*);
    if (it->second.empty()) {
      memory_ -= it->first.size() + overhead;
      it = watchers_.erase(it);
    } else {
      ++it;
    }
  }
}

void KeySpace::clear() {
  for (const auto& [key, value] : keys_) memory_ -= key.size() + value.size() + overhead;
  for (const auto& [name, elements] : queues_) {
    memory_ -= name.size() + overhead;
    for (const auto& element : elements) memory_ -= element.size() + overhead;
  }
  decltype(keys_){}.swap(keys_);
  decltype(queues_){}.swap(queues_);
}

}  // namespace ddrun::store
