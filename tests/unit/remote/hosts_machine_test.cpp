// What a job on hosts does with them: by rows, and by dice over hosts that answer, fail, hang and end, and signals.

#include "hosts_machine.hpp"

#include <signal.h>

#include <array>
#include <functional>
#include <map>
#include <random>
#include <set>
#include <sstream>

#include "ddrun/base/text.hpp"
#include "ddrun/test/catch.hpp"

using namespace ddrun;
using namespace ddrun::remote;

namespace {

HostsOptions options_for(std::size_t hosts, int min_nodes, int max_nodes) {
  HostsOptions options;
  for (std::size_t i = 0; i < hosts; ++i) options.names.push_back("h" + std::to_string(i));
  options.min_nodes = min_nodes;
  options.max_nodes = max_nodes;
  options.ending_signals = {SIGINT, SIGTERM};
  options.on_step = [](std::string_view state, std::string_view next, bool is_legal) {
    CAPTURE(state, next);
    CHECK(is_legal);
    return true;
  };
  return options;
}

/// "open 2", "part 0/3", "signal 1:15", "warning cannot reach h1".
std::string describe(const HostAction& action) {
  struct Name {
    std::string operator()(const host_action::OpenLink& open) const { return concat("open ", open.host); }
    std::string operator()(const host_action::SendPart& send) const {
      return concat("part ", send.host, "/", send.first_round_nodes);
    }
    std::string operator()(const host_action::SendSignal& send) const {
      return concat(send.at_once ? "kill " : "signal ", send.host, ":", send.signal);
    }
    std::string operator()(const host_action::SendOver& send) const { return concat("over ", send.host); }
    std::string operator()(const host_action::KillLink& kill) const { return concat("cut ", kill.host); }
    std::string operator()(const host_action::KillLinks&) const { return "cut all"; }
    std::string operator()(const host_action::CloseLinks&) const { return "close"; }
    std::string operator()(const host_action::Suspend& suspend) const { return suspend.still ? "still" : "on"; }
    std::string operator()(const host_action::StartTimeLimit&) const { return "limit"; }
    std::string operator()(const host_action::ReadInput&) const { return "read"; }
    std::string operator()(const host_action::StopInput&) const { return "no input"; }
    std::string operator()(const host_action::ForgetSecret&) const { return "forget"; }
    std::string operator()(const host_action::BoundConsole&) const { return "bound"; }
    std::string operator()(const host_action::SendQuestion& send) const {
      return concat("ask ", send.host, ":", send.question);
    }
    std::string operator()(const host_action::RefuseQuestion& refuse) const {
      return concat("refuse ", refuse.question, " ", refuse.why);
    }
    std::string operator()(const host_action::Say& what) const {
      return concat(what.level == Level::error     ? "error "
                    : what.level == Level::warning ? "warning "
                    : what.level == Level::notice  ? "notice "
                                                   : "info ",
                    what.text);
    }
    std::string operator()(const host_action::Finish& finish) const { return finish.at_once ? "quit" : "finish"; }
  };
  return std::visit(Name(), action);
}

/// Events in words: "a0" host 0 answers, "f1" its link ends, "p1" as a proxy's does, "l0" the coordinator there
/// listens, "r0" it is in a round, "e0=7" its ddrun ends, "s2" signal 2, "s2!" at once, "t30" 30 s pass, "x" a lost
/// parent. "q1" question 1 is asked, "b1" its reply begins, "d1" it is complete.
class Play {
 public:
  explicit Play(HostsOptions options) : machine(std::move(options)) { step(host_event::Begin()); }

