#include <algorithm>
#include <cmath>
#include <concepts>
#include <memory>
#include <type_traits>
#include <utility>

#include "ddrun/base/fields.hpp"
#include "ddrun/inspect/stack_page.hpp"
#include "peers.hpp"

// Ranks of one machine as bytes for another: lib/rendezvous/PROTOCOL.md, section 11.

namespace ddrun::inspect {

namespace {

/// Of a main thread that stands for several ranks: as many as a page shows.
constexpr std::size_t max_shared_python = 24;
constexpr std::size_t max_shared_native = 24;
/// Threads beside the main one, which wait for others, too.
constexpr std::size_t max_shared_blocked = 3;
/// Below Python, whose interpreter's frames say nothing.
constexpr std::size_t max_shared_below_python = 12;

template <class Given, class Value>
concept Is = std::same_as<std::remove_const_t<Given>, Value>;

template <class Frame>
void cut(std::vector<Frame>& frames, std::size_t& left_out, std::size_t limit) {
  if (frames.size() <= limit) return;
  left_out += frames.size() - limit;
  frames.resize(limit);
}

}  // namespace

// For bytes::FieldWriter and bytes::FieldReader, which find them here.

static void fields(auto& visitor, Is<PythonFrame> auto& frame) {
  visitor(frame.function, frame.file, frame.line, frame.numbers);
}

static void fields(auto& visitor, Is<NativeFrame> auto& frame) {
  std::string path = frame.module ? frame.module->path : std::string();
  visitor(path, frame.address, frame.function);
  if constexpr (!std::is_const_v<std::remove_reference_t<decltype(frame)>>) {
    if (!path.empty()) frame.module = std::make_shared<Module>(Module{std::move(path)});
  }
}

static void fields(auto& visitor, Is<ThreadStack> auto& thread) {
  visitor(thread.tid, thread.name, thread.state, thread.doing, thread.on_socket, thread.peers, thread.on_futex,
          thread.python, thread.native, thread.python_left_out, thread.native_left_out);
}

static void fields(auto& visitor, Is<Connection> auto& connection) {
  visitor(connection.rank, connection.own, connection.to_store);
}

static void fields(auto& visitor, Is<StoreWait> auto& wait) { visitor(wait.keys, wait.clients, wait.milliseconds); }

static constexpr auto last(RankStacks::Connections /*kind*/) { return RankStacks::Connections::all; }

static void fields(auto& visitor, Is<RankStacks> auto& rank) {
  auto permille = static_cast<std::int32_t>(std::lround(1000 * rank.cpu));
  visitor(rank.rank, rank.also, rank.role, rank.world, rank.pid, rank.child, rank.program, permille, rank.threads,
          rank.threads_left_out, rank.note, rank.awaited, rank.connections, rank.connections_known);
  if constexpr (!std::is_const_v<std::remove_reference_t<decltype(rank)>>) rank.cpu = permille / 1000.0;
}

std::string share_text(StackPage page, bool all_threads, std::size_t max_bytes) {
  if (!all_threads) {
    for (RankStacks& rank : page.ranks) {
      const bool is_blocked = !rank.threads.empty() && rank.threads.front().on_futex;
      std::size_t count = 0;
      std::erase_if(rank.threads, [&](const ThreadStack& thread) {
        const bool is_shown = count == 0 || (is_blocked && thread.on_futex && count <= max_shared_blocked);
        count += is_shown ? 1 : 0;
        return !is_shown;
      });
      rank.threads_left_out = 0;
    }
    merge_equal(page);
    for (RankStacks& rank : page.ranks) {
      for (ThreadStack& thread : rank.threads) {
        cut(thread.native, thread.native_left_out, thread.python.empty() ? max_shared_native : max_shared_below_python);
        cut(thread.python, thread.python_left_out, max_shared_python);
      }
    }
  }
  reduce_connections(page, max_bytes / 16);
  std::string ranks;
  std::uint32_t count = 0, left_out = 0;
  for (RankStacks& rank : page.ranks) {
    std::string one;
    bytes::FieldWriter{one}(rank);
    if (ranks.size() + one.size() > max_bytes && rank.threads.size() > 1) {
      rank.threads_left_out += rank.threads.size() - 1;
      rank.threads.resize(1);
      one.clear();
      bytes::FieldWriter{one}(rank);
    }
    const bool fits = ranks.size() + one.size() <= max_bytes;
    if (fits) ranks += one;
    (fits ? count : left_out) += fits ? 1 : 1 + static_cast<std::uint32_t>(rank.also.size());
  }
  if (left_out > 0) page.notes.push_back(concat(counted(left_out, "rank"), " left out for their size"));
  std::string text;
  bytes::FieldWriter{text}(page.notes, page.is_named, page.store_waits, count);
  return text + ranks;
}

bool add_share(StackPage& page, std::string_view share, const std::string& host) {
  bytes::Reader reader(share);
  bytes::FieldReader visitor{reader};
  std::vector<std::pair<std::string, int>> gave_up;
  std::vector<std::string> notes;
  std::vector<RankStacks> ranks;
  bool is_named = true;
  int base_rank = 0;
  std::vector<StoreWait> waits;
  visitor(gave_up, base_rank, notes, is_named, waits, ranks);
  if (!reader.ok()) return false;
  if (!waits.empty()) page.store_host = host;
  std::ranges::move(waits, std::back_inserter(page.store_waits));
  page.machines[base_rank] = host;
  if (!is_named) page.is_named = false;
  for (const std::string& note : notes) page.notes.push_back(concat(host, ": ", note));
  for (const auto& [role, rank] : gave_up) page.gave_up.push_back({role, rank});
  for (RankStacks& rank : ranks) {
    rank.host = host;
    page.ranks.push_back(std::move(rank));
  }
  return true;
}

std::string share_of(const std::vector<RankName>& gave_up, int base_rank, std::string_view ranks) {
  std::vector<std::pair<std::string, int>> names;
  for (const RankName& name : gave_up) names.emplace_back(name.role, name.rank);
  std::string text;
  bytes::FieldWriter{text}(names, base_rank);
  return text.append(ranks);
}

}  // namespace ddrun::inspect
