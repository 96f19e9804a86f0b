#include "ddrun/pmi/pmi_server.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstddef>
#include <limits>
#include <span>
#include <string_view>

#include "ddrun/base/legal_order.hpp"
#include "ddrun/base/text.hpp"
#include "key_space.hpp"
#include "pmi_line.hpp"
#include "process_mapping.hpp"

namespace ddrun::pmi {

namespace {

/// Until a notice names the ranks that still run beside one that ended without MPI_Finalize.
constexpr Milliseconds quiet_time{10'000};
constexpr std::size_t random_bytes = 16;

enum class State {
  absent,     ///< has not said `init`
  connected,  ///< its next command is awaited
  held,       ///< its command is answered when the name of the key space is known
  spawning,   ///< in the lines of MPI_Comm_spawn
  in_barrier,
  finalized,
  aborted,
  cut_off,
  ended,  ///< the worker has
};

constexpr bool is_one_of(State state, unsigned states) { return (states & (1U << static_cast<unsigned>(state))) != 0; }

/// The legal order, by the state that is left.
constexpr auto may_follow = [] {
  using enum State;
  return std::array{
      any_of(connected, aborted, cut_off, ended),                              // absent
      any_of(held, spawning, in_barrier, finalized, aborted, cut_off, ended),  // connected
      any_of(connected, aborted, cut_off, ended),                              // held
      any_of(connected, cut_off, ended),                                       // spawning
      any_of(connected, aborted, cut_off, ended),                              // in_barrier
      any_of(connected, aborted, cut_off, ended),                              // finalized
      any_of(cut_off, ended),                                                  // aborted
      any_of(ended),                                                           // cut_off
      0U,                                                                      // ended
  };
}();

/// The states in which a command may come; in all others it is garbage.
constexpr unsigned allowed_in(std::string_view command) {
  using enum State;
  if (command == "init") return any_of(absent, finalized);
  if (command == "abort") return any_of(absent, connected, held, in_barrier, finalized);
  return command.empty() ? 0 : any_of(connected);
}

/// Publishing and looking up are refused, so that the library returns its own error.
constexpr std::array<std::pair<std::string_view, std::string_view>, 5> fixed_answers{{
    {"get_maxes", "cmd=maxes kvsname_max=256 keylen_max=64 vallen_max=1024"},
    {"finalize", "cmd=finalize_ack"},
    {"publish_name", "cmd=publish_result rc=1 msg=not_supported"},
    {"unpublish_name", "cmd=unpublish_result rc=1 msg=service_not_found"},
    {"lookup_name", "cmd=lookup_result rc=1 msg=service_not_found"},
}};
static_assert(max_key_bytes == 64 && max_value_bytes == 1024);

struct Rank {
  int slot = 0;
  int number = 0;
  State state = State::absent;
  bool last_was_barrier = false;  ///< its last command
  std::string command{};          ///< while `held`
  long long spawns_left = 0;      ///< blocks of lines of MPI_Comm_spawn, while `spawning`
  // Once `ended`:
  State left = State::absent;  ///< the state before
  bool success = false;
};

/// FNV-1a, of which MPICH 5 makes the names of its segments.
std::uint32_t hash(std::string_view text) {
  std::uint32_t value = 0x811c9dc5;
  for (const char c : text) value = (value ^ static_cast<unsigned char>(c)) * 0x01000193;
  return value;
}

std::string hex_number(std::uint32_t number) {
  std::array<char, 8> digits;
  return {digits.data(), std::to_chars(digits.data(), digits.data() + digits.size(), number, 16).ptr};
}

std::optional<long long> number_in(std::string_view text) {
  const auto number = parse_integer(text, std::numeric_limits<int>::min(), std::numeric_limits<int>::max());
  return number ? std::optional(*number) : std::nullopt;
}

/// Of what a rank has sent, for messages.
std::string quote(std::string_view text) {
  constexpr std::size_t columns = 40;
  return concat("'", cut_line(plain_line(text), columns), "'");
}

}  // namespace

class PmiServer::Machine {
 public:
  explicit Machine(World world) : world_(std::move(world)), keys_(world_.nodes > 1) {
    for (const int number : world_.ranks) ranks_.push_back({static_cast<int>(ranks_.size()), number});
  }