  void step(const HostEvent& event) {
    for (const HostAction& action : machine.step(event, now)) actions.push_back(describe(action));
  }
  void pass(Milliseconds time) {
    const Clock::time_point end = now + time;
    for (auto at = machine.next_deadline(); at && *at <= end; at = machine.next_deadline()) {
      now = std::max(now, *at);
      step(host_event::Tick());
    }
    now = end;
  }
  void event(const std::string& word) {
    const std::size_t equals = word.find('=');
    const auto number = parse_integer(word.substr(1, word.find_first_of("=!") - 1), 0, 1000).value_or(0);
    const auto host = static_cast<std::uint32_t>(number);
    switch (word[0]) {
      case 'a': return step(host_event::Ready{host});
      case 'f': return step(host_event::LinkEnded{host, concat("h", host, " failed")});
      case 'p': return step(host_event::LinkEnded{host, concat("h", host, " is busy"), true});
      case 'l': return step(host_event::Listening{host});
      case 'r': return step(host_event::InRound{host});
      case 'e': return step(host_event::Ended{host, std::stoi(word.substr(equals + 1))});
      case 's': return step(host_event::Signal{static_cast<int>(number), word.back() == '!'});
      case 'q': return step(host_event::Asked{host});
      case 'b':
      case 'd': return step(host_event::Answered{host, word[0] == 'd'});
      case 't': return pass(std::chrono::seconds(number));
      default: return step(host_event::ParentLost{"guard"});
    }
  }
  /// The actions, joined, whose first word is one of `kinds`; all if there are none.
  std::string events(const std::string& words, const std::set<std::string>& kinds = {}) {
    std::istringstream stream(words);
    for (std::string word; stream >> word;) event(word);
    std::vector<std::string> taken;
    for (const std::string& action : std::exchange(actions, {})) {
      if (kinds.empty() || kinds.contains(action.substr(0, action.find(' ')))) taken.push_back(action);
    }
    return join(taken, ", ");
  }

  Clock::time_point now{std::chrono::hours(1)};
  HostsMachine machine;
  std::vector<std::string> actions;
};

/// "coordinator/hosts of the first round" once the job begins; else "".
std::string decides(std::size_t hosts, int min_nodes, int max_nodes, const std::string& events, int last_call = 30) {
  HostsOptions options = options_for(hosts, min_nodes, max_nodes);
  options.last_call = std::chrono::seconds(last_call);
  const std::string parts = Play(options).events(events, {"part"});
  return parts.substr(0, parts.find(',')).substr(std::min<std::size_t>(parts.size(), 5));
}

}  // namespace

TEST_CASE("a job begins with the hosts that answer, and the first of them runs the coordinator") {
  struct Row {
    int hosts, min, max;
    std::string events, decided;
  };
  const std::vector<Row> rows{
      // All are needed: the first begins at once.
      {2, 2, 2, "a0", "0/0"},
      {2, 2, 2, "a1 t1000", ""},
      {2, 2, 2, "a1 a0", "0/0"},
      {1, 1, 1, "a0", "0/0"},
      // Those that fail are not waited for.
      {2, 1, 2, "a0", ""},
      {2, 1, 2, "a0 f1", "0/1"},
      {2, 1, 2, "f1 a0", "0/1"},
      {2, 1, 2, "f0 a1", "1/1"},
      {2, 1, 2, "a1 f0", "1/1"},
      {2, 1, 2, "a1 a0", "0/2"},
      {3, 2, 3, "f0 a2 a1", "1/2"},
      {3, 2, 3, "f0 f1 a2 t1000", ""},
      {3, 2, 3, "f0 f1 f2", ""},
      // One that hangs, until the end of the last call.
      {3, 1, 3, "a0 t29 a1", ""},
      {3, 1, 3, "a0 t29 a1 t1", "0/2"},
      {3, 2, 3, "a1 t1000 a2 t29", ""},
      {3, 2, 3, "a1 t1000 a2 t30", "1/2"},
      {3, 2, 3, "a1 a2 t29 a0", "0/3"},
      // What happens after the decision changes nothing.
      {3, 2, 3, "a1 a2 t30 a0 t30", "1/2"},
      {3, 2, 3, "a1 a2 t30 f1 a0 t30", "1/2"},
      // Spares are not waited for, but the first host is.
      {3, 2, 2, "a0 a2", "0/2"},
      {3, 2, 2, "a2 a1", ""},
      {3, 2, 2, "a2 a1 a0", "0/2"},
      {3, 2, 2, "a2 a1 f0", "1/2"},
      {3, 2, 2, "a2 a1 t30", "1/2"},
      // One that is lost after it answered counts no more, and the last call begins anew.
      {3, 2, 3, "a0 a1 f0 t30", ""},
      {3, 2, 3, "a0 a1 f0 a2", "1/2"},
      {4, 2, 4, "a0 a1 t20 f0 t20 a2 t29", ""},
      {4, 2, 4, "a0 a1 t20 f0 t20 a2 t30", "1/2"},
  };
  for (const Row& row : rows) {
    CAPTURE(row.hosts, row.min, row.max, row.events);
    CHECK(decides(static_cast<std::size_t>(row.hosts), row.min, row.max, row.events) == row.decided);
  }
  CHECK(decides(3, 1, 3, "a1", 0) == "1/1");
}

