#include "failover_engine.hpp"

#include <algorithm>

namespace ddrun::test {

void Engine::set_unavailable(Clock::time_point until, bool extends) {
  away_until_ = std::max(away_until_, until);
  if (state_.holder == 0) return;
  if (extends) expires_ = std::max(expires_, away_until_ + ttl_);
  watch();
}

Engine::State Engine::tick(std::uint64_t client, bool campaigns, const std::string& address) {
  const bool may_lead = campaigns && !state_.verdict;
  if (state_.holder == client) {
    renew();
    if (campaigns && state_.address != address) {
      state_.address = address;
      on_change_();
    }
  } else if (state_.holder == 0 && may_lead) {
    state_.holder = client;
    state_.address = address;
    ++state_.term;
    renew();
    on_change_();
  }
  return state_;
}

void Engine::resign(std::uint64_t client) {
  if (state_.holder != client) return;
  state_.holder = 0;
  on_change_();
}

void Engine::depose(std::uint64_t client, rendezvous::Term term) {
  if (state_.holder == 0 || state_.holder == client || state_.term != term) return;
  state_.holder = 0;
  on_change_();
}

bool Engine::record(std::uint64_t client, const std::string& text) {
  if (state_.holder != client) return false;
  if (!state_.verdict) {
    state_.verdict = text;
    recorder_ = client;
    on_change_();
  }
  return recorder_ == client && state_.verdict == text;
}

void Engine::renew() {
  expires_ = std::max(expires_, timeline_.now() + ttl_);
  watch();
}

void Engine::watch() {
  timeline_.at(std::max(expires_, away_until_), [this, term = state_.term] {
    if (state_.holder == 0 || state_.term != term) return;
    if (timeline_.now() < std::max(expires_, away_until_)) return;
    state_.holder = 0;
    on_change_();
  });
}

}  // namespace ddrun::test
