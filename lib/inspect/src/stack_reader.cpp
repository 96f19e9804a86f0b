#include "ddrun/inspect/stack_reader.hpp"

#include <errno.h>
#include <fcntl.h>

#include <algorithm>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <cstdint>
#include <map>
#include <system_error>
#include <utility>

#include "ddrun/base/event_thread.hpp"
#include "ddrun/base/text.hpp"
#include "ddrun/base/unique_fd.hpp"
#include "ddrun/inspect/stack_page.hpp"
#include "process_reader.hpp"
#include "symbols.hpp"

namespace ddrun::inspect {

namespace {

constexpr std::size_t max_reading_threads = 4;  ///< of one reading
/// Of all readings, with those that are blocked for good.
constexpr int max_threads_at_once = 40;
constexpr Milliseconds read_time{1500};
constexpr Milliseconds naming_time{1000};
/// A job that is restarted again and again does not fill a disk.
constexpr int max_files = 10;

double to_seconds(std::chrono::nanoseconds time) { return std::chrono::duration<double>(time).count(); }

void name_functions_of(StackPage& page, NameCache& names) {
  std::vector<NativeFrame*> frames;
  for (RankStacks& rank : page.ranks) {
    for (ThreadStack& thread : rank.threads) {
      for (NativeFrame& frame : thread.native) frames.push_back(&frame);
    }
  }
  name_functions(frames, names);
}

/// Writes a new file; its path, or an empty one and `error`.
std::string write_new_file(const std::string& prefix, const std::string& text, std::string& error) {
  for (int number = 1; number <= max_files; ++number) {
    std::string path = concat(prefix, number, ".txt");
    const UniqueFd file(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
    if (!file && errno == EEXIST) continue;
    if (file && write_all(file.get(), text.data(), text.size())) return path;
    error = concat("cannot write ", path, ": ", std::generic_category().message(errno));
    return {};
  }
  error = concat("cannot write ", prefix, "*.txt: there are too many already");
  return {};
}

}  // namespace

struct StackReader::Reading {
  enum class Stage { reading, naming };
  explicit Reading(boost::asio::any_io_executor executor) : limit(std::move(executor)) {}
  Stage stage = Stage::reading;
  Answer answer;
  std::string file_prefix;
  std::size_t missing = 0;  ///< ranks that are still being read
  Clock::time_point began = Clock::now();
  std::function<void(Answer)> done;
  boost::asio::steady_timer limit;
};

struct StackReader::State : std::enable_shared_from_this<State> {
  explicit State(boost::asio::any_io_executor its_executor) : executor(std::move(its_executor)) {}

  /// For other threads: runs functions on the executor, with the reading, if that is not over.
  struct Post {
    boost::asio::any_io_executor executor;
    std::weak_ptr<State> state;
    std::uint64_t id;
    template <class Use>
    void operator()(Use use) const {
      boost::asio::post(executor, [weak = state, key = id, use = std::move(use)]() mutable {
        const auto alive = weak.lock();
        if (!alive) return;
        const auto found = alive->readings.find(key);
        if (found != alive->readings.end()) use(*alive, *found->second);
      });
    }
  };

  /// Nothing runs if there can be no thread: the reading's time limit then ends it.
  void start_thread(std::function<void()> run);
  void read(Request request, std::function<void(Answer)> done);
  void start_reading_threads(std::uint64_t id, const Request& request);
  /// Ends the stage after this time, if it is not over then.
  void set_limit(std::uint64_t id, Reading& reading, Milliseconds time);
  void name(std::uint64_t id, Reading& reading);
  void finish(std::uint64_t id);