namespace {

/// `kinds`: the first words of those that are compared; "": all.
void leads(const char* what, std::array<int, 3> hosts_min_max, const std::string& events, const std::string& kinds,
           const std::string& actions, int code) {
  CAPTURE(what, events);
  Play play(options_for(static_cast<std::size_t>(hosts_min_max[0]), hosts_min_max[1], hosts_min_max[2]));
  auto words = split(kinds, ' ');
  std::erase(words, "");
  CHECK(play.events(events, {words.begin(), words.end()}) == actions);
  CHECK(play.machine.exit_code() == code);
}

}  // namespace

TEST_CASE("what hosts and the user do leads to these actions") {
  const std::string two = "a0 a1 l0 r0 r1 ";  // run
  leads("one host", {1, 1, 1}, "a0 r0 e0=0 f0", "", "open 0, part 0/0, forget, read, limit, no input, close, finish",
        0);
  leads("two hosts, and the second one answers first", {2, 2, 2}, "a1 a0 l0 r0 r1 e0=0 e1=0 f0 f1", "",
        "open 0, open 1, part 0/0, part 1/0, forget, read, limit, over 1, no input, close, finish", 0);
  leads("the first status counts", {2, 2, 2}, two + "e1=9 e0=1 f0 f1", "error signal", "", 9);
  leads("that of a host in a round also after the end of the coordinator's", {3, 2, 2}, two + "e0=0 e1=9 f0 f1 f2",
        "over cut finish", "over 1, cut 2, finish", 9);
  leads("a spare that is not reached does not hold a job that has ended", {3, 2, 2}, two + "e0=7 e1=143 f0 f1 f2",
        "over cut finish", "over 1, cut 2, finish", 7);
  leads("a spare that has been in no round ends with the job, and its status does not count", {3, 2, 2},
        "a2 a0 a1 l0 r0 r1 e0=0 e1=0 e2=143 f0 f1 f2", "part over error finish",
        "part 0/2, part 1/2, part 2/2, over 1, over 2, finish", 0);
  leads("a host that answers after the job has ended", {3, 2, 2}, two + "e0=0 a2 e1=0 f0 f1 f2", "over cut finish",
        "over 1, cut 2, over 2, finish", 0);
  leads("fewer hosts than are needed", {3, 2, 3}, "f0 a1 f2 e1=125 f1", "warning error signal part finish",
        "warning h0 failed; the job starts without it, error h2 failed, signal 1:15, finish", 125);
  leads("a host joins after the last call", {2, 1, 2}, "a1 t30 l1 r1 a0 r0 e1=0 e0=0 f0 f1", "part notice read forget",
        "notice waiting for host h0 to answer (--last-call), part 1/1, read, read, part 0/1, forget, read", 0);
  leads("signals that do not end the job, before a round and in one", {2, 2, 2},
        "a1 s28 s10 s18 s1 a0 s28 s18 l0 r0 r1 s10", "signal", "signal 0:18, signal 0:10, signal 1:10", 0);
  leads("Ctrl-C while hosts are reached", {2, 2, 2}, "a1 s2 f0 e1=125 f1", "",
        "open 0, open 1, bound, notice SIGINT: stopping 2 hosts (at once if you repeat it), no input, signal 1:2, cut "
        "0, no input, close, finish",
        130);
  leads("Ctrl-C, and again", {2, 2, 2}, two + "s2 s2 s2! t12 f0 f1", "notice signal kill error cut",
        "notice SIGINT: stopping 2 hosts (at once if you repeat it), signal 0:2, signal 1:2, notice SIGINT again: "
        "killing all workers, kill 0:2, kill 1:2, error host h0 has not ended in time; its connection is cut, error "
        "host h1 has not ended in time; its connection is cut, cut all",
        130);
  leads("a host that does not end in time", {2, 2, 2}, two + "s15 e0=143 t69 t1 f1 f0", "signal error cut",
        "signal 0:15, signal 1:15, error host h1 has not ended in time; its connection is cut, cut all", 143);
  leads("Ctrl-Z holds the start", {2, 2, 2}, "a1 s19 a0 s18 l0", "still on part", "still, on, part 0/0, part 1/0", 0);
  leads("a stop while ddrun stands still", {2, 2, 2}, two + "s19 s15", "signal still on",
        "still, signal 0:19, signal 1:19, on, signal 0:15, signal 1:15", 0);
  leads("time that stands still does not count for a stop", {2, 2, 2}, two + "s15 t60 s19 t1000 s18 t9", "error", "",
        0);
  leads("a host's ddrun that is killed before the start, where all are needed", {2, 2, 2}, "a1 e1=137 f1 f0",
        "error cut finish",
        "error ddrun was ended on host h1 before the job began (status 137); look there for what ended it, and start "
        "the job again, cut 0, finish",
        137);
  leads("and where one is enough", {2, 1, 2}, "a1 e1=137 f1 a0 l0", "error warning part",
        "warning ddrun was ended on host h1 before the job began (status 137); the job starts without it, part 0/1", 0);
  leads("a host that cannot run its part ends a job that needs it", {2, 2, 2}, "a0 a1 l0 e1=127 e0=143 f0 f1",
        "error signal", "signal 0:15", 127);
  leads("a lost host that is needed", {2, 2, 2}, two + "f1 e0=143 f0", "error signal finish",
        "error h1 failed, signal 0:15, finish", 125);
  leads("a lost host that is not", {3, 2, 3}, "a0 a1 a2 l0 r0 r1 r2 f2 e0=0 e1=0 f0 f1", "warning signal",
        "warning h2 failed; the job goes on without it", 0);
  leads("the coordinator's host is lost", {3, 2, 3}, "a0 a1 a2 l0 r0 r1 r2 f0 e1=1 e2=1 f1 f2", "error signal",
        "error h0 failed, signal 1:15, signal 2:15", 125);
  leads("input is not read before a host has its part", {3, 1, 3}, "s19 a0 f1 f2 s18", "part read", "part 0/1, read",
        0);
  leads("a lost parent, twice", {2, 2, 2}, two + "x x e0=143 e1=143 f0 f1", "error signal bound finish",
        "error ddrun's own guard was killed; the job was stopped, bound, signal 0:15, signal 1:15, finish", 125);
  leads("connections that do not close", {1, 1, 1}, "a0 r0 e0=0 t4 t1 s2 s2! f0 s2!", "close cut notice quit",
        "close, cut all, cut all, quit", 0);
  leads("a proxy that closes connections", {2, 2, 2}, "p0 t1 a1 p0 t1 a0", "open info notice",
        "open 0, open 1, info h0 is busy; trying again, 16 at a time, open 0, notice h0 is busy; trying again, 8 at a "
        "time, open 0",
        0);
  leads("and does so until the time is up", {2, 1, 2}, "p0 t1 p0 t1 p0 t1 p0 t2 p0 t4 p0 t4 p0 t120 f0", "open warning",
        "open 0, open 1, open 0, open 0, open 0, open 0, warning h0 is busy; the job starts without it", 0);
}

