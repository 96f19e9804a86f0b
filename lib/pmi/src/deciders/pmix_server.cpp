#include "ddrun/pmi/pmix_server.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <deque>
#include <span>
#include <string_view>
#include <utility>

#include "ddrun/base/bytes.hpp"
#include "ddrun/base/legal_order.hpp"
#include "ddrun/base/text.hpp"
#include "helper_frames.hpp"
#include "process_mapping.hpp"

namespace ddrun::pmi {

namespace {

enum class RoundState {
  idle,         ///< between rounds
  opening,      ///< a round has begun, and the helper opens its library
  exchanging,   ///< the ranks of all machines
  registering,  ///< the helper prepares the ranks
  running,      ///< workers may run
  lost,         ///< there is no helper any more
};

/// The legal order, by the state that is left.
constexpr auto round_order = [] {
  using enum RoundState;
  return std::array{
      any_of(opening, lost),            // idle
      any_of(idle, exchanging, lost),   // opening
      any_of(idle, registering, lost),  // exchanging
      any_of(idle, running, lost),      // registering
      any_of(idle, lost),               // running
      any_of(lost),                     // lost
  };
}();

constexpr std::size_t max_slots = 1U << 20U;

enum class RankState { absent, connected, finalized, aborted, ended };

struct PmixRank {
  RankState state = RankState::absent;
  bool left_silently = false;  ///< ended with 0 before it had connected
};

/// What a machine contributes to tag 0.
struct PmixNode {
  std::string label;
  std::string version;
};

struct Fence {
  std::int64_t request = 0;
  std::string blob;
};

}  // namespace

class PmixServer::Machine {
 public:
  explicit Machine(std::string label) : label_(std::move(label)) {}

  std::vector<PmixAction> step(const PmixEvent& event) {
    std::visit([this](const auto& what) { on(what); }, event);
    return std::exchange(actions_, {});
  }
  [[nodiscard]] const std::string& version() const { return version_; }
  [[nodiscard]] bool was_used() const { return was_used_; }

 private:
  // Events.
  void on(const pmix_event::Begin& begin);
  void on(const pmix_event::Frame& frame);
  void on(const pmix_event::Lost& lost) { give_up(concat("the PMIx server (ddrun-pmix) has ended: ", lost.why)); }
  void on(const pmix_event::Ended& end);
  void on(const pmix_event::Exchanged& part);
  void on(const pmix_event::End& end);

  // Frames of the helper.
  void on_opened(std::string_view version);
  void on_ready(bytes::Reader& reader);
  void on_connected(int slot);
  void on_aborted(int slot, int status, std::int64_t request);
  void on_fence(Fence fence);

  void become(RoundState next);
  void contribute_ranks();
  void read_ranks();
  void start(const std::vector<PmixNode>& nodes, const std::vector<RankRange>& ranges, std::string_view random);
  void contribute_next_fence();
  void enter(int slot, RankState state);
  void judge_silent();
  void fail(int slot, int code, std::string why);
  void give_up(std::string why);
  template <class... Fields>
  void tell(helper_frame_type type, const Fields&... fields) {
    actions_.emplace_back(pmix_action::Tell{make_frame(type, fields...)});
  }

  std::string label_;
  std::string version_;
  bool was_used_ = false;
  std::string why_lost_;
  RoundState state_ = RoundState::idle;
  std::vector<PmixAction> actions_;

