// Machines that vote, in virtual time: messages that are late, machines cut off, killed, started anew and stopped, and
// clocks that do not run alike. To see a seed again: DDRUN_SIMULATION_SEED=n; for many: DDRUN_SIMULATION_RUNS=n.

#include <iostream>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "candidacy.hpp"
#include "ddrun/base/text.hpp"
#include "ddrun/test/catch.hpp"
#include "simulation_timeline.hpp"
#include "voter.hpp"

using namespace ddrun;
using namespace ddrun::rendezvous;
using namespace ddrun::test;
using std::chrono::milliseconds;
using std::chrono::seconds;

namespace {

enum class Broken {
  nothing,
  forgets,             ///< a voter that has begun lately says yes at once
  releases_early,      ///< voters stand by a candidate for half of the time to live only
  trusts_any_end,      ///< a voter takes a connection that is cut for the end of its process
  deposes_the_silent,  ///< an agent that hears nothing takes the lease from a leader that may live
};
constexpr std::pair<Broken, const char*> all_broken[] = {
    {Broken::forgets, "a voter that has begun lately says yes"},
    {Broken::releases_early, "voters stand by a candidate for half of the time to live"},
    {Broken::trusts_any_end, "a connection that breaks is taken for the end of its process"},
    {Broken::deposes_the_silent, "a silent leader is deposed"}};

struct Violation {
  std::string what;
};

class VotingWorld {
 public:
  VotingWorld(std::uint64_t seed, Broken broken = Broken::nothing, bool loud = false)
      : random_(seed), broken_(broken), loud_(loud) {
    voters_ = random_.chance(0.7) ? 3 : 5;
    ttl_ = Milliseconds(1000 * random_.between(2, 6));
    slowest_ = random_.time(milliseconds(1), random_.chance(0.2) ? Clock::duration(ttl_ / 8) : milliseconds(60));
    const std::size_t observers = 2;
    for (std::size_t i = 0; i < voters_ + observers; ++i) {
      auto machine = std::make_unique<Machine>();
      machine->index = i;
      machine->slowness = 1.0 + static_cast<double>(random_.between(-30, 30)) / 1000;
      machine->offset = random_.time(seconds(1), seconds(100'000));
      machines_.push_back(std::move(machine));
    }
    cut_.assign(machines_.size(), std::vector<bool>(machines_.size()));
  }

  void run() {
    for (auto& machine : machines_) {
      timeline_.in(random_.time(Clock::duration(0), milliseconds(300)), [this, m = machine.get()] { begin(*m); });
    }
    const auto began = timeline_.now();
    const int faults = random_.between(2, 12);
    for (int i = 0; i < faults; ++i) {
      timeline_.at(began + random_.time(milliseconds(100), seconds(40)), [this] { fault(); });
    }
    const auto calm = began + seconds(60);
    timeline_.at(calm, [this] { make_well(); });
    run_until(calm + 3 * ttl_ + seconds(10));
    check_end();
  }

  std::size_t leaders = 0;
  bool has_verdict = false;

 private:
  using Time = Voter::Time;

  struct Machine {
    std::size_t index = 0;
    double slowness = 1;
    Clock::duration offset{};
    int life = 0;  ///< rises with each process
    bool lives = false;
    Clock::time_point frozen_until{};
    std::unique_ptr<Voter> voter;
    std::unique_ptr<Candidacy> candidacy;
    std::string id;
    std::map<std::size_t, int> connection;  ///< to a voter: which one; 0: none
    std::map<std::size_t, Clock::time_point> heard;
    std::uint64_t term = 0;  ///< as it was seen last
    bool records = false;
  };

  [[nodiscard]] bool is_voter(const Machine& m) const { return m.index < voters_; }
  [[nodiscard]] Time local(const Machine& m) const {
    const auto passed = (timeline_.now() - Clock::time_point{}) + m.offset;
    return Time(std::chrono::duration_cast<Time::duration>(passed * m.slowness));
  }
  [[nodiscard]] bool leads(const Machine& m) const {
    return m.lives && m.candidacy->term() != 0 &&
           local(m) < m.candidacy->held_since() + (ttl_ - lease::fence_margin(ttl_));
  }
  void note(const std::string& text) {
    if (loud_)
      std::cout << std::chrono::duration<double>(timeline_.now().time_since_epoch()).count() << " " << text << "\n";
  }

  /// On the machine, once its process can do something, if it is still this one.
  void on(std::size_t index, int life, Clock::duration delay, std::function<void(Machine&)> what) {
    timeline_.in(delay, [this, index, life, what = std::move(what)] {
      Machine& m = *machines_[index];
      if (!m.lives || m.life != life) return;
      if (m.frozen_until > timeline_.now()) return on(index, life, m.frozen_until - timeline_.now(), what);
      what(m);
    });
  }

  void begin(Machine& m) {
    if (m.lives) return;
    m.lives = true;
    ++m.life;
    m.term = 0;
    m.records = false;
    m.id = concat(m.index, "#", m.life);
    const Milliseconds stands_by = broken_ == Broken::releases_early ? ttl_ / 2 : ttl_;
    if (is_voter(m)) {
      // The time to live is compared when an agent enters; a broken one says that it is the same.
      m.voter = std::make_unique<Voter>(random_.below(1'000'000'000) + 1, "job", stands_by, local(m));
    }
    m.candidacy = std::make_unique<Candidacy>(
        Candidacy::Options{voters_, m.id, "job", ttl_, static_cast<unsigned>(random_.below(1'000'000))});
    m.connection.clear();
    if (is_voter(m)) m.candidacy->has_own(m.index);
    for (std::size_t voter = 0; voter < voters_; ++voter) {
      if (voter == m.index) m.candidacy->connected(voter, local(m));
      else connect(m, voter);
    }
    m.candidacy->campaign(concat("at ", m.index), local(m));
    settle(m);
    on(m.index, m.life, Clock::duration(0), [this](Machine& machine) { tick(machine); });
    note(concat(m.id, " begins"));
  }

  void connect(Machine& m, std::size_t voter) {
    on(m.index, m.life, random_.time(milliseconds(1), milliseconds(100)), [this, voter](Machine& machine) {
      if (machine.connection[voter] != 0) return;
      if (!machines_[voter]->lives || cut_[machine.index][voter]) return connect(machine, voter);
      machine.connection[voter] = ++last_connection_;
      machine.heard[voter] = timeline_.now();
      machine.candidacy->connected(voter, local(machine));
      settle(machine);
    });
  }

  void disconnect(Machine& m, std::size_t voter) {
    if (std::exchange(m.connection[voter], 0) == 0) return;
    Machine& other = *machines_[voter];
    if (broken_ == Broken::trusts_any_end && other.lives) other.voter->ended(m.id);
    m.candidacy->disconnected(voter, local(m));
    connect(m, voter);
  }

  void tick(Machine& m) {
    for (std::size_t voter = 0; voter < voters_; ++voter) {
      if (m.connection[voter] == 0 || timeline_.now() - m.heard[voter] < 2 * ttl_ / 3) continue;
      const auto leader = m.candidacy->leader();
      disconnect(m, voter);
      if (broken_ == Broken::deposes_the_silent && leader) m.candidacy->depose(leader->term, local(m));
    }
    m.candidacy->tick(local(m));
    settle(m);
    on(m.index, m.life, random_.time(milliseconds(1), milliseconds(20)), [this](Machine& machine) { tick(machine); });
  }

  void settle(Machine& m) {
    for (auto asked = m.candidacy->take_requests(); !asked.empty(); asked = m.candidacy->take_requests()) {
      for (auto& [voter, request] : asked) {
        if (voter == m.index) m.candidacy->heard(voter, answer_of(m, request), local(m));
        else send(m, voter, request);
      }
    }
    look();
    if (leads(m) && m.candidacy->term() != 0 && !m.records && random_.chance(0.0004)) {
      m.records = true;
      m.candidacy->record(concat("verdict of ", m.id), local(m));
      settle(m);
    }
    if (const auto& verdict = m.candidacy->verdict()) {
      if (!verdict_) note(concat(m.id, " has a verdict: ", *verdict));
      if (!verdict_) verdict_ = verdict;
      const bool known = verdict_recorded_by_more_than_half();
      if (known && *verdict_ != *verdict) throw Violation{concat("two verdicts: ", *verdict_, " and ", *verdict)};
      has_verdict = true;
    }
  }

  VoteAnswer answer_of(Machine& voter, VoteRequest request) {
    if (broken_ == Broken::releases_early) request.ttl_ms /= 2;
    VoteAnswer answer = voter.voter->ask(request, local(voter));
    if (request.kind == VoteRequest::Kind::record ||
        (request.kind == VoteRequest::Kind::vote && !answer.verdict.empty())) {
      note(concat(voter.id, " is asked to ", request.kind == VoteRequest::Kind::record ? "record " : "vote ",
                  request.term, ": ", static_cast<int>(answer.ballot), answer.sure ? " sure " : " ", answer.verdict));
    }
    if (broken_ == Broken::forgets && answer.ballot == VoteAnswer::Ballot::fresh)
      answer.ballot = VoteAnswer::Ballot::yes;
    return answer;
  }

  /// What a machine that is cut off is sent comes when it is connected again, or never; an answer is heard only by the
  /// connection that asked.
  void send(Machine& from, std::size_t voter, VoteRequest request) {
    const int connection = from.connection[voter];
    Clock::duration delay = random_.time(Clock::duration(0), slowest_);
    if (cut_[from.index][voter]) delay += random_.time(milliseconds(100), seconds(20));
    on(voter, machines_[voter]->life, delay,
       [this, agent = from.index, life = from.life, voter, connection, request](Machine& there) {
         const VoteAnswer answer = answer_of(there, request);
         look();
         Clock::duration back = random_.time(Clock::duration(0), slowest_);
         if (cut_[agent][voter]) back += random_.time(milliseconds(100), seconds(20));
         on(agent, life, back, [this, voter, connection, answer](Machine& m) {
           if (m.connection[voter] != connection) return;
           m.heard[voter] = timeline_.now();
           m.candidacy->heard(voter, answer, local(m));
           settle(m);
         });
       });
  }

  void fault() {
    Machine& m = *machines_[random_.below(voters_)];
    const auto time = random_.time(milliseconds(50), 2 * Clock::duration(ttl_));
    switch (random_.below(7)) {
      case 0:
      case 1: kill(m, time); break;
      case 2: {
        note(concat(m.id, " stands still"));
        m.frozen_until = timeline_.now() + time;
        break;
      }
      case 3:
        note(concat(m.id, " is cut off"));
        for (auto& other : machines_) cut(m.index, other->index, time);
        break;
      case 4: cut(m.index, random_.below(machines_.size()), time); break;
      case 5: {
        // Whether what a voter has forgotten keeps the leader that it voted for from another.
        for (auto& one : machines_) {
          if (!leads(*one) || one.get() == &m) continue;
          note(concat(one->id, " is cut off"));
          for (auto& other : machines_) cut(one->index, other->index, 2 * Clock::duration(ttl_));
          kill(m, random_.time(milliseconds(20), milliseconds(300)));
          break;
        }
        break;
      }
      case 6:
        on(m.index, m.life, Clock::duration(0), [this](Machine& one) {
          one.candidacy->resign(local(one));
          settle(one);
          one.candidacy->campaign(concat("at ", one.index), local(one));
          settle(one);
        });
        break;
    }
  }

  void kill(Machine& m, Clock::duration until_next) {
    if (!m.lives) return;
    note(concat(m.id, " is killed"));
    const std::uint64_t term = m.candidacy->term();
    m.lives = false;
    m.frozen_until = {};
    for (std::size_t voter = 0; voter < voters_; ++voter) {
      if (voter == m.index || m.connection[voter] == 0 || cut_[m.index][voter]) continue;
      // The system closes its connections in order.
      on(voter, machines_[voter]->life, random_.time(Clock::duration(0), slowest_), [this, id = m.id](Machine& there) {
        there.voter->ended(id);
        look();
      });
    }
    for (auto& other : machines_) {
      if (other.get() == &m || !is_voter(m)) continue;
      on(other->index, other->life, random_.time(Clock::duration(0), milliseconds(600)),
         [this, voter = m.index, term, at_all = !cut_[m.index][other->index]](Machine& one) {
           if (!at_all) return;
           disconnect(one, voter);
           if (term != 0) one.candidacy->depose(term, local(one));
           settle(one);
         });
    }
    timeline_.in(until_next, [this, machine = &m] { begin(*machine); });
  }

  void cut(std::size_t one, std::size_t other, Clock::duration time) {
    if (one == other) return;
    cut_[one][other] = cut_[other][one] = true;
    timeline_.in(time, [this, one, other] { cut_[one][other] = cut_[other][one] = false; });
  }

  void make_well() {
    for (auto& row : cut_) row.assign(row.size(), false);
    for (auto& m : machines_) {
      m->frozen_until = {};
      begin(*m);
    }
  }

  /// At each step: never two that lead.
  void look() {
    const Machine* leading = nullptr;
    for (auto& m : machines_) {
      if (!m->lives) continue;
      const std::uint64_t term = m->candidacy->term();
      if (term != 0 && term != m->term) {
        ++leaders;
        note(concat(m->id, " leads in term ", term));
        const auto [was, first] = led_.emplace(term, m->id);
        if (!first) throw Violation{concat(m->id, " leads in term ", term, ", as did ", was->second)};
        if (verdict_recorded_by_more_than_half() && term > verdict_term_)
          throw Violation{concat(m->id, " leads a job that has a verdict")};
      }
      m->term = term;
      if (!leads(*m)) continue;
      if (leading != nullptr) throw Violation{concat(leading->id, " and ", m->id, " lead at once")};
      leading = m.get();
    }
  }

  /// Voters of which too many have been started anew remember nothing: so only while none was.
  bool verdict_recorded_by_more_than_half() {
    if (!verdict_) return false;
    if (verdict_term_ == 0) {
      verdict_term_ = led_.empty() ? 1 : led_.rbegin()->first;
      for (auto& m : machines_) {
        if (is_voter(*m)) lives_then_.push_back(m->life);
      }
    }
    for (auto& m : machines_) {
      if (is_voter(*m) && lives_then_[m->index] != m->life) return false;
    }
    return true;
  }

  void run_until(Clock::time_point end) {
    while (timeline_.now() < end && timeline_.step()) look();
  }

  void check_end() {
    const Machine* leading = nullptr;
    for (auto& m : machines_) {
      if (leads(*m)) leading = m.get();
    }
    for (auto& m : machines_) {
      if (verdict_ && m->candidacy->verdict()) continue;
      if (leading == nullptr && !verdict_) throw Violation{"no machine leads, though all are well"};
      if (leading == nullptr || m.get() == leading) continue;
      const auto leader = m->candidacy->leader();
      if (!leader || leader->term != leading->candidacy->term() || leader->address != concat("at ", leading->index)) {
        throw Violation{concat(m->id, " does not know that ", leading->id, " leads")};
      }
    }
  }

  Random random_;
  Broken broken_;
  bool loud_;
  std::size_t voters_ = 3;
  Milliseconds ttl_{5000};
  Clock::duration slowest_{};
  Timeline timeline_;
  std::vector<std::unique_ptr<Machine>> machines_;
  std::vector<std::vector<bool>> cut_;
  int last_connection_ = 0;
  std::map<std::uint64_t, std::string> led_;
  std::optional<std::string> verdict_;
  std::uint64_t verdict_term_ = 0;
  std::vector<int> lives_then_;
};

}  // namespace

TEST_CASE("of machines that vote never two lead, and one does when all are well") {
  if (const std::uint64_t seed = number_from("DDRUN_SIMULATION_SEED", 0); seed != 0) {
    VotingWorld world(seed, Broken::nothing, true);
    try {
      world.run();
    } catch (const Violation& violation) {
      FAIL(violation.what);
    }
    return;
  }
  const std::uint64_t first = number_from("DDRUN_SIMULATION_FIRST", 1);
  const std::uint64_t runs = number_from("DDRUN_SIMULATION_RUNS", 100);
  std::uint64_t leaders = 0, verdicts = 0;
  for (std::uint64_t seed = first; seed < first + runs; ++seed) {
    VotingWorld world(seed);
    try {
      world.run();
    } catch (const Violation& violation) {
      FAIL("seed " << seed << ": " << violation.what);
    }
    leaders += world.leaders;
    if (world.has_verdict) ++verdicts;
  }
  // Else the seeds show little.
  CHECK(leaders > runs + runs / 2);
  CHECK(verdicts > runs / 20);
}

TEST_CASE("each rule of the vote that is broken on purpose is noticed") {
  const std::uint64_t all = number_from("DDRUN_SIMULATION_BREAKS", 0);
  for (const auto& [broken, name] : all_broken) {
    CAPTURE(name);
    std::uint64_t noticed = 0, first = 0;
    std::string how;
    for (std::uint64_t seed = 1; seed <= (all != 0 ? all : 3'000) && (all != 0 || first == 0); ++seed) {
      VotingWorld world(seed, broken);
      try {
        world.run();
      } catch (const Violation& violation) {
        ++noticed;
        if (first == 0) {
          first = seed;
          how = violation.what;
        }
      }
    }
    if (all != 0)
      std::cout << name << ": first at seed " << first << ", " << noticed << " of " << all << ": " << how << "\n";
    CHECK(first != 0);
  }
}
