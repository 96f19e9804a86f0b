#include "gpu/nccl_session.hpp"

#include <chrono>
#include <future>
#include <limits>
#include <span>

#include "ddrun/base/event_thread.hpp"
#include "ddrun/base/text.hpp"
#include "ddrun/store/tcp_client.hpp"
#include "exchange.hpp"
#include "gpu/waiting.hpp"

namespace ddrun::collectives {

namespace {

constexpr char hex_digits[] = "0123456789abcdef";

std::string to_hex(const nccl::UniqueId& id) { return in_hex(std::as_bytes(std::span(id.internal))); }

Result<nccl::UniqueId> from_hex(const std::string& text, std::size_t rank) {
  nccl::UniqueId id{};
  const auto bad = [&] { return fail(Errc::protocol, concat("rank ", rank, " gave no id of NCCL: ", text)); };
  if (text.size() != 2 * id.internal.size()) return bad();
  for (std::size_t i = 0; i < id.internal.size(); ++i) {
    unsigned value = 0;
    for (const char digit : {text[2 * i], text[2 * i + 1]}) {
      const auto found = std::string_view(hex_digits).find(digit);
      if (found == std::string_view::npos) return bad();
      value = value << 4U | static_cast<unsigned>(found);
    }
    id.internal[i] = static_cast<char>(value);
  }
  return id;
}

}  // namespace

int ranks_per_nccl_id(const nccl::Library& library) {
  constexpr int many_ranks_per_id = 256;
  return library.comm_init_rank_scalable != nullptr ? many_ranks_per_id : std::numeric_limits<int>::max();
}

Result<std::vector<nccl::UniqueId>> exchange_nccl_ids(const Group& group, const nccl::Library& library,
                                                      int ranks_per_id, Deadline deadline) {
  // Ids are made by ranks on different machines, which share the bootstrap's load.
  const bool makes_one = group.rank % ranks_per_id == 0;
  nccl::UniqueId mine{};
  Result<void> made;
  if (makes_one) {
    const nccl::Status status = library.get_unique_id(&mine);
    if (status != nccl::success) {
      made = fail(Errc::unavailable, library.describe("ncclGetUniqueId", status, nullptr));
    }
  }
  const std::string line =
      made ? concat(library.version, ' ', makes_one ? to_hex(mine) : "") : concat("! ", made.error().message);
  const auto lines = exchange(group, "nccl", line, deadline);
  if (!lines) return tl::unexpected(lines.error());
  std::vector<nccl::UniqueId> ids;
  const std::string own_version = std::to_string(library.version);
  for (std::size_t rank = 0; rank < lines->size(); ++rank) {
    const std::string& line_of_rank = (*lines)[rank];
    const std::string version = line_of_rank.substr(0, line_of_rank.find(' '));
    const std::string rest = line_of_rank.substr(std::min(line_of_rank.size(), version.size() + 1));
    if (version == "!") return fail(Errc::unavailable, concat("rank ", rank, ": ", rest));
    if (version != own_version) {
      return fail(Errc::invalid_argument, concat("rank ", group.rank, " has NCCL version ", own_version, ", rank ",
                                                 rank, " has ", version, ": all ranks must have the same"));
    }
    if (rest.empty()) continue;
    auto id = from_hex(rest, rank);
    if (!id) return tl::unexpected(id.error());
    ids.push_back(*id);
  }
  return ids;
}

namespace {

/// Time limits of an orderly end and of an abort.
constexpr std::chrono::seconds finish_limit{5};
constexpr std::chrono::seconds abort_limit{10};

/// During NCCL's bootstrap the ranks communicate only through the store: a failing rank reports there, and the others
/// poll.
class FailureBoard {
 public:
  explicit FailureBoard(const Group& group)
      : group_(group), key_(group.prefix + "nccl/failed"), pause_(200 + group.size / 5) {}

  void report(const Error& error) {
    if (group_.size == 1) return;
    (void)group_.store->compare_set(key_, "", concat("rank ", group_.rank, ": ", error.message), soon());
  }

  [[nodiscard]] Result<void> check() {
    if (group_.size == 1 || Clock::now() < next_) return {};
    next_ = Clock::now() + pause_;
    const auto has_failure = group_.store->check({&key_, 1}, soon());
    if (!has_failure || !*has_failure) return {};
    const auto words = group_.store->get(key_, soon());
    return fail(Errc::unavailable, words ? *words : std::string("another rank failed"));
  }

 private:
  [[nodiscard]] static Deadline soon() { return Clock::now() + std::chrono::seconds(2); }