  // Of the round.
  pmix_event::Begin round_;
  std::vector<PmixRank> ranks_;
  std::string nspace_;
  bool has_failed_ = false;
  std::uint32_t tag_ = 0;           ///< that is exchanged, or the next one
  std::vector<std::string> blobs_;  ///< of this tag
  std::deque<Fence> fences_;        ///< the first one is exchanged
};

void PmixServer::Machine::on(const pmix_event::Begin& begin) {
  round_ = begin;
  ranks_.assign(begin.world.ranks.size(), {});
  has_failed_ = false;
  tag_ = 0;
  blobs_.clear();
  fences_.clear();
  if (state_ == RoundState::lost) return actions_.emplace_back(pmix_action::GiveUp{why_lost_}), void();
  become(RoundState::opening);
  if (!version_.empty()) contribute_ranks();
}

void PmixServer::Machine::on_opened(std::string_view version) {
  version_ = version;
  if (state_ == RoundState::opening) contribute_ranks();
}

void PmixServer::Machine::become(RoundState next) {
  const bool is_legal = (round_order[static_cast<std::size_t>(state_)] >> static_cast<unsigned>(next) & 1U) != 0;
  if (is_legal) state_ = next;
  else give_up("took a wrong step in serving PMIx, a defect of ddrun");
}

void PmixServer::Machine::contribute_ranks() {
  become(RoundState::exchanging);
  std::string blob;
  bytes::put_text(blob, label_);
  bytes::put_text(blob, version_);
  blob += encode_node(round_.world.ranks, round_.world.random);
  if (round_.world.nodes == 1) return on(pmix_event::Exchanged{pmix_tag, 0, {std::move(blob)}, true});
  actions_.emplace_back(pmix_action::Contribute{pmix_tag, std::move(blob)});
}

void PmixServer::Machine::on(const pmix_event::Exchanged& part) {
  const bool is_awaited = state_ == RoundState::exchanging || (state_ == RoundState::running && !fences_.empty());
  if (!is_awaited || part.tag != (tag_ | pmix_tag)) return;
  blobs_.insert(blobs_.end(), part.blobs.begin(), part.blobs.end());
  if (!part.last) return;
  ++tag_;
  if (state_ == RoundState::exchanging) {
    read_ranks();
  } else {
    tell(helper_frame_answer, fences_.front().request, 0, join(blobs_, ""));
    fences_.pop_front();
    contribute_next_fence();
  }
  blobs_.clear();
}

void PmixServer::Machine::read_ranks() {
  std::vector<PmixNode> nodes;
  std::vector<RankRange> ranges;
  std::string_view random;
  bool valid = static_cast<int>(blobs_.size()) == round_.world.nodes;
  for (const std::string& blob : blobs_) {
    bytes::Reader reader(blob);
    PmixNode& node = nodes.emplace_back();
    node.label = reader.text();
    node.version = reader.text();
    const auto rest = decode_node(reader.left(), static_cast<int>(nodes.size()) - 1, ranges);
    valid = valid && reader.ok() && rest;
    if (valid && nodes.size() == 1) random = *rest;
  }
  if (!valid || random.empty() || !place(ranges, round_.world.size)) {
    return give_up("cannot serve PMIx: the machines do not agree on their ranks");
  }
  const auto other =
      std::ranges::find_if(nodes, [&](const PmixNode& node) { return node.version != nodes.front().version; });
  if (other != nodes.end()) {
    return give_up(concat("cannot serve PMIx: ", nodes.front().version, " on ", nodes.front().label, ", but ",
                          other->version, " on ", other->label, "; all machines need the same libpmix, see --mpi-lib"));
  }
  std::ranges::sort(ranges, {}, &RankRange::first);
  start(nodes, ranges, random);
}

void PmixServer::Machine::start(const std::vector<PmixNode>& nodes, const std::vector<RankRange>& ranges,
                                std::string_view random) {
  nspace_ = concat("ddrun-", in_hex(std::as_bytes(std::span(random))));
  std::string labels, ranks, peers, slots, parts;
  for (int node = 0; node < round_.world.nodes; ++node) {
    if (node > 0) labels += ',', ranks += ';';
    labels += nodes[static_cast<std::size_t>(node)].label;
    std::string_view comma;
    for (const RankRange& range : ranges) {
      for (int i = 0; range.node == node && i < range.count; ++i)
        ranks += concat(std::exchange(comma, ","), range.first + i);
    }
  }
  const World& world = round_.world;
  for (std::size_t slot = 0; slot < world.ranks.size(); ++slot) {
    peers += concat(slot == 0 ? "" : ",", world.ranks[slot]);
    put_field(slots, world.ranks[slot]);
    put_field(slots, slot < world.appnums.size() ? world.appnums[slot] : 0);
  }
  for (const auto& [first, count, node] : ranges) {
    for (const int number : {first, count, node}) put_field(parts, number);
  }
  become(RoundState::registering);
  tell(helper_frame_start, nspace_, round_.directory, labels, ranks, peers, world.size, world.nodes, round_.node,
       round_.oversubscribed, world.ranks.size(), Raw{slots}, ranges.size(), Raw{parts});
}

void PmixServer::Machine::on_ready(bytes::Reader& reader) {
  const std::string_view nspace = reader.text();
  std::vector<std::vector<std::string>> variables(static_cast<std::size_t>(reader.number<std::int64_t>()) % max_slots);
  for (auto& of_slot : variables) {
    for (auto left = reader.number<std::int64_t>(); left > 0 && reader.ok(); --left)
      of_slot.emplace_back(reader.text());
  }
  if (state_ != RoundState::registering || nspace != nspace_) return;
  const auto is_like_first = [&](const auto& one) { return one.size() == variables.front().size(); };
  if (variables.size() != ranks_.size() || !std::ranges::all_of(variables, is_like_first)) {
    return give_up("cannot serve PMIx: not all ranks are prepared");
  }
  become(RoundState::running);
  actions_.emplace_back(pmix_action::Ready{std::move(variables)});
}

void PmixServer::Machine::on(const pmix_event::Frame& frame) {
  bytes::Reader reader(frame.payload);
  const auto number = [&] { return reader.number<std::int64_t>(); };
  const auto slot = [&] { return static_cast<int>(number()); };
  switch (frame.type) {
    case helper_frame_opened: on_opened(reader.text()); break;
    case helper_frame_failed: return give_up(concat("cannot serve PMIx: ", reader.text()));
    case helper_frame_ready: on_ready(reader); break;
    case helper_frame_connected: on_connected(slot()); break;
    case helper_frame_finalized: enter(slot(), RankState::finalized); break;
    case helper_frame_aborted: {
      const int rank = slot(), status = slot();
      on_aborted(rank, status, number());
      break;
    }
    case helper_frame_fence: {
      const auto request = number();
      on_fence({request, std::string(reader.text())});
      break;
    }
    default: return give_up("the PMIx server (ddrun-pmix) sent a frame of an unknown type");
  }
  if (!reader.ok() || !reader.left().empty()) give_up("the PMIx server (ddrun-pmix) sent a malformed frame");
}

void PmixServer::Machine::enter(int slot, RankState state) {
  if (state_ != RoundState::running || slot < 0 || static_cast<std::size_t>(slot) >= ranks_.size()) return;
  PmixRank& rank = ranks_[static_cast<std::size_t>(slot)];
  if (rank.state < state) rank.state = state;
}

void PmixServer::Machine::on_connected(int slot) {
  was_used_ = true;
  enter(slot, RankState::connected);
  judge_silent();
}

/// MPI_Init waits for all ranks of the world.
void PmixServer::Machine::judge_silent() {
  const bool some_wait =
      std::ranges::any_of(ranks_, [](const PmixRank& rank) { return rank.state == RankState::connected; });
  for (std::size_t slot = 0; some_wait && slot < ranks_.size(); ++slot) {
    if (ranks_[slot].left_silently)
      fail(static_cast<int>(slot), 1, "ended without MPI_Init, for which other ranks wait");
  }
}

void PmixServer::Machine::on_aborted(int slot, int status, std::int64_t request) {
  enter(slot, RankState::aborted);
  const int code = status & 0xff;
  fail(slot, code == 0 ? 1 : code, concat("called MPI_Abort(", status, ")"));
  tell(helper_frame_answer, request, 0, "");
}

void PmixServer::Machine::on_fence(Fence fence) {
  if (state_ != RoundState::running) return;
  if (round_.world.nodes == 1) return tell(helper_frame_answer, fence.request, 0, fence.blob);
  fences_.push_back(std::move(fence));
  if (fences_.size() == 1) contribute_next_fence();
}

void PmixServer::Machine::contribute_next_fence() {
  if (!fences_.empty())
    actions_.emplace_back(pmix_action::Contribute{tag_ | pmix_tag, std::move(fences_.front().blob)});
}

void PmixServer::Machine::on(const pmix_event::Ended& end) {
  if (state_ != RoundState::running) return;
  PmixRank& rank = ranks_.at(static_cast<std::size_t>(end.slot));
  const RankState before = std::exchange(rank.state, RankState::ended);
  tell(helper_frame_gone, end.slot);
  if (!end.success) return;
  if (before == RankState::connected) return fail(end.slot, 1, "ended without MPI_Finalize");
  rank.left_silently = before == RankState::absent;
  judge_silent();
}

void PmixServer::Machine::on(const pmix_event::End& /*end*/) {
  if (state_ == RoundState::lost) return;
  if (state_ == RoundState::registering || state_ == RoundState::running) tell(helper_frame_end);
  become(RoundState::idle);
}

void PmixServer::Machine::fail(int slot, int code, std::string why) {
  const bool is_here = slot >= 0 && static_cast<std::size_t>(slot) < ranks_.size();
  if (state_ != RoundState::running || !is_here || std::exchange(has_failed_, true)) return;
  actions_.emplace_back(pmix_action::Fail{slot, code, std::move(why)});
}

void PmixServer::Machine::give_up(std::string why) {
  if (state_ == RoundState::lost) return;
  why_lost_ = std::move(why);
  const bool has_ranks =
      std::ranges::any_of(ranks_, [](const PmixRank& rank) { return rank.state != RankState::ended; });
  const RoundState before = std::exchange(state_, RoundState::lost);
  if (before != RoundState::idle && has_ranks) actions_.emplace_back(pmix_action::GiveUp{why_lost_});
}

PmixServer::PmixServer(std::string label) : machine_(std::make_unique<Machine>(std::move(label))) {}
PmixServer::~PmixServer() = default;
PmixServer::PmixServer(PmixServer&&) noexcept = default;
PmixServer& PmixServer::operator=(PmixServer&&) noexcept = default;

std::vector<PmixAction> PmixServer::step(const PmixEvent& event) { return machine_->step(event); }
const std::string& PmixServer::version() const { return machine_->version(); }
bool PmixServer::was_used() const { return machine_->was_used(); }

}  // namespace ddrun::pmi