  std::vector<PmiAction> step(const PmiEvent& event, Clock::time_point now) {
    now_ = now;
    std::visit([this](const auto& what) { on(what); }, event);
    return std::exchange(actions_, {});
  }
  [[nodiscard]] std::optional<Clock::time_point> next_deadline() const { return notice_at_; }
  [[nodiscard]] bool was_used() const { return was_used_; }
  [[nodiscard]] std::vector<std::string> segments() const {
    if (name_.empty()) return {};
    const int node = world_.ranks.empty() ? 0 : node_of_rank(placement_, world_.ranks.front());
    const std::string suffix = concat(hex_number(hash(name_)), "_", node);
    return {concat("mpich_shm_", suffix), concat("mpich_vci_", suffix)};
  }

 private:
  void on(const pmi_event::Start& /*start*/) {
    std::string entry = encode_node(world_.ranks, world_.random);
    if (world_.nodes == 1) return on(pmi_event::Exchanged{0, 0, {std::move(entry)}, true});
    actions_.emplace_back(pmi_action::Contribute{0, std::move(entry)});
  }
  void on(const pmi_event::Line& line);
  void on(const pmi_event::Garbage& garbage) { cut_off(rank(garbage.slot), concat("it sent ", garbage.why)); }
  void on(const pmi_event::Ended& end);
  void on(const pmi_event::Exchanged& part);
  void on(const pmi_event::TimeIsUp& due);

  // Commands.
  void handle(Rank& rank, std::string_view command, const PmiLine& line);
  void init(Rank& rank, const PmiLine& line);
  void get(Rank& rank, const PmiLine& line);
  void put(Rank& rank, const PmiLine& line);
  void enter_barrier(Rank& rank);
  void abort(Rank& rank, const PmiLine& line);
  void take_spawn_line(Rank& rank, std::string_view text);

  // The key space and its exchange.
  [[nodiscard]] bool has_name(Rank& rank, const PmiLine& line);
  void take_entries(const pmi_event::Exchanged& part);
  void name_key_space();
  void complete_barrier(Rank& last);
  void release_barrier();

  // Ends.
  void judge_ended();
  void judge(const Rank& ended);
  void fail(const Rank& rank, int code, std::string why);

  [[nodiscard]] Rank& rank(int slot) { return ranks_.at(static_cast<std::size_t>(slot)); }
  [[nodiscard]] int appnum(const Rank& rank) const {
    const auto slot = static_cast<std::size_t>(rank.slot);
    return slot < world_.appnums.size() ? world_.appnums[slot] : 0;
  }
  void enter(Rank& rank, State next);
  void cut_off(Rank& rank, const std::string& why);
  void answer(const Rank& rank, std::string text) { actions_.emplace_back(pmi_action::Answer{rank.slot, text + "\n"}); }

