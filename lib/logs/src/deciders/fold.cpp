#include "fold.hpp"

#include <algorithm>
#include <cstring>

namespace ddrun::logs {

namespace {

/// When the oldest line has waited for Fold::hold, what has waited for this long is shown with it.
constexpr auto shared_hold = Fold::hold / 2;

/// Memory of all sources that hold nothing.
constexpr std::size_t max_idle_bytes = std::size_t{4} << 20U;

/// Comparing a line costs as much as showing this many bytes.
constexpr std::size_t line_cost = 64;

/// Sources that are looked at to find the line to show first.
constexpr int max_hops = 8;

/// Bytes that both begin with.
std::size_t common_size(const char* a, const char* b, std::size_t size) {
  if (std::memcmp(a, b, size) == 0) return size;
  return static_cast<std::size_t>(std::mismatch(a, a + size, b).first - a);
}

}  // namespace

std::string_view Fold::Source::head() const {
  const std::string_view rest = std::string_view(text).substr(begin);
  return rest.substr(0, rest.find('\n') + 1);
}

int Fold::open() {
  const auto unused = std::find_if(sources_.begin(), sources_.end(),
                                   [](const Source& source) { return !source.open && source.held() == 0; });
  const auto at = static_cast<int>(unused - sources_.begin());
  if (unused == sources_.end()) sources_.emplace_back();
  sources_[index(at)] = Source();
  sources_[index(at)].open = true;
  return at;
}

void Fold::close(int source, Time now) {
  sources_[index(source)].open = false;
  settle(source, now);
}

void Fold::add(int source, std::string_view line, Time now) {
  Source& to = sources_[index(source)];
  to.text += line;
  held_ += line.size();
  if (!to.batches.empty() && to.batches.back().at == now) to.batches.back().size += line.size();
  else to.batches.push_back({line.size(), now});
}

void Fold::relieve(std::size_t source, Time now) {
  show_source(source);
  pass_unmatched(sources_[source], now);
}

void Fold::pass_unmatched(Source& source, Time now) const {
  if (source.unmatched < std::min(max_source_bytes, max_bytes / sources_.size())) return;
  source.unmatched = 0;
  source.pass_until = now + pass;
}

void Fold::relieve_most(Time now) {
  const auto most = std::ranges::max_element(sources_, {}, &Source::held);
  relieve(static_cast<std::size_t>(most - sources_.begin()), now);
}

void Fold::settle(int source, Time now) {
  if (held_ == 0) return;
  show_common(now);
  const Source& added = sources_[index(source)];
  if (added.held() > max_source_bytes && added.batches.size() > 1) relieve(index(source), now);
  while (held_ > max_bytes) relieve_most(now);
  if (std::ranges::none_of(sources_, &Source::open)) release_all();
}

void Fold::show_common(Time now) {
  std::vector<int> all;
  for (std::size_t i = 0; i < sources_.size(); ++i) {
    const Source& source = sources_[i];
    if (source.held() > 0) all.push_back(static_cast<int>(i));
    else if (source.open && source.pass_until <= now) return;
  }
  if (all.empty()) return;
  const Source& first = sources_[index(all.front())];
  std::size_t size = first.held();
  for (const int each : all) {
    const Source& other = sources_[index(each)];
    size = common_size(first.text.data() + first.begin, other.text.data() + other.begin, std::min(size, other.held()));
    if (size == 0) return;
  }
  size = std::string_view(first.text).substr(first.begin, size).rfind('\n') + 1;
  if (size == 0) return;
  emit_(all, std::string_view(first.text).substr(first.begin, size), first.batches.front().at);
  for (const int each : all) consume(sources_[index(each)], size, all.size() > 1);
}

void Fold::consume(Source& source, std::size_t size, bool matched) {
  const std::size_t cost = size + line_cost;
  source.unmatched = matched ? source.unmatched - std::min(source.unmatched, cost) : source.unmatched + cost;
  held_ -= size;
  const auto number = static_cast<std::size_t>(&source - sources_.data());
  const std::size_t end = source.begin + size;
  for (std::size_t at = source.begin; at < end && source.has_hash(); at = source.text.find('\n', at) + 1) {
    count_line(number, source.hashes[source.first_hash++], -1);
  }
  if (!source.has_hash()) {
    source.hashes.clear();
    source.first_hash = 0;
  }
  source.begin = end;
  source.hashed = std::max(source.hashed, end);
  for (std::size_t rest = size; rest > 0;) {
    Batch& batch = source.batches.front();
    const std::size_t part = std::min(rest, batch.size);
    rest -= part;
    batch.size -= part;
    if (batch.size == 0) source.batches.erase(source.batches.begin());
  }
  if (source.begin < source.text.size() && source.begin < max_source_bytes) return;
  source.text.erase(0, source.begin);
  if (source.text.empty() && source.text.capacity() > max_idle_bytes / sources_.size()) std::string().swap(source.text);
  source.hashed -= source.begin;
  source.begin = 0;
}

bool Fold::index_lines() {
  for (std::size_t i = 0; i < sources_.size(); ++i) {
    Source& source = sources_[i];
    while (source.hashed < source.text.size()) {
      if (indexed_ == max_lines) return false;
      const std::size_t end = source.text.find('\n', source.hashed) + 1;
      const auto hash =
          std::hash<std::string_view>()(std::string_view(source.text).substr(source.hashed, end - source.hashed));
      source.hashes.push_back(hash);
      count_line(i, hash, 1);
      source.hashed = end;
    }
  }
  return true;
}

void Fold::count_line(std::size_t source, std::uint64_t hash, int change) {
  const auto line = holders_.try_emplace(hash).first;
  std::vector<Holder>& holders = line->second;
  auto holder = std::ranges::lower_bound(holders, source, {}, &Holder::source);
  if (holder == holders.end() || holder->source != source) holder = holders.insert(holder, {source, 0});
  holder->copies += change;
  if (holder->copies == 0) holders.erase(holder);
  if (holders.empty()) holders_.erase(line);
  indexed_ += static_cast<std::size_t>(change);
}

std::vector<int> Fold::group_of(std::size_t source) const {
  std::vector<int> group;
  const std::string_view line = sources_[source].head();
  for (const Holder& holder : holders_.at(sources_[source].first())) {
    const Source& other = sources_[holder.source];
    if (other.first() == sources_[source].first() && other.head() == line) {
      group.push_back(static_cast<int>(holder.source));
    }
  }
  return group;
}

std::optional<std::size_t> Fold::holder_behind(std::size_t source) const {
  const std::uint64_t hash = sources_[source].first();
  for (const Holder& holder : holders_.at(hash)) {
    if (sources_[holder.source].first() != hash) return holder.source;
  }
  return std::nullopt;
}

void Fold::show_head(std::size_t source) {
  auto behind = holder_behind(source);
  // Two sources may have two lines in the opposite order: then one of them is shown twice.
  for (int hop = 0; behind && hop < max_hops; ++hop) {
    source = *behind;
    behind = holder_behind(source);
  }
  const std::vector<int> group = group_of(source);
  const std::string_view line = sources_[source].head();
  Time at = sources_[source].batches.front().at;
  for (const int each : group) at = std::min(at, sources_[index(each)].batches.front().at);
  emit_(group, line, at);
  last_shown_ = index(group.front());
  const std::size_t size = line.size();
  for (const int each : group) consume(sources_[index(each)], size, group.size() > 1 && !behind);
}

void Fold::show_source(std::size_t source) {
  Source& shown = sources_[source];
  if (index_lines()) {
    while (shown.held() > 0) show_head(source);
  } else if (shown.held() > 0) {
    emit_({static_cast<int>(source)}, std::string_view(shown.text).substr(shown.begin), shown.batches.front().at);
    consume(shown, shown.held(), false);
    shown.unmatched = max_source_bytes;
  }
}

void Fold::release(int source) {
  if (sources_[index(source)].held() > 0) show_source(index(source));
}

void Fold::release_all() {
  if (held_ == 0) return;
  for (std::size_t i = 0; i < sources_.size(); ++i) show_source(i);
}

std::optional<Fold::Time> Fold::deadline() const {
  std::optional<Time> first;
  if (held_ == 0) return first;
  for (const Source& source : sources_) {
    if (source.held() > 0 && (!first || source.batches.front().at + hold < *first)) {
      first = source.batches.front().at + hold;
    }
  }
  return first;
}

void Fold::expire(Time now) {
  if (const auto first = deadline(); !first || *first > now) return;
  while (!index_lines()) relieve_most(now);
  const auto is_old = [&](const Source& source) {
    return source.held() > 0 && source.batches.front().at + shared_hold <= now;
  };
  while (true) {
    // Lines of one source stay together where they can.
    if (last_shown_ >= sources_.size() || !is_old(sources_[last_shown_])) {
      std::optional<std::size_t> oldest;
      for (std::size_t i = 0; i < sources_.size(); ++i) {
        if (!is_old(sources_[i])) continue;
        if (!oldest || sources_[i].batches.front().at < sources_[*oldest].batches.front().at) oldest = i;
      }
      if (!oldest) break;
      last_shown_ = *oldest;
    }
    show_head(last_shown_);
  }
  for (Source& source : sources_) {
    pass_unmatched(source, now);
    source.unmatched /= 2;
  }
}

}  // namespace ddrun::logs
