#include "two_level/blocks.hpp"

#include <algorithm>

#include "copy.hpp"
#include "ddrun/collectives/reduction.hpp"

namespace ddrun::collectives {

/// A piece of the blocks of all ranks fits into the place of one rank; of an all_to_all, all outputs of a host do.
std::size_t BlockWork::most(const Call& call) const {
  const std::size_t outputs = call.collective == Collective::all_to_all ? index_of(levels_.hosts.most()) : 1;
  const std::size_t count = TwoLevelTeam::kPiece / size_of(travelling_type(call)) / (index_of(levels_.size) * outputs);
  const std::size_t apart = kApartBytes / size_of(call.type);
  return count < apart ? count : count / apart * apart;
}

void BlockWork::deal(const Call& call, const Piece& piece) {
  const int most = levels_.hosts.most();
  const int each = call.collective == Collective::all_to_all ? most : 1;  // blocks of a host for one rank
  const bool small = call.bytes() * index_of(most) * index_of(each) <= kSmallBetweenHosts;
  columns_ = small ? 1 : levels_.hosts.columns();
  rounds_ = (most + columns_ - 1) / columns_;
  slots_ = rounds_ * each;
  slot_bytes_ = piece.count * size_of(travelling_type(call));
}

Result<void> BlockWork::work(const Call& call, const Piece& piece, Deadline deadline) {
  if (piece.count == 0) return {};
  deal(call, piece);
  const bool carries = levels_.team->local_rank() < columns_;
  if (carries) pack(call, piece);
  // Who works in place overwrites what others may not have read yet.
  if (call.collective == Collective::all_to_all) {
    bool in_place = false;
    for (int local = 0; local < levels_.team->size(); ++local) {
      in_place = in_place || (reach(local).in != nullptr && reach(local).in == reach(local).out);
    }
    if (in_place) {
      if (auto met = levels_.team->meet(deadline); !met) return met;
    }
  }
  if (!carries) return {};
  if (auto done = across(call, piece, deadline); !done) return done;
  spread(call, piece);
  return {};
}

template <class Body>
void BlockWork::for_dealt(int host, const Body& body) {
  const std::vector<int>& ranks = levels_.hosts.hosts[index_of(host)];
  int round = 0;
  for (std::size_t local = index_of(levels_.team->local_rank()); local < ranks.size(); local += index_of(columns_)) {
    body(index_of(ranks[local]), slot(packed_, host, round++), static_cast<int>(local));
  }
}

std::byte* BlockWork::slot(std::vector<std::byte>& slots, int host, int of_host) const {
  return slots.data() + (index_of(host) * index_of(slots_) + index_of(of_host)) * slot_bytes_;
}

void BlockWork::pack(const Call& call, const Piece& piece) {
  const int hosts = static_cast<int>(levels_.hosts.hosts.size());
  packed_.resize(index_of(hosts) * index_of(slots_) * slot_bytes_);
  switch (call.collective) {
    case Collective::all_gather:
    case Collective::gather:
      return for_dealt(levels_.host, [&](std::size_t, std::byte* place, int local) {
        copy_bytes(place, input(call, local, 0, piece, piece.begin), slot_bytes_);
      });
    case Collective::scatter:
      if (levels_.hosts.host_of(call.root) != levels_.host) return;
      for (int host = 0; host < hosts; ++host) {
        for_dealt(host, [&](std::size_t block, std::byte* place, int) {
          copy_bytes(place, input(call, levels_.hosts.local_rank_of(call.root), block, piece, piece.begin),
                     slot_bytes_);
        });
      }
      return;
    case Collective::reduce_scatter:
      for (int host = 0; host < hosts; ++host) {
        for_dealt(host,
                  [&](std::size_t block, std::byte* place, int) { reduce_here(call, block, piece, piece, place); });
      }
      return;
    default: return pack_all_to_all(call, piece);
  }
}

/// For each rank that was dealt to this column, a block of each rank of this host.
void BlockWork::pack_all_to_all(const Call& call, const Piece& piece) {
  received_.resize(packed_.size());
  const std::size_t step = index_of(levels_.hosts.most()) * slot_bytes_;
  for (int host = 0; host < static_cast<int>(levels_.hosts.hosts.size()); ++host) {
    std::byte* to = slot(packed_, host, 0);
    for_dealt(host, [&](std::size_t block, std::byte*, int) {
      for (int local = 0; local < levels_.team->size(); ++local) {
        copy_bytes(to + index_of(local) * slot_bytes_, input(call, local, block, piece, piece.begin), slot_bytes_);
      }
      to += step;
    });
  }
}

Result<void> BlockWork::across(const Call& call, const Piece& piece, Deadline deadline) {
  Call between;
  between.collective = call.collective;
  between.type = travelling_type(call);
  between.op = travelling_op(call);
  between.count = piece.count * index_of(slots_);
  between.root = has_root(call.collective) ? levels_.hosts.host_of(call.root) : 0;
  std::byte* const all = slot(packed_, 0, 0);
  std::byte* const mine = slot(packed_, levels_.host, 0);
  // In place, but for all_to_all.
  const bool from_mine = call.collective == Collective::all_gather || call.collective == Collective::gather;
  between.in = from_mine ? mine : all;
  between.out = from_mine ? all : mine;
  if (call.collective == Collective::all_to_all) between.out = received_.data();
  return levels_.across(between, deadline);
}

void BlockWork::spread(const Call& call, const Piece& piece) {
  switch (call.collective) {
    case Collective::all_gather:
    case Collective::gather:
      if (call.collective == Collective::gather && levels_.hosts.host_of(call.root) != levels_.host) return;
      for (int host = 0; host < static_cast<int>(levels_.hosts.hosts.size()); ++host) {
        for_dealt(host, [&](std::size_t block, std::byte* place, int) {
          copy_to_all(outputs(call, block, piece, piece.begin), place, slot_bytes_, Stores::normal);
        });
      }
      return;
    case Collective::scatter:
      return for_dealt(levels_.host, [&](std::size_t, std::byte* place, int local) {
        copy_bytes(output(call, local, 0, piece, piece.begin), place, slot_bytes_);
      });
    case Collective::reduce_scatter:
      return for_dealt(levels_.host, [&](std::size_t, std::byte* place, int local) {
        kernels(call.type, call.op)
            .finish(output(call, local, 0, piece, piece.begin), place, piece.count, levels_.size);
      });
    default: return spread_all_to_all(call, piece);
  }
}

/// What each rank of a host had for those of this one that were dealt to this column.
void BlockWork::spread_all_to_all(const Call& call, const Piece& piece) {
  const std::size_t step = index_of(levels_.hosts.most()) * slot_bytes_;
  for (int host = 0; host < static_cast<int>(levels_.hosts.hosts.size()); ++host) {
    const std::vector<int>& theirs = levels_.hosts.hosts[index_of(host)];
    const std::byte* from = slot(received_, host, 0);
    for_dealt(levels_.host, [&](std::size_t, std::byte*, int local) {
      for (std::size_t i = 0; i < theirs.size(); ++i) {
        copy_bytes(output(call, local, index_of(theirs[i]), piece, piece.begin), from + i * slot_bytes_, slot_bytes_);
      }
      from += step;
    });
  }
}

}  // namespace ddrun::collectives
