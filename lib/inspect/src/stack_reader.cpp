#include "ddrun/inspect/stack_reader.hpp"

#include <errno.h>
#include <fcntl.h>
#include <malloc.h>

#include <algorithm>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <cstdint>
#include <map>
#include <mutex>
#include <system_error>
#include <utility>

#include "ddrun/base/event_thread.hpp"
#include "ddrun/base/text.hpp"
#include "ddrun/base/unique_fd.hpp"
#include "peers.hpp"
#include "process_reader.hpp"
#include "symbols.hpp"

namespace ddrun::inspect {

namespace {

constexpr std::size_t max_reading_threads = 4;  ///< of one reading
/// Of all readings, with those that are blocked for good.
constexpr int max_threads_at_once = 40;
/// Of all ranks.
constexpr std::size_t max_page_bytes = std::size_t{16} << 20U;
constexpr Milliseconds read_time{1500};
constexpr Milliseconds arrival_time{250};  ///< of it: for what has been read by then
/// Then the page is made without names, as a file whose disk does not answer would have given them.
constexpr Milliseconds naming_time{700};
constexpr Milliseconds writing_time{300};
/// A job that is restarted again and again does not fill a disk.
constexpr int max_files = 10;

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

/// A page while it is read and completed.
struct StackReader::Work {
  Request request;
  StackPage page;             ///< the executor's until it is claimed
  std::vector<Share> shares;  ///< of other machines, in place of a reading

  [[nodiscard]] bool all_threads() const {
    const bool is_short = request.format == Request::Format::text || request.format == Request::Format::share;
    return request.all_threads || !is_short || !request.file_prefix.empty();
  }
  /// True for the first caller, who then makes the answer.
  [[nodiscard]] bool claim() {
    const std::lock_guard lock(mutex_);
    return !std::exchange(claimed_, true);
  }
  template <class Use>
  void for_each_process(Use use) {
    for (RankStacks& rank : page.ranks) {
      use(rank);
      std::for_each(rank.awaited.begin(), rank.awaited.end(), use);
    }
  }
  template <class Use>
  void for_each_frame(Use use) {
    for_each_process([&](RankStacks& process) {
      for (ThreadStack& thread : process.threads) std::for_each(thread.native.begin(), thread.native.end(), use);
    });
  }
  /// Whose functions are to be named; none if the page is claimed.
  [[nodiscard]] std::vector<NativeFrame> frames() {
    const std::lock_guard lock(mutex_);
    std::vector<NativeFrame> all;
    if (!claimed_) for_each_frame([&](const NativeFrame& frame) { all.push_back(frame); });
    return all;
  }
  /// Who is at the other ends of sockets. Their tables are as much work as all else: they are read if the page needs
  /// them.
  void read_peers() {
    const bool is_share = request.format == Request::Format::share;
    bool any = is_share || !page.store_waits.empty();
    for_each_process([&](const RankStacks& process) {
      any =
          any || std::ranges::any_of(process.threads, [](const ThreadStack& thread) { return !thread.peers.empty(); });
    });
    if (!any) return;
    TcpTables tables;
    for (RankStacks& rank : page.ranks) read_connections(rank, request.store_ports, tables);
    name_peers(page, request.store_ports, request.is_whole);
    if (!is_share) name_store_clients(page);
  }
  /// The answer without its file, whose text goes to `file`.
  [[nodiscard]] Answer complete(std::string& file) {
    if (page.is_whole_job) {
      merge();
    } else {
      for_each_process([](RankStacks& process) {
        const std::chrono::duration<double> used = cpu_time(process) - process.cpu_before;
        process.cpu = std::max(0.0, used / (Clock::now() - process.first_seen));
      });
    }
    Answer answer;
    switch (request.format) {
      case Request::Format::text: answer.text = short_text(page, request.directory); break;
      case Request::Format::all_threads: answer.text = full_text(page); break;
      case Request::Format::json: answer.text = json_text(page); break;
      case Request::Format::share: answer.text = share_text(page, request.all_threads, request.max_bytes); break;
    }
    if (!request.file_prefix.empty()) {
      file = full_text(page);
      const bool is_text = request.format == Request::Format::text;
      if (is_text && !request.needs_file && !adds_to(answer.text, file, page)) file.clear();
      else answer.file_error = concat("not written within ", format_duration(writing_time));
    }
    for (RankStacks& rank : page.ranks) rank.threads.resize(std::min<std::size_t>(rank.threads.size(), 1));
    answer.page = std::move(page);
    return answer;
  }