  boost::asio::any_io_executor executor;
  std::map<std::uint64_t, std::unique_ptr<Reading>> readings;
  std::uint64_t last_id = 0;
  int running_threads = 0;
  // Of the last reading; while a thread has them, another reading does without.
  std::map<pid_t, ProcessCache> processes;
  NameCache names;
};

void StackReader::State::start_thread(std::function<void()> run) {
  if (running_threads == max_threads_at_once) return;
  const auto until_end = [run = std::move(run), to = executor, weak = weak_from_this()] {
    run();
    boost::asio::post(to, [weak] {
      if (const auto alive = weak.lock()) --alive->running_threads;
    });
  };
  auto thread = start_thread_signals_blocked("ddrun stacks", until_end);
  if (!thread) return;
  ++running_threads;
  thread->detach();
}

void StackReader::State::read(Request request, std::function<void(Answer)> done) {
  const std::uint64_t id = ++last_id;
  Reading& reading = *readings.emplace(id, std::make_unique<Reading>(executor)).first->second;
  reading.done = std::move(done);
  reading.file_prefix = std::move(request.file_prefix);
  reading.missing = request.targets.size();
  StackPage& page = reading.answer.page;
  page.why = std::move(request.why);
  page.at = std::chrono::system_clock::now();
  std::sort(request.targets.begin(), request.targets.end(),
            [](const Target& a, const Target& b) { return a.rank < b.rank; });
  for (const Target& target : request.targets) {
    RankStacks& rank = page.ranks.emplace_back();
    rank.rank = target.rank;
    rank.pid = target.pid;
    rank.note = concat("no stack: not read within ", format_duration(read_time));
  }
  if (request.targets.empty()) return name(id, reading);
  set_limit(id, reading, read_time);
  start_reading_threads(id, request);
}

void StackReader::State::start_reading_threads(std::uint64_t id, const Request& request) {
  const std::size_t count = std::min(request.targets.size(), max_reading_threads);
  const Post post{executor, weak_from_this(), id};
  std::map<pid_t, ProcessCache> last = std::exchange(processes, {});
  for (std::size_t first = 0; first < count; ++first) {
    std::map<pid_t, ProcessCache> known;
    for (std::size_t i = first; i < request.targets.size(); i += count) {
      known.insert(last.extract(request.targets[i].pid));
    }
    start_thread([post, targets = request.targets, all_threads = request.all_threads, first, count, id,
                  known = std::move(known), deadline = Clock::now() + read_time]() mutable {
      std::vector<std::pair<std::size_t, RankStacks>> ranks;
      // Facts of all first: to read these never blocks.
      for (std::size_t i = first; i < targets.size(); i += count) {
        ranks.emplace_back(i, read_facts(targets[i].rank, targets[i].pid));
        ranks.back().second.cpu = to_seconds(cpu_time(ranks.back().second));
        post([i, facts = ranks.back().second](State&, Reading& to) mutable {
          facts.note = std::move(to.answer.page.ranks[i].note);
          to.answer.page.ranks[i] = std::move(facts);
        });
      }
      for (auto& [i, rank] : ranks) {
        ProcessCache& cache = known[rank.pid];
        read_stacks(rank, cache, all_threads, deadline);
        post([id, i = i, rank = std::move(rank), cache = std::move(cache)](State& state, Reading& to) mutable {
          state.processes[rank.pid] = std::move(cache);
          to.answer.page.ranks[i] = std::move(rank);
          if (--to.missing == 0) state.name(id, to);
        });
      }
    });
  }
}

void StackReader::State::set_limit(std::uint64_t id, Reading& reading, Milliseconds time) {
  reading.limit.expires_after(time);
  reading.limit.async_wait([weak = weak_from_this(), id, stage = reading.stage](const boost::system::error_code& ec) {
    const auto alive = ec ? nullptr : weak.lock();
    if (!alive) return;
    const auto found = alive->readings.find(id);
    if (found == alive->readings.end() || found->second->stage != stage) return;
    if (stage == Reading::Stage::reading) alive->name(id, *found->second);
    else alive->finish(id);
  });
}

void StackReader::State::name(std::uint64_t id, Reading& reading) {
  if (std::exchange(reading.stage, Reading::Stage::naming) == Reading::Stage::naming) return;
  set_limit(id, reading, naming_time);
  if (!reading.file_prefix.empty()) reading.answer.file_error = "not written within " + format_duration(naming_time);
  const Post post{executor, weak_from_this(), id};
  start_thread([post, id, page = reading.answer.page, prefix = reading.file_prefix, began = reading.began,
                known = std::exchange(names, {})]() mutable {
    name_functions_of(page, known);
    // Until here `cpu` is the CPU time of the process at the beginning.
    const double elapsed = to_seconds(Clock::now() - began);
    for (RankStacks& rank : page.ranks) {
      rank.cpu = std::max(0.0, to_seconds(cpu_time(rank)) - rank.cpu) / elapsed;
    }
    Answer answer;
    if (!prefix.empty()) answer.file = write_new_file(prefix, full_text(page), answer.file_error);
    answer.page = std::move(page);
    post([id, answer = std::move(answer), known = std::move(known)](State& state, Reading& to) mutable {
      state.names = std::move(known);
      to.answer = std::move(answer);
      state.finish(id);
    });
  });
}

void StackReader::State::finish(std::uint64_t id) {
  const auto reading = readings.extract(id);
  reading.mapped()->done(std::move(reading.mapped()->answer));
}

StackReader::StackReader(boost::asio::any_io_executor executor)
    : state_(std::make_shared<State>(std::move(executor))) {}

void StackReader::async_read(Request request, std::function<void(Answer)> done) {
  state_->read(std::move(request), std::move(done));
}

}  // namespace ddrun::inspect