TEST_CASE("A question about the job goes to the coordinator's host, or else to one that has its part") {
  struct Row {
    std::array<int, 3> hosts_min_max;
    std::string events, actions;
  };
  const std::string two = "a0 a1 l0 r0 r1 ";
  const std::vector<Row> rows{
      {{2, 2, 2}, two + "q1 d1 q2 t3 b2 t3 d2 t9", "ask 0:1, ask 0:2"},
      {{2, 1, 2}, "a0 f1 q1", "ask 0:1"},  // in no round yet
      {{2, 1, 2}, "f0 a1 q1", "ask 1:1"},
      {{3, 2, 2}, two + "e0=0 q1", "ask 1:1"},
      // No worker runs.
      {{3, 3, 3},
       "q1 a0 q2",
       "refuse 1 no worker runs yet: waiting for host h0 and 2 more to answer, refuse 2 no worker runs yet: waiting "
       "for host h1 and 1 more to answer"},
      {{2, 2, 2}, "a1 s19 a0 q1", "refuse 1 no host runs its part of the job at present"},
      {{1, 1, 1}, "a0 r0 e0=0 q1", "refuse 1 no host runs its part of the job at present"},
      // No answer.
      {{2, 2, 2}, two + "q1 t1 q2 t3", "ask 0:1, ask 0:2, refuse 1 host h0 did not answer within 4.0 s"},
      {{2, 2, 2}, two + "q1 t3 b1 t4", "ask 0:1, refuse 1 host h0 did not answer within 4.0 s"},
      {{2, 2, 2}, two + "q1 f0", "ask 0:1, refuse 1 host h0 has ended, or its connection is lost"},
      {{2, 2, 2}, two + "q1 e0=0", "ask 0:1, refuse 1 host h0 has ended, or its connection is lost"},
      {{2, 2, 2}, two + "q1 s2 t4 q2", "ask 0:1, refuse 1 host h0 did not answer within 4.0 s, ask 0:2"},
  };
  for (const Row& row : rows) {
    CAPTURE(row.events);
    const auto [hosts, min_nodes, max_nodes] = row.hosts_min_max;
    Play play(options_for(static_cast<std::size_t>(hosts), min_nodes, max_nodes));
    CHECK(play.events(row.events, {"ask", "refuse"}) == row.actions);
  }
}