 private:
  void merge() {
    for (const Share& share : shares) {
      if (!add_share(page, share.text, share.host)) page.notes.push_back(share.host + ": its answer cannot be read");
    }
    shares.clear();
    name_peers(page, request.store_ports, request.is_whole);
    name_store_clients(page);
    if (request.includes) keep_ranks(page, request.includes);
    std::ranges::sort(page.ranks, {}, [](const RankStacks& rank) { return std::pair(rank.role, rank.rank); });
    if (request.format == Request::Format::text) merge_equal(page);
  }

  std::mutex mutex_;
  bool claimed_ = false;
};

struct StackReader::Reading {
  enum class Stage { reading, naming, writing };
  explicit Reading(boost::asio::any_io_executor executor) : limit(std::move(executor)) {}
  Stage stage = Stage::reading;
  std::shared_ptr<Work> work = std::make_shared<Work>();
  Answer answer;            ///< without a text until the page is completed
  std::size_t missing = 0;  ///< ranks that are still being read
  std::function<void(Answer)> done;
  boost::asio::steady_timer limit;
};

struct StackReader::State : std::enable_shared_from_this<State> {
  explicit State(boost::asio::any_io_executor its_executor) : executor(std::move(its_executor)) {}

  /// For other threads: runs functions on the executor, with the reading, which is null if it is over.
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
        use(*alive, found != alive->readings.end() ? found->second.get() : nullptr);
      });
    }
  };

  /// Nothing runs if there can be no thread: the reading's time limit then ends it.
  void start_thread(std::function<void()> run);
  void read(Request request, std::function<void(Answer)> done);
  void merge(Request request, std::vector<Share> shares, std::function<void(Answer)> done);
  void start_reading_threads(std::uint64_t id, const Work& work);
  /// Begins a stage, which ends after this time if it is not over then.
  void enter(Reading::Stage stage, std::uint64_t id, Reading& reading, Milliseconds time);
  void on_limit(std::uint64_t id, Reading& reading);
  void name(std::uint64_t id, Reading& reading);
  /// On a thread of its own: makes the answer and writes its file, unless the page is claimed already.
  static void complete(Work& work, const NameCache& names, bool is_named, const Post& post);
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
  reading.missing = request.targets.size();
  StackPage& page = reading.work->page;
  page.why = request.why;
  page.notes = request.notes;
  page.store_waits = request.store_waits;
  page.at = std::chrono::system_clock::now();
  for (const Target& target : request.targets) {
    RankStacks& rank = page.ranks.emplace_back();
    rank.rank = target.name.rank;
    rank.role = target.name.role;
    rank.world = target.world;
    rank.pid = target.pid;
    rank.note = concat("no stack: not read within ", format_duration(read_time));
  }
  reading.work->request = std::move(request);
  if (reading.missing == 0) return name(id, reading);
  enter(Reading::Stage::reading, id, reading, read_time);
  start_reading_threads(id, *reading.work);
}

void StackReader::State::merge(Request request, std::vector<Share> shares, std::function<void(Answer)> done) {
  const std::uint64_t id = ++last_id;
  Reading& reading = *readings.emplace(id, std::make_unique<Reading>(executor)).first->second;
  reading.done = std::move(done);
  const auto work = reading.work;
  work->page.why = request.why;
  work->page.at = std::chrono::system_clock::now();
  work->page.is_whole_job = true;
  work->page.notes = std::move(request.notes);
  work->request = std::move(request);
  work->shares = std::move(shares);
  enter(Reading::Stage::writing, id, reading, naming_time);
  start_thread([work, post = Post{executor, weak_from_this(), id}] { complete(*work, {}, true, post); });
}

