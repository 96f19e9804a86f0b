#include "fold.hpp"

#include <algorithm>
#include <cstring>

namespace ddrun::logs {

namespace {

/// When the oldest line has waited for Fold::hold, what has waited for this long is shown with it.
constexpr auto shared_hold = Fold::hold / 2;

/// Memory of all sources that hold nothing.
constexpr std::size_t max_idle_bytes = std::size_t{4} << 20U;

std::uint64_t key(std::size_t source, std::uint64_t hash) {
  return hash ^ ((source + 1) * 0x9e3779b97f4a7c15U);  // an odd number: each source gives another key
}

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
  const auto open = static_cast<std::size_t>(std::ranges::count_if(sources_, &Source::open));
  Source& shown = sources_[source];
  if (shown.unmatched < std::min(max_source_bytes, max_bytes / std::max<std::size_t>(open, 1))) return;
  shown.unmatched = 0;
  shown.pass_until = now + hold;
}

void Fold::settle(int source, Time now) {
  if (held_ == 0) return;
  show_common(now);
  const Source& added = sources_[index(source)];
  if (added.held() > max_source_bytes && added.batches.size() > 1) relieve(index(source), now);
  while (held_ > max_bytes) {
    const auto most = std::ranges::max_element(sources_, {}, &Source::held);
    relieve(static_cast<std::size_t>(most - sources_.begin()), now);
  }
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
  const bool matched = all.size() > 1;
  for (const int each : all) {
    Source& source = sources_[index(each)];
    source.unmatched = matched ? 0 : source.unmatched + size;
    consume(source, size);
  }
}

void Fold::consume(Source& source, std::size_t size) {
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

void Fold::index_lines() {
  for (std::size_t i = 0; i < sources_.size(); ++i) {
    Source& source = sources_[i];
    while (source.hashed < source.text.size()) {
      const std::size_t end = source.text.find('\n', source.hashed) + 1;
      const auto hash =
          std::hash<std::string_view>()(std::string_view(source.text).substr(source.hashed, end - source.hashed));
      source.hashes.push_back(hash);
      count_line(i, hash, 1);
      source.hashed = end;
    }
  }
}

void Fold::count_line(std::size_t source, std::uint64_t hash, int change) {
  const auto change_in = [change](std::unordered_map<std::uint64_t, int>& counts, std::uint64_t of) {
    const auto at = counts.try_emplace(of, 0).first;
    at->second += change;
    const int count = at->second;
    if (count == 0) counts.erase(at);
    return count;
  };
  const int copies = change_in(copies_, key(source, hash));
  if (copies == (change > 0 ? 1 : 0)) change_in(holders_, hash);
}

std::vector<int> Fold::group_of(std::size_t source) const {
  std::vector<int> group;
  const Source& chosen = sources_[source];
  const std::string_view line = chosen.head();
  const std::uint64_t hash = chosen.hashes[chosen.first_hash];
  for (std::size_t i = 0; i < sources_.size(); ++i) {
    const Source& other = sources_[i];
    if (other.held() == 0 || other.hashes[other.first_hash] != hash || other.head() != line) continue;
    group.push_back(static_cast<int>(i));
  }
  return group;
}

std::optional<std::size_t> Fold::holder_behind(const std::vector<int>& group) const {
  const Source& first = sources_[index(group.front())];
  const std::uint64_t hash = first.hashes[first.first_hash];
  if (holders_.at(hash) <= static_cast<int>(group.size())) return std::nullopt;
  for (std::size_t i = 0; i < sources_.size(); ++i) {
    const bool in_group = std::binary_search(group.begin(), group.end(), static_cast<int>(i));
    if (!in_group && copies_.contains(key(i, hash))) return i;
  }
  return std::nullopt;
}

void Fold::show_head(std::size_t source) {
  std::vector<int> group = group_of(source);
  std::vector<std::size_t> waiting{source};
  // Two sources may have two lines in the opposite order: then one of them is shown twice.
  while (const auto other = holder_behind(group)) {
    if (std::find(waiting.begin(), waiting.end(), *other) != waiting.end()) break;
    waiting.push_back(*other);
    group = group_of(*other);
  }
  const Source& first = sources_[index(group.front())];
  const std::size_t size = first.head().size();
  Time at = first.batches.front().at;
  for (const int each : group) at = std::min(at, sources_[index(each)].batches.front().at);
  emit_(group, first.head(), at);
  last_shown_ = index(group.front());
  for (const int each : group) {
    Source& shown = sources_[index(each)];
    shown.unmatched = group.size() > 1 ? 0 : shown.unmatched + size;
    consume(shown, size);
  }
}

void Fold::show_source(std::size_t source) {
  index_lines();
  while (sources_[source].held() > 0) show_head(source);
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
  index_lines();
  while (true) {
    std::optional<std::size_t> oldest;
    for (std::size_t i = 0; i < sources_.size(); ++i) {
      const Source& source = sources_[i];
      if (source.held() == 0 || source.batches.front().at + shared_hold > now) continue;
      if (!oldest || source.batches.front().at < sources_[*oldest].batches.front().at) oldest = i;
    }
    if (!oldest) return;
    // Lines of one source stay together where they can.
    const bool goes_on = last_shown_ < sources_.size() && sources_[last_shown_].held() > 0 &&
                         sources_[last_shown_].batches.front().at + shared_hold <= now;
    show_head(goes_on ? last_shown_ : *oldest);
  }
}

}  // namespace ddrun::logs