TEST_CASE("At most 32 hosts are reached at a time, in order, and none while ddrun stands still") {
  Play play(options_for(40, 1, 40));
  CHECK(play.events("", {"open"}).ends_with("open 31"));
  CHECK(play.events("a0 f1", {"open", "warning"}) == "open 32, warning h1 failed; the job starts without it, open 33");
  CHECK(play.events("s19 a2 f3", {"open"}).empty());
  CHECK(play.events("s18", {"open"}) == "open 34, open 35");
  CHECK(play.events("s2 f4 f5", {"open"}).empty());
}

TEST_CASE("If all hosts are needed, none has its part before the last one is being reached") {
  Play play(options_for(41, 41, 41));
  for (int host = 0; host < 8; ++host) CHECK(play.events(concat("a", host), {"part"}).empty());
  CHECK(play.events("a8", {"open", "part"}) == "open 40, part 0/0");
}

namespace {

/// Draws what hosts do, and carries out the actions for them: each of them has an ssh, and a ddrun that answers, fails,
/// hangs, is in a round, ends, and heeds signals or does not.
class World {
 public:
  explicit World(unsigned seed, std::set<std::pair<std::string, std::string>>& marks)
      : random_(seed), asking_(seed), hosts_(1 + draw(40)), machine_(drawn_options(marks)) {
    faults_ = draw(3) == 0 ? 0 : 1 + draw(20);
    for (int signals = static_cast<int>(draw(4)); signals > 1; --signals) after(draw(20'000), [this] { signal(); });
    for (unsigned questions = asking_() % 8; questions > 2; --questions) {
      after(asking_() % 20'000, [this] { take(host_event::Asked{*asked_.insert(++last_question_).first}); });
    }
    if (draw(8) == 0) after(draw(20'000), [this] { failed_ = true, take(host_event::ParentLost{"guard"}); });
  }

  void run() {
    take(host_event::Begin());
    for (int steps = 0; !finished_; ++steps) {
      REQUIRE(steps < 20'000);
      const auto due = machine_.next_deadline();
      REQUIRE((due || !future_.empty()));
      if (!future_.empty() && (!due || future_.begin()->first < *due)) {
        const auto next = future_.extract(future_.begin());
        now_ = next.key();
        next.mapped()();
      } else {
        now_ = std::max(now_, *due);
        take(host_event::Tick());
      }
    }
    CHECK(machine_.state() == HostsState::over);
    CHECK(asked_.empty());
    check_code();
  }

 private:
  struct Host {
    bool open = false;      ///< its ssh runs
    bool has_link = false;  ///< its end has not been reported
    bool ready = false, part = false, in_round = false, ended = false;
    int tries = 0;
  };
  using Time = Clock::time_point;

  unsigned draw(unsigned below) { return static_cast<unsigned>(random_()) % below; }
  bool fault() { return faults_ > 0 && draw(100) < static_cast<unsigned>(faults_); }
  void after(unsigned milliseconds, std::function<void()> then) {
    future_.emplace(now_ + Milliseconds(milliseconds), std::move(then));
  }
  HostsOptions drawn_options(std::set<std::pair<std::string, std::string>>& marks) {
    const auto count = static_cast<int>(hosts_.size());
    const int min = draw(3) == 0 ? count : 1 + static_cast<int>(draw(static_cast<unsigned>(count)));
    HostsOptions options =
        options_for(hosts_.size(), min, min + static_cast<int>(draw(static_cast<unsigned>(count - min) + 1)));
    options.last_call = Milliseconds(draw(3) * 1000);
    options.start_limit = Milliseconds(10'000);
    options.grace = Milliseconds(draw(2) * 5000);
    options.input_for_all = draw(2) == 0;
    options.on_step = [&marks](std::string_view state, std::string_view next, bool is_legal) {
      CAPTURE(state, next);
      CHECK(is_legal);
      marks.emplace(state, next);
      return true;
    };
    return options_ = options;
  }

  void take(const HostEvent& event) {
    for (const HostAction& action : machine_.step(event, now_)) {
      std::visit([this](const auto& one) { on(one); }, action);
    }
    if (const auto due = machine_.next_deadline()) CHECK(*due > now_);
    const auto opening = std::ranges::count_if(hosts_, [](const Host& host) { return host.open && !host.ready; });
    CHECK(opening <= 32 + killed_);
  }

  void signal() {
    const int drawn = std::vector{SIGINT, SIGSTOP, SIGUSR1}[draw(3)];
    const bool again = drawn == SIGINT && interrupted_;
    interrupted_ = interrupted_ || drawn == SIGINT;
    if (drawn == SIGINT && machine_.state() < HostsState::ending) signal_ = SIGINT;
    take(host_event::Signal{drawn, again});
    if (drawn == SIGSTOP) after(1 + draw(30'000), [this] { take(host_event::Signal{SIGCONT, false}); });
  }

  void close(std::uint32_t index, const std::string& why, bool by_proxy = false) {
    Host& host = hosts_[index];
    if (!std::exchange(host.has_link, false)) return;
    host.open = false;
    take(host_event::LinkEnded{index, why, by_proxy});
  }

  void on(const host_action::OpenLink& open) {
    Host& host = hosts_[open.host];
    CHECK_FALSE((is_still_ || is_stopped_ || host.has_link));
    const std::uint32_t index = open.host;
    host.open = host.has_link = true;
    if (host.tries == 0) CHECK(open.deadline == now_ + options_.start_limit);
    if (host.tries++ < 4 && fault()) return after(draw(100), [=, this] { close(index, "busy", true); });
    if (fault()) return after(draw(2'000), [=, this] { close(index, "no route"); });
    if (fault()) return future_.emplace(open.deadline, [=, this] { close(index, "no answer"); }), void();
    after(draw(3'000), [=, this] {
      Host& host = hosts_[index];
      if (!host.open) return;
      host.ready = true;
      take(host_event::Ready{index});
      if (fault()) after(draw(20'000), [=, this] { close(index, "lost"); });
      if (fault()) after(draw(draw(2) == 0 ? 1'000 : 20'000), [=, this] { end(index, 137); });
    });
  }

  void on(const host_action::SendPart& send) {
    Host& host = hosts_[send.host];
    CHECK((host.open && host.ready && !host.part && !is_still_ && !is_stopped_ && !forgot_secret_));
    const std::uint32_t index = send.host;
    const bool is_first = !std::exchange(coordinator_seen_, true);
    CHECK(is_first == (index == machine_.coordinator()));
    if (is_first) {
      if (options_.min_nodes == static_cast<int>(hosts_.size())) {
        CHECK(std::ranges::all_of(hosts_, [](const Host& one) { return one.has_link; }));
      }
      after(draw(500), [=, this] {
        listens_ = hosts_[index].open && !hosts_[index].ended;
        if (listens_ && hosts_.size() > 1) take(host_event::Listening{index});
        after(draw(3'000), [this] { begin_round(); });
      });
    } else {
      CHECK(listens_);
    }
    host.part = true;
    after(draw(3'000), [this] { begin_round(); });
  }

  /// With all hosts that have their parts, if those are enough.
  void begin_round() {
    const auto joined = std::ranges::count_if(hosts_, [](const Host& one) { return one.part && !one.ended; });
    const bool goes_on = listens_ && !hosts_[*machine_.coordinator()].ended;
    if (!goes_on || (joined < options_.min_nodes && !has_limit_)) return;
    for (std::uint32_t i = 0; i < hosts_.size(); ++i) {
      Host& host = hosts_[i];
      if (!host.part || host.ended || !host.open || draw(4) == 0) continue;
      take(host_event::InRound{i});
      if (!std::exchange(host.in_round, true)) {
        after(draw(10'000), [=, this] { end(i, fault() ? 1 + static_cast<int>(draw(5)) : 0); });
      }
    }
    after(1'000, [this] { begin_round(); });
  }

  void end(std::uint32_t index, int code) {
    Host& host = hosts_[index];
    if (!host.open || std::exchange(host.ended, true)) return;
    codes_.insert(code);
    const bool is_coordinator = index == machine_.coordinator();
    take(host_event::Ended{index, code});
    if (!is_coordinator) return;
    for (std::uint32_t i = 0; i < hosts_.size(); ++i) {
      if (hosts_[i].in_round) after(draw(2'000), [=, this] { end(i, 0); });
    }
  }

  void on(const host_action::SendSignal& send) {
    CHECK(hosts_[send.host].ready);
    if (send.signal != SIGINT && send.signal != options_.ending_signal) return;
    is_stopped_ = true;
    if (fault()) return;
    const std::uint32_t index = send.host;
    after(draw(3'000), [=, this] { end(index, hosts_[index].part ? 128 + send.signal : 125); });
  }
  void on(const host_action::SendOver& send) {
    const std::uint32_t index = send.host;
    const auto coordinator = machine_.coordinator();
    CHECK((machine_.state() >= HostsState::ending || (coordinator && machine_.is_over(*coordinator))));
    if (!hosts_[index].in_round) after(draw(1'000), [=, this] { end(index, 143); });
  }
  void on(const host_action::KillLink& kill) {
    ++killed_;
    const std::uint32_t index = kill.host;
    after(draw(100), [=, this] { close(index, "killed"); });
  }
  void on(const host_action::KillLinks& /*kill*/) {
    for (std::uint32_t i = 0; i < hosts_.size(); ++i) after(draw(100), [=, this] { close(i, "killed"); });
  }
  void on(const host_action::CloseLinks& /*close*/) {
    for (std::uint32_t i = 0; i < hosts_.size(); ++i) {
      if (!fault()) after(draw(1'000), [=, this] { close(i, "closed"); });
    }
  }
  void on(const host_action::Suspend& suspend) { is_still_ = suspend.still; }
  void on(const host_action::StartTimeLimit& /*start*/) { CHECK_FALSE(std::exchange(has_limit_, true)); }
  void on(const host_action::ReadInput& /*read*/) { CHECK((coordinator_seen_ && !is_stopped_ && !input_is_over_)); }
  void on(const host_action::StopInput& /*stop*/) { input_is_over_ = true; }
  void on(const host_action::ForgetSecret& /*forget*/) { forgot_secret_ = true; }
  void on(const host_action::BoundConsole& /*bound*/) { CHECK((interrupted_ || failed_)); }
  void on(const host_action::SendQuestion& send) {
    const Host& host = hosts_[send.host];
    CHECK((host.open && host.part && !host.ended && !asked_.empty()));
    const std::uint32_t number = send.question;
    const auto time = static_cast<unsigned>(asking_() % 5'000);
    if (faults_ > 0 && asking_() % 4 == 0) return;
    for (const bool is_complete : {false, true}) {
      after(is_complete ? 2 * time : time, [=, this] {
        if (asked_.contains(number)) take(host_event::Answered{number, is_complete});
        if (is_complete) asked_.erase(number);
      });
    }
  }
  void on(const host_action::RefuseQuestion& refuse) { CHECK(asked_.erase(refuse.question) == 1); }
  void on(const host_action::Say& what) { failed_ = failed_ || what.level == Level::error; }
  void on(const host_action::Finish& /*finish*/) {
    CHECK(std::ranges::none_of(hosts_, &Host::has_link));
    finished_ = true;
  }

  /// A job that had no fault, signal or error is a success; no job with one of them is called that without a cause.
  void check_code() {
    const int code = machine_.exit_code();
    CAPTURE(code, signal_, failed_);
    if (code == 0) CHECK((!failed_ || cut_late()));
    else if (code == 125) CHECK((failed_ || codes_.contains(125)));
    else CHECK((codes_.contains(code) || code == 128 + signal_));
    if (faults_ == 0 && signal_ == 0 && !failed_) {
      CHECK(code == 0);
      const auto with_part = std::ranges::count_if(hosts_, &Host::part);
      CHECK(with_part >= options_.min_nodes);
    }
  }
  /// All that was said is that connections were cut.
  [[nodiscard]] bool cut_late() const { return is_stopped_ || signal_ != 0; }

  std::mt19937 random_;
  std::mt19937 asking_;  ///< apart, so that the rest is as without questions
  std::vector<Host> hosts_;
  HostsOptions options_;
  HostsMachine machine_;
  std::multimap<Time, std::function<void()>> future_;
  Time now_{std::chrono::hours(1)};
  int faults_ = 0;  ///< per cent, of each thing that may fail
  int killed_ = 0;
  int signal_ = 0;
  std::set<int> codes_;
  std::set<std::uint32_t> asked_;  ///< questions without a complete reply
  std::uint32_t last_question_ = 0;
  bool is_still_ = false, is_stopped_ = false, coordinator_seen_ = false, listens_ = false, forgot_secret_ = false;
  bool interrupted_ = false, has_limit_ = false, input_is_over_ = false, failed_ = false, finished_ = false;
};

template <class Order>
std::string unreached(const std::set<std::pair<std::string, std::string>>& marks) {
  std::string missing;
  for (const auto& row : Order::steps) {
    for (int from = 0; from < 8; ++from) {
      using State = std::remove_cv_t<decltype(row.to)>;
      if (!row.may_come_in(static_cast<State>(from))) continue;
      const std::pair arrow(std::string(name(static_cast<State>(from))), std::string(name(row.to)));
      if (!marks.contains(arrow)) missing += concat(" ", arrow.first, "-", arrow.second);
    }
  }
  return missing;
}

}  // namespace

TEST_CASE("whatever hosts and the user do, each job ends, by the legal order, with a status that has a cause") {
  std::set<std::pair<std::string, std::string>> marks;
  for (unsigned seed = 0; seed < 600; ++seed) {
    CAPTURE(seed);
    World(seed, marks).run();
  }
  CHECK(concat(unreached<HostOrder>(marks), unreached<HostsOrder>(marks)) == "");
}