void StackReader::State::start_reading_threads(std::uint64_t id, const Work& work) {
  const std::vector<Target>& targets = work.request.targets;
  const std::size_t count = std::min(targets.size(), max_reading_threads);
  const Post post{executor, weak_from_this(), id};
  std::map<pid_t, ProcessCache> last = std::exchange(processes, {});
  for (std::size_t first = 0; first < count; ++first) {
    std::map<pid_t, ProcessCache> known;
    for (std::size_t i = first; i < targets.size(); i += count) known.insert(last.extract(targets[i].pid));
    const ReadLimits limits{work.all_threads(), max_page_bytes / targets.size(),
                            Clock::now() + read_time - arrival_time};
    start_thread([post, targets, limits, first, count, id, known = std::move(known)]() mutable {
      std::vector<std::pair<std::size_t, RankStacks>> ranks;
      TcpTables tables;
      // Facts of all first: to read these never blocks.
      for (std::size_t i = first; i < targets.size(); i += count) {
        ranks.emplace_back(i, read_facts(targets[i].name.rank, targets[i].pid, tables));
        ranks.back().second.role = targets[i].name.role;
        ranks.back().second.world = targets[i].world;
        post([i, facts = ranks.back().second](State&, Reading* to) mutable {
          if (to == nullptr || to->stage != Reading::Stage::reading) return;
          facts.note = std::move(to->work->page.ranks[i].note);
          to->work->page.ranks[i] = std::move(facts);
        });
      }
      for (auto& [i, rank] : ranks) {
        ProcessCache& cache = known[rank.pid];
        read_stacks(rank, cache, tables, limits);
        post([id, i = i, rank = std::move(rank), cache = std::move(cache)](State& state, Reading* to) mutable {
          state.processes[rank.pid] = std::move(cache);
          if (to == nullptr || to->stage != Reading::Stage::reading) return;
          to->work->page.ranks[i] = std::move(rank);
          if (--to->missing == 0) state.name(id, *to);
        });
      }
    });
  }
}

void StackReader::State::enter(Reading::Stage stage, std::uint64_t id, Reading& reading, Milliseconds time) {
  reading.stage = stage;
  reading.limit.expires_after(time);
  reading.limit.async_wait([weak = weak_from_this(), id, stage](const boost::system::error_code& ec) {
    const auto alive = ec ? nullptr : weak.lock();
    if (!alive) return;
    const auto found = alive->readings.find(id);
    if (found != alive->readings.end() && found->second->stage == stage) alive->on_limit(id, *found->second);
  });
}

void StackReader::State::on_limit(std::uint64_t id, Reading& reading) {
  const auto& work = reading.work;
  if (reading.stage == Reading::Stage::reading) return name(id, reading);
  if (reading.stage == Reading::Stage::naming) {
    enter(Reading::Stage::writing, id, reading, writing_time);
    return start_thread([work, post = Post{executor, weak_from_this(), id}] { complete(*work, {}, false, post); });
  }
  // Without a thread it is made here; else it comes, as only its file can block.
  std::string file;
  if (work->claim()) work->page.is_named = work->page.is_whole_job, reading.answer = work->complete(file);
  if (reading.answer.text.empty()) return enter(Reading::Stage::writing, id, reading, writing_time);
  finish(id);
}

void StackReader::State::name(std::uint64_t id, Reading& reading) {
  enter(Reading::Stage::naming, id, reading, naming_time);
  const Post post{executor, weak_from_this(), id};
  start_thread(
      [post, work = reading.work, known = std::exchange(names, {}), end = Clock::now() + naming_time]() mutable {
        look_up_names(work->frames(), known, end);
        complete(*work, known, Clock::now() < end, post);
        post([known = std::move(known)](State& state, const Reading*) mutable { state.names = std::move(known); });
      });
}

void StackReader::State::complete(Work& work, const NameCache& names, bool is_named, const Post& post) {
  if (!work.claim()) return;
  if (!work.page.is_whole_job) {
    work.page.is_named = is_named;
    work.read_peers();
  }
  work.for_each_frame([&](NativeFrame& frame) { set_name(frame, names); });
  std::string file;
  post([answer = work.complete(file)](State&, Reading* to) mutable {
    if (to != nullptr) to->answer = std::move(answer);
  });
  Answer written;
  if (!file.empty()) written.file = write_new_file(work.request.file_prefix, file, written.file_error);
  post([written = std::move(written), id = post.id](State& state, Reading* to) mutable {
    if (to == nullptr) return;
    to->answer.file = std::move(written.file);
    to->answer.file_error = std::move(written.file_error);
    state.finish(id);
  });
}

void StackReader::State::finish(std::uint64_t id) {
  const auto reading = readings.extract(id);
  reading.mapped()->done(std::move(reading.mapped()->answer));
#ifdef __GLIBC__
  // Its threads' heaps keep all that a page took.
  start_thread([] { ::malloc_trim(0); });
#endif
}

StackReader::StackReader(boost::asio::any_io_executor executor)
    : state_(std::make_shared<State>(std::move(executor))) {}

void StackReader::async_read(Request request, std::function<void(Answer)> done) {
  state_->read(std::move(request), std::move(done));
}

void StackReader::async_merge(Request request, std::vector<Share> shares, std::function<void(Answer)> done) {
  state_->merge(std::move(request), std::move(shares), std::move(done));
}

}  // namespace ddrun::inspect