  const Group& group_;
  std::string key_;
  Milliseconds pause_;
  Deadline next_ = Clock::now();
};

}  // namespace

Result<std::unique_ptr<NcclSession>> NcclSession::start(const Group& group, Parts parts,
                                                        std::vector<nccl::UniqueId> ids, Deadline deadline) {
  std::unique_ptr<NcclSession> made(new NcclSession(std::move(parts)));
  const nccl::Library& library = made->library();
  nccl::Config config;
  config.blocking = 0;
  FailureBoard board(group);
  const bool several = ids.size() > 1;
  const std::string what = several ? "ncclCommInitRankScalable" : "ncclCommInitRankConfig";
  const nccl::Status status =
      several ? library.comm_init_rank_scalable(&made->comm_, group.size, group.rank, static_cast<int>(ids.size()),
                                                ids.data(), &config)
              : library.comm_init_rank_config(&made->comm_, group.size, ids[0], group.rank, &config);
  Result<void> ready;
  if (status != nccl::success && status != nccl::in_progress) {
    ready = fail(Errc::unavailable, library.describe(what, status, nullptr));
    made->comm_ = nullptr;
  } else {
    bool others_failed = false;
    const auto done = [&]() -> Result<bool> {
      bool pending = false;
      if (auto polled = made->poll_state(what, pending); !polled) return tl::unexpected(polled.error());
      return !pending;
    };
    const auto cancel_check = [&]() -> Result<void> {
      if (auto async_error = made->parts_.control->async_error()) return tl::unexpected(*async_error);
      auto polled = board.check();
      others_failed = !polled;
      return polled;
    };
    ready = wait_until(done, cancel_check, deadline, what);
    if (!ready && others_failed) {
      made->abort();
      return tl::unexpected(ready.error());
    }
  }
  if (ready) return made;
  board.report(ready.error());
  made->abort();
  return tl::unexpected(ready.error());
}

NcclSession::~NcclSession() {
  if (comm_ != nullptr && !finish()) abort();
}

Result<void> NcclSession::poll_state(const std::string& what, bool& pending) {
  nccl::Status state = nccl::success;
  nccl::Status status = library().comm_get_async_error(comm_, &state);
  if (status == nccl::success) status = state;
  pending = status == nccl::in_progress;
  if (pending || status == nccl::success) return {};
  return fail(Errc::unavailable, library().describe(what, status, comm_));
}

Result<void> NcclSession::wait_complete(const std::string& what, nccl::Status status, Deadline deadline) {
  if (status == nccl::success) return {};
  if (status != nccl::in_progress) return fail(Errc::unavailable, library().describe(what, status, comm_));
  const auto done = [&]() -> Result<bool> {
    bool pending = false;
    if (auto polled = poll_state(what, pending); !polled) return tl::unexpected(polled.error());
    return !pending;
  };
  const auto peers = [&]() -> Result<void> {
    if (auto async_error = parts_.control->async_error()) return tl::unexpected(*async_error);
    return {};
  };
  return wait_until(done, peers, deadline, what);
}

Result<void> NcclSession::cancel_reason() {
  // An exited peer is the cause of NCCL's own errors, so it is checked first.
  if (auto async_error = parts_.control->async_error()) return tl::unexpected(*async_error);
  bool pending = false;
  return poll_state("NCCL", pending);
}

bool NcclSession::register_memory(std::byte* memory, std::size_t bytes) {
  void* handle = nullptr;
  if (library().comm_register(comm_, memory, bytes, &handle) != nccl::success) return false;
  if (handle != nullptr) registered_.push_back(handle);
  return true;
}

void NcclSession::abort() {
  if (comm_ == nullptr) return;
  if (!run_with_timeout(library().comm_abort)) parts_.device->mark_unusable();
  comm_ = nullptr;
}

/// A peer may already have exited; that is not an error here.
bool NcclSession::finish() {
  if (!parts_.device->use()) return false;
  for (void* const handle : registered_) (void)library().comm_deregister(comm_, handle);
  const nccl::Status status = library().comm_finalize(comm_);
  if (status != nccl::success && status != nccl::in_progress) return false;
  const auto done = [&]() -> Result<bool> {
    bool pending = false;
    if (auto polled = poll_state("ncclCommFinalize", pending); !polled) return tl::unexpected(polled.error());
    return !pending;
  };
  if (!wait_until(done, cuda::never_cancel, Clock::now() + finish_limit, "ncclCommFinalize")) return false;
  if (!run_with_timeout(library().comm_destroy)) parts_.device->mark_unusable();
  comm_ = nullptr;
  return true;
}

/// Makes the last call with this communicator on its own thread, which is detached if the call does not return.
bool NcclSession::run_with_timeout(nccl::CommDestroy* last) {
  auto returned = std::make_shared<std::promise<void>>();
  auto future = returned->get_future();
  auto thread = start_thread_signals_blocked("nccl-end", [returned, last, comm = comm_, device = parts_.device] {
    if (device->use()) (void)last(comm);
    returned->set_value();
  });
  if (!thread) return false;
  if (future.wait_for(abort_limit) == std::future_status::ready) {
    thread->join();
    return true;
  }
  thread->detach();
  return false;
}

}  // namespace ddrun::collectives
