#include "heartbeat.hpp"

#include <algorithm>

namespace ddrun::rendezvous {

Heartbeat::Heartbeat(Milliseconds interval, int misses)
    : interval_(std::max<Clock::duration>(interval, Milliseconds{1})), timeout_(interval_ * std::max(misses, 1)) {}

void Heartbeat::add(LinkId link, Clock::time_point now) {
  if (entries_ == 0) {
    turn_ = 0;
    turn_at_ = now + interval_ / slot_count;
  }
  // The emptiest slot; of several, the one furthest away.
  std::size_t best = (turn_ + slot_count - 1) % slot_count;
  for (std::size_t back = 2; back <= slot_count; ++back) {
    const std::size_t slot = (turn_ + slot_count - back) % slot_count;
    if (slots_[slot].size() < slots_[best].size()) best = slot;
  }
  slots_[best].push_back(link);
  ++entries_;
}

std::optional<Clock::time_point> Heartbeat::next() const {
  if (entries_ == 0) return std::nullopt;
  Clock::time_point at = turn_at_;
  std::size_t slot = turn_;
  while (slots_[slot].empty()) {
    slot = (slot + 1) % slot_count;
    at += interval_ / slot_count;
  }
  if (!suspects_.empty()) at = std::min(at, suspects_.begin()->first);
  return at;
}

void Heartbeat::visit(std::vector<LinkId>& slot, Clock::time_point now, const LastHeard& last_heard, Due& due) {
  std::size_t kept = 0;
  for (const LinkId link : slot) {
    const auto heard = last_heard(link);
    if (!heard) continue;
    slot[kept++] = link;
    due.ping.push_back(link);
    const auto deadline = std::max(*heard, silence_from_) + limit();
    if (deadline <= now + interval_) suspects_.emplace(deadline, link);
  }
  entries_ -= slot.size() - kept;
  slot.resize(kept);
}

Heartbeat::Due Heartbeat::due(Clock::time_point now, const LastHeard& last_heard) {
  Due due;
  // If due() is late by more than an interval, this process was suspended: messages may be unread, so silence does not
  // count. Members may be about to give up on us, so all are pinged at once.
  if (const auto wanted = next(); wanted && now - *wanted > interval_) {
    silence_from_ = now;
    for (auto& slot : slots_) visit(slot, now, last_heard, due);
    turn_at_ = now + interval_ / slot_count;
  }
  while (entries_ > 0 && turn_at_ <= now) {
    visit(slots_[turn_], now, last_heard, due);
    turn_ = (turn_ + 1) % slot_count;
    turn_at_ += interval_ / slot_count;
  }
  while (!suspects_.empty() && suspects_.begin()->first <= now) {
    const LinkId link = suspects_.begin()->second;
    suspects_.erase(suspects_.begin());
    const auto heard = last_heard(link);
    if (heard && std::max(*heard, silence_from_) + limit() <= now) due.silent.push_back(link);
  }
  return due;
}

}  // namespace ddrun::rendezvous
