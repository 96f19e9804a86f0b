#include "key_space.hpp"

#include <charconv>

namespace ddrun::store {

/// One waiter waiting for one key: in the key's list (doubly linked, oldest first) and in the waiter's.
struct WaitNode {
  Waiter* waiter;
  KeySpace::WaitMap::value_type* key;
  WaitNode* previous;  // the first node's points to the last one, so that adding at the end is quick
  WaitNode* next;
  WaitNode* previous_of_waiter;
  WaitNode* next_of_waiter;
};

namespace {

/// As std::stoll reads it: blanks, a sign, digits, and no matter what comes after them.
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

}  // namespace

KeySpace::~KeySpace() {
  for (auto& [key, list] : waits_) {
    for (WaitNode* node = list; node != nullptr;) {
      node->waiter->first_ = nullptr;
      delete std::exchange(node, node->next);
    }
  }
  while (free_ != nullptr) delete std::exchange(free_, free_->next);
}

void KeySpace::set(std::string_view key, std::string_view value) {
  if (const auto it = keys_.find(key); it != keys_.end()) {
    it->second.assign(value);  // a key that exists has no waiters
    return;
  }
  keys_.emplace(key, value);
  wake(key);
}

const std::string* KeySpace::find(std::string_view key) const {
  const auto it = keys_.find(key);
  return it == keys_.end() ? nullptr : &it->second;
}

std::optional<std::int64_t> KeySpace::add(std::string_view key, std::int64_t delta) {
  std::int64_t sum = delta;
  const auto it = keys_.find(key);
  if (it != keys_.end()) {
    const auto number = parse_number(it->second);
    if (!number) return std::nullopt;
    sum = static_cast<std::int64_t>(static_cast<std::uint64_t>(*number) + static_cast<std::uint64_t>(delta));
  }
  char text[24];
  const auto end = std::to_chars(text, text + sizeof text, sum).ptr;
  const std::string_view value(text, static_cast<std::size_t>(end - text));
  if (it != keys_.end()) {
    it->second.assign(value);
  } else {
    keys_.emplace(key, value);
    wake(key);
  }
  return sum;
}

std::string_view KeySpace::compare_set(std::string_view key, std::string_view expected, std::string_view desired) {
  if (const auto it = keys_.find(key); it != keys_.end()) {
    if (it->second == expected) it->second.assign(desired);
    return it->second;
  }
  if (!expected.empty()) return expected;
  keys_.emplace(key, desired);
  wake(key);
  return desired;
}

bool KeySpace::append(std::string_view key, std::string_view value, std::size_t limit) {
  if (const auto it = keys_.find(key); it != keys_.end()) {
    if (it->second.size() + value.size() > limit) return false;
    it->second.append(value);
    return true;
  }
  if (value.size() > limit) return false;
  keys_.emplace(key, value);
  wake(key);
  return true;
}

bool KeySpace::erase(std::string_view key) {
  const auto it = keys_.find(key);
  if (it == keys_.end()) return false;
  keys_.erase(it);
  return true;
}

void KeySpace::await(std::string_view key, Waiter& waiter) {
  if (keys_.find(key) != keys_.end()) return;
  auto it = waits_.find(key);
  if (it == waits_.end()) it = waits_.emplace(key, nullptr).first;

  WaitNode* node = free_;
  if (node != nullptr) {
    free_ = node->next;
  } else {
    node = new WaitNode;
  }
  WaitNode*& first = it->second;
  *node = {&waiter, &*it, node, nullptr, nullptr, waiter.first_};
  if (first == nullptr) {
    first = node;
  } else {
    node->previous = std::exchange(first->previous, node);
    node->previous->next = node;
  }
  if (waiter.first_ != nullptr) waiter.first_->previous_of_waiter = node;
  waiter.first_ = node;
}

void KeySpace::release(WaitNode* node) {
  node->next = free_;
  free_ = node;
}

void KeySpace::cancel(Waiter& waiter) {
  while (WaitNode* node = waiter.first_) {
    waiter.first_ = node->next_of_waiter;
    WaitNode*& first = node->key->second;
    if (first == node) {
      first = node->next;
      if (first != nullptr) first->previous = node->previous;
    } else {
      node->previous->next = node->next;
      (node->next != nullptr ? node->next : first)->previous = node->previous;
    }
    if (first == nullptr) waits_.erase(waits_.find(node->key->first));
    release(node);
  }
}

void KeySpace::wake(std::string_view key) {
  if (waits_.empty()) return;
  const auto it = waits_.find(key);
  if (it == waits_.end()) return;
  WaitNode* node = it->second;
  waits_.erase(it);
  while (node != nullptr) {
    Waiter& waiter = *node->waiter;
    if (node->previous_of_waiter != nullptr) {
      node->previous_of_waiter->next_of_waiter = node->next_of_waiter;
    } else {
      waiter.first_ = node->next_of_waiter;
    }
    if (node->next_of_waiter != nullptr) node->next_of_waiter->previous_of_waiter = node->previous_of_waiter;
    release(std::exchange(node, node->next));
    if (!waiter.waiting()) waiter.keys_exist();
  }
}

void KeySpace::clear() { decltype(keys_){}.swap(keys_); }

}  // namespace ddrun::store
