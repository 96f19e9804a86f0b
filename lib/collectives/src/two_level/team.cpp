#include "two_level/team.hpp"

#include <algorithm>
#include <cstring>
#include <thread>

#include "ddrun/base/text.hpp"
#include "ddrun/collectives/memory.hpp"
#include "describe.hpp"

namespace ddrun::collectives {

/// The first failure, for those whose own view of it came later.
struct TwoLevelTeam::Note {
  enum : std::uint32_t { none, being_written, written };
  std::atomic<std::uint32_t> state;
  Errc code;
  std::uint32_t length;
  std::array<char, error_bytes> words;
};

/// Offsets in the segment, which begins as zero.
struct TwoLevelTeam::Layout {
  std::size_t note, lines, results, shown, buffers, buffer_bytes, end;

  Layout(int size, std::size_t bytes) {
    const auto ranks = static_cast<std::size_t>(size);
    note = whole_pages(sizeof(Control));
    lines = note + whole_pages(sizeof(Note));
    results = lines + whole_pages(ranks * 2 * sizeof(Line));
    shown = results + team_piece;
    buffers = shown + ranks * team_piece;
    buffer_bytes = whole_pages(bytes);
    end = buffers + ranks * 2 * buffer_bytes;
  }
  [[nodiscard]] std::size_t buffer(int rank, unsigned which) const {
    return buffers + (2 * static_cast<std::size_t>(rank) + which) * buffer_bytes;
  }
};

std::size_t TwoLevelTeam::segment_bytes(int ranks, std::size_t buffer_bytes) { return Layout(ranks, buffer_bytes).end; }

Result<std::unique_ptr<TwoLevelTeam>> TwoLevelTeam::start(std::shared_ptr<Segment> segment, std::vector<int> ranks,
                                                          int local_rank, const std::vector<HostIdentity>& all,
                                                          std::size_t buffer_bytes) {
  const int size = static_cast<int>(ranks.size());
  const Layout layout(size, buffer_bytes);
  if (segment->size() != layout.end) {
    return fail(Errc::invalid_argument,
                concat("rank ", ranks.front(), " shares ", segment->size(), " bytes, but ", layout.end,
                       " are expected here: do all ranks have the "
                       "same options?"));
  }
  if (local_rank == 0) {
    if (auto done = segment->reserve(0, layout.buffers); !done) return tl::unexpected(done.error());
  }
  if (auto done = segment->reserve(layout.buffer(local_rank, 0), 2 * layout.buffer_bytes); !done) {
    return tl::unexpected(done.error());
  }
  std::vector<HostIdentity> here;
  std::vector<PeerWatch::Peer> peers;
  for (int peer = 0; peer < size; ++peer) {
    here.push_back(all[static_cast<std::size_t>(ranks[static_cast<std::size_t>(peer)])]);
    if (peer != local_rank) peers.push_back({peer, here.back().pid});
  }
  const bool crowded = size > count_processors(here);
  std::unique_ptr<TwoLevelTeam> team(new TwoLevelTeam(std::move(segment), std::move(ranks), local_rank,
                                                      static_cast<int>(all.size()), buffer_bytes, crowded));
  if (auto watched = team->watch_.start(*team->at<Control>(0), peers); !watched) {
    return tl::unexpected(with_ranks(watched.error(), team->ranks_));
  }
  return team;
}

TwoLevelTeam::TwoLevelTeam(std::shared_ptr<Segment> segment, std::vector<int> ranks, int local_rank, int group_size,
                           std::size_t buffer_bytes, bool crowded)
    : segment_(std::move(segment)),
      ranks_(std::move(ranks)),
      local_rank_(local_rank),
      group_size_(group_size),
      buffer_bytes_(buffer_bytes),
      gate_(*at<Control>(0), at<Line>(Layout(size(), buffer_bytes).lines), local_rank, size(), crowded) {}

TwoLevelTeam::~TwoLevelTeam() { report_lost(*at<Control>(0), local_rank_); }

std::span<std::byte> TwoLevelTeam::buffer(unsigned which) const {
  return {at(Layout(size(), buffer_bytes_).buffer(local_rank_, which)), buffer_bytes_};
}

Result<void> TwoLevelTeam::meet(Deadline deadline) {
  auto passed = gate_.pass(deadline);
  if (!passed) return tl::unexpected(with_ranks(passed.error(), ranks_));
  return passed;
}

Result<void> TwoLevelTeam::announce(const Call& call, Deadline deadline) {
  Line& mine = gate_.mine();
  mine.kind = kind_of(call);
  mine.count = call.count;
  const Blocks blocks = blocks_of(call.collective, group_size_);
  mine.in = offset_of(call.in, call.bytes() * blocks.in);
  mine.out = offset_of(call.out, call.bytes() * blocks.out);
  const Partners partners{call.to, call.from};
  std::memcpy(mine.data.data(), &partners, sizeof(partners));
  if (auto met = meet(deadline); !met) return met;
  for (int peer = 0; peer < size(); ++peer) {
    const Line& theirs = gate_.of(peer);
    if (theirs.count != call.count || theirs.kind != kind_of(call)) {
      return different_calls(ranks_[static_cast<std::size_t>(peer)], theirs.kind, theirs.count,
                             ranks_[static_cast<std::size_t>(local_rank_)], call);
    }
  }
  return {};
}

TwoLevelTeam::Reach TwoLevelTeam::reach(int local_rank) const {
  const Line& line = gate_.of(local_rank);
  Reach reach;
  if (line.in != not_shared) reach.in = at(line.in);
  if (line.out != not_shared) reach.out = at(line.out);
  std::memcpy(&reach.partners, line.data.data(), sizeof(reach.partners));
  return reach;
}

bool TwoLevelTeam::shares(const std::byte* data, std::size_t bytes) const {
  return offset_of(data, bytes) != not_shared;
}

std::uint64_t TwoLevelTeam::offset_of(const std::byte* data, std::size_t bytes) const {
  const auto start = reinterpret_cast<std::uintptr_t>(segment_->data());
  const auto first = reinterpret_cast<std::uintptr_t>(data);
  if (data == nullptr || first < start || first + bytes > start + segment_->size()) return not_shared;
  return first - start;
}

std::byte* TwoLevelTeam::shown(int local_rank) const {
  return at(Layout(size(), buffer_bytes_).shown + static_cast<std::size_t>(local_rank) * team_piece);
}

std::byte* TwoLevelTeam::results() const { return at(Layout(size(), buffer_bytes_).results); }

std::optional<Error> TwoLevelTeam::kept() const {
  const Note& note = *at<Note>(Layout(size(), buffer_bytes_).note);
  // A rank that writes is not waited for: it may have been stopped.
  for (int i = 0; i < 1000 && note.state.load() == Note::being_written; ++i) std::this_thread::yield();
  if (note.state.load() != Note::written) return std::nullopt;
  return Error{note.code, std::string(note.words.data(), note.length)};
}

Error TwoLevelTeam::keep(const Error& error) {
  Note& note = *at<Note>(Layout(size(), buffer_bytes_).note);
  std::uint32_t none = Note::none;
  if (note.state.compare_exchange_strong(none, Note::being_written)) {
    note.code = error.code;
    note.length = static_cast<std::uint32_t>(std::min(error.message.size(), error_bytes));
    std::copy_n(error.message.begin(), note.length, note.words.begin());
    note.state.store(Note::written);
    return error;
  }
  return kept().value_or(error);
}

std::optional<Error> TwoLevelTeam::trouble() const {
  auto lost = lost_rank(*at<Control>(0));
  if (!lost) return lost;
  if (auto known = kept()) return known;
  return with_ranks(std::move(*lost), ranks_);
}

}  // namespace ddrun::collectives