  World world_;
  std::vector<RankRange> ranges_;  ///< of the nodes so far
  Placement placement_;            ///< empty until the name of the key space is known
  std::optional<std::string> mapping_;
  std::vector<Rank> ranks_;
  KeySpace keys_;
  std::string name_;       ///< of the key space; empty until it is known
  std::uint32_t tag_ = 0;  ///< of the last contribution
  bool exchanging_ = false;
  bool was_used_ = false;
  bool has_failed_ = false;
  std::optional<Clock::time_point> notice_at_;
  Clock::time_point now_;
  std::vector<PmiAction> actions_;
};

// ---- commands

void PmiServer::Machine::on(const pmi_event::Line& said) {
  Rank& rank = this->rank(said.slot);
  if (is_one_of(rank.state, any_of(State::aborted, State::cut_off, State::ended))) return;
  if (rank.state == State::spawning) return take_spawn_line(rank, said.text);
  const auto line = PmiLine::parse(said.text);
  const std::string_view command = line ? line->command() : said.text == "mcmd=spawn" ? "spawn" : "";
  if (!is_one_of(rank.state, allowed_in(command))) return cut_off(rank, concat("it sent ", quote(said.text)));
  rank.last_was_barrier = command == "barrier_in";
  if (command == "spawn") {
    rank.spawns_left = 0;
    return enter(rank, State::spawning);
  }
  handle(rank, command, *line);
}

void PmiServer::Machine::handle(Rank& rank, std::string_view command, const PmiLine& line) {
  if (command == "init") return init(rank, line);
  if (command == "get") return get(rank, line);
  if (command == "put") return put(rank, line);
  if (command == "barrier_in") return enter_barrier(rank);
  if (command == "abort") return abort(rank, line);
  if (command == "get_appnum") return answer(rank, concat("cmd=appnum appnum=", appnum(rank)));
  if (command == "get_universe_size") return answer(rank, concat("cmd=universe_size size=", world_.size));
  if (command == "get_my_kvsname") {
    if (has_name(rank, line)) answer(rank, concat("cmd=my_kvsname kvsname=", name_));
    return;
  }
  if (command == "finalize") enter(rank, State::finalized);
  const auto same = std::find_if(fixed_answers.begin(), fixed_answers.end(),
                                 [&](const auto& fixed) { return fixed.first == command; });
  if (same == fixed_answers.end()) return cut_off(rank, concat("it sent ", quote(line.text())));
  answer(rank, std::string(same->second));
}

/// 1.1 whatever minor version is asked for: with 1.2 a barrier may be one of some ranks.
void PmiServer::Machine::init(Rank& rank, const PmiLine& line) {
  const bool speaks_1 = line.find("pmi_version") == "1";
  answer(rank, concat("cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=", speaks_1 ? 0 : -1));
  if (!speaks_1) return;
  enter(rank, State::connected);
  was_used_ = true;
  judge_ended();
}

void PmiServer::Machine::get(Rank& rank, const PmiLine& line) {
  const std::string_view key = line.find("key").value_or("");
  const bool asks_mapping = key == "PMI_process_mapping";
  if (asks_mapping && !has_name(rank, line)) return;
  const std::optional<std::string_view> value = asks_mapping ? mapping_ : keys_.find(key);
  if (value) return answer(rank, concat("cmd=get_result rc=0 msg=success value=", *value));
  answer(rank, concat("cmd=get_result rc=-1 msg=key_", key.substr(0, max_key_bytes), "_not_found value=unknown"));
}

void PmiServer::Machine::put(Rank& rank, const PmiLine& line) {
  const bool stored = keys_.put(line.find("key").value_or(""), line.find("value").value_or(""));
  answer(rank, stored ? "cmd=put_result rc=0 msg=success" : "cmd=put_result rc=-1 msg=key_or_value_refused");
}

/// The status of a process has 8 bits, and an abort is never a success.
void PmiServer::Machine::abort(Rank& rank, const PmiLine& line) {
  // There is no answer, and the connection stays: MPICH up to 4.0 would return from MPI_Abort at its end.
  enter(rank, State::aborted);
  const auto code = number_in(line.find("exitcode").value_or(""));
  const int status = static_cast<int>(code.value_or(1) & 0xff);
  fail(rank, status == 0 ? 1 : status, concat("called MPI_Abort(", code ? concat(*code) : "", ")"));
}

/// MPI_Comm_spawn is refused after the last of its blocks, so that the library returns its own error.
void PmiServer::Machine::take_spawn_line(Rank& rank, std::string_view text) {
  constexpr std::string_view total = "totspawns=", so_far = "spawnssofar=";
  if (text.starts_with(total)) rank.spawns_left += number_in(text.substr(total.size())).value_or(0);
  if (text.starts_with(so_far)) rank.spawns_left -= number_in(text.substr(so_far.size())).value_or(0);
  if (text != "endcmd") return;
  enter(rank, State::connected);
  if (rank.spawns_left <= 0) answer(rank, "cmd=spawn_result rc=-1");
}

void PmiServer::Machine::enter(Rank& rank, State next) {
  if (!is_one_of(next, may_follow[static_cast<std::size_t>(rank.state)])) {
    return fail(
        rank, 1,
        concat("internal error: PMI state ", static_cast<int>(rank.state), " cannot lead to ", static_cast<int>(next)));
  }
  rank.state = next;
}

void PmiServer::Machine::cut_off(Rank& rank, const std::string& why) {
  if (is_one_of(rank.state, any_of(State::cut_off, State::ended))) return;
  enter(rank, State::cut_off);
  actions_.emplace_back(pmi_action::CutOff{rank.slot});
  actions_.emplace_back(pmi_action::Notice{concat("closed the PMI connection of rank ", rank.number, ": ", why)});
}

// ---- the key space and its exchange

/// Otherwise the command is repeated when it is known.
bool PmiServer::Machine::has_name(Rank& rank, const PmiLine& line) {
  if (!name_.empty()) return true;
  rank.command = line.text();
  enter(rank, State::held);
  return false;
}

void PmiServer::Machine::name_key_space() {
  const auto placement = place(std::move(ranges_), world_.size);
  if (world_.random.size() != random_bytes || !placement) {
    return fail(ranks_.front(), 1, "has no key space: the machines do not agree on the ranks of the world");
  }
  placement_ = number_nodes(*placement);
  mapping_ = process_mapping(placement_);
  name_ = concat("ddrun-", in_hex(std::as_bytes(std::span(world_.random))));
  for (Rank& rank : ranks_) {
    if (rank.state != State::held) continue;
    enter(rank, State::connected);
    on(pmi_event::Line{rank.slot, std::exchange(rank.command, {})});
  }
}

void PmiServer::Machine::enter_barrier(Rank& rank) {
  enter(rank, State::in_barrier);
  judge_ended();
  const bool all_wait =
      std::all_of(ranks_.begin(), ranks_.end(), [](const Rank& one) { return one.state == State::in_barrier; });
  if (all_wait) complete_barrier(rank);
}

void PmiServer::Machine::complete_barrier(Rank& last) {
  if (world_.nodes == 1) return release_barrier();
  std::string batch = keys_.take_batch();
  if (batch.size() > max_batch_bytes) {
    return fail(last, 1, "put too many keys for one exchange: more than 3 MiB with the other ranks of its machine");
  }
  exchanging_ = true;
  actions_.emplace_back(pmi_action::Contribute{++tag_, std::move(batch)});
}

void PmiServer::Machine::release_barrier() {
  for (Rank& rank : ranks_) {
    if (rank.state != State::in_barrier) continue;
    enter(rank, State::connected);
    answer(rank, "cmd=barrier_out");
  }
}

void PmiServer::Machine::take_entries(const pmi_event::Exchanged& part) {
  for (int node = part.first; const std::string& blob : part.blobs) {
    const auto random = decode_node(blob, node, ranges_);
    if (node == 0) world_.random = random.value_or("");
    ++node;
  }
  if (part.last) name_key_space();
}

void PmiServer::Machine::on(const pmi_event::Exchanged& part) {
  if (part.tag == 0 && name_.empty() && !has_failed_) return take_entries(part);
  if (!exchanging_ || part.tag != tag_ || has_failed_) return;
  for (std::size_t i = 0; i < part.blobs.size(); ++i) {
    if (keys_.merge(part.blobs[i])) continue;
    return fail(ranks_.front(), 1,
                concat("cannot use the keys of node rank ", part.first + static_cast<int>(i),
                       ": they are malformed, or more than 64 MiB together"));
  }
  if (!part.last) return;
  exchanging_ = false;
  release_barrier();
}

// ---- ends

void PmiServer::Machine::on(const pmi_event::Ended& end) {
  Rank& rank = this->rank(end.slot);
  if (rank.state == State::ended) return;
  rank.left = rank.state;
  rank.success = end.success && rank.state != State::aborted;
  enter(rank, State::ended);
  const bool all_ended =
      std::all_of(ranks_.begin(), ranks_.end(), [](const Rank& one) { return one.state == State::ended; });
  if (all_ended) notice_at_.reset();
  if (!rank.success) return;
  judge(rank);
  const bool owes_finalize = !is_one_of(rank.left, any_of(State::absent, State::finalized, State::cut_off));
  if (!owes_finalize || has_failed_) return;
  // MPICH from 4.2 on says `finalize` in a handler of exit(), which _exit() does not run.
  if (!rank.last_was_barrier) fail(rank, 1, "ended without MPI_Finalize");
  else if (!all_ended && !notice_at_) notice_at_ = now_ + quiet_time;
}

void PmiServer::Machine::judge_ended() {
  for (const Rank& rank : ranks_) {
    if (rank.state == State::ended && rank.success) judge(rank);
  }
}

/// MPI_Init needs all ranks, and so does a barrier. On one machine MPICH 5 waits in MPI_Init without a command.
void PmiServer::Machine::judge(const Rank& ended) {
  const bool never_began = ended.left == State::absent;
  const unsigned in_barrier = any_of(State::in_barrier);
  const unsigned in_init = any_of(State::connected, State::held, State::spawning) | in_barrier;
  std::vector<int> waiting;
  for (const Rank& rank : ranks_) {
    if (is_one_of(rank.state, never_began ? in_init : in_barrier)) waiting.push_back(rank.number);
  }
  if (waiting.empty()) return;
  const std::string who = concat(name_ranks(waiting), waiting.size() == 1 ? " waits" : " wait");
  if (never_began) return fail(ended, 1, concat("ended without MPI_Init, for which ", who));
  const bool in_order = is_one_of(ended.left, any_of(State::finalized, State::cut_off));
  fail(ended, 1, concat("ended", in_order ? "" : " without MPI_Finalize", ", but ", who, " for it in a barrier"));
}

void PmiServer::Machine::fail(const Rank& rank, int code, std::string why) {
  if (std::exchange(has_failed_, true)) return;
  notice_at_.reset();
  actions_.emplace_back(pmi_action::Fail{rank.slot, code, std::move(why)});
}

void PmiServer::Machine::on(const pmi_event::TimeIsUp& /*due*/) {
  if (!notice_at_ || now_ < *notice_at_) return;
  notice_at_.reset();
  std::vector<int> ended, running;
  for (const Rank& rank : ranks_) {
    if (rank.state != State::ended) running.push_back(rank.number);
    else if (rank.last_was_barrier && rank.left != State::finalized) ended.push_back(rank.number);
  }
  actions_.emplace_back(pmi_action::Notice{
      concat(name_ranks(ended), " ended without MPI_Finalize after a barrier, and ", name_ranks(running),
             running.size() == 1 ? " still runs" : " still run", "; --exit-skew limits how long")});
}

PmiServer::PmiServer(World world) : machine_(std::make_unique<Machine>(std::move(world))) {}
PmiServer::~PmiServer() = default;
PmiServer::PmiServer(PmiServer&&) noexcept = default;
PmiServer& PmiServer::operator=(PmiServer&&) noexcept = default;

std::vector<PmiAction> PmiServer::step(const PmiEvent& event, Clock::time_point now) {
  return machine_->step(event, now);
}
std::optional<Clock::time_point> PmiServer::next_deadline() const { return machine_->next_deadline(); }
bool PmiServer::was_used() const { return machine_->was_used(); }
std::vector<std::string> PmiServer::segments() const { return machine_->segments(); }

}  // namespace ddrun::pmi
