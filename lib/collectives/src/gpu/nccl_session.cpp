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

std::string in_digits(const nccl::UniqueId& id) { return in_hex(std::as_bytes(std::span(id.internal))); }

Result<nccl::UniqueId> from_digits(const std::string& text, std::size_t rank) {
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

Result<std::vector<nccl::UniqueId>> meet_for_nccl(const Group& group, const nccl::Library& library, int ranks_per_id,
                                                  Deadline deadline) {
  // Every so-many-th rank: those are on different machines, so each serves its part.
  const bool makes_one = group.rank % ranks_per_id == 0;
  nccl::UniqueId mine{};
  Result<void> made;
  if (makes_one) {
    const nccl::Status status = library.get_unique_id(&mine);
    if (status != nccl::success) {
      made = fail(Errc::unavailable, library.in_words("ncclGetUniqueId", status, nullptr));
    }
  }
  const std::string line =
      made ? concat(library.version, ' ', makes_one ? in_digits(mine) : "") : concat("! ", made.error().message);
  const auto lines = exchange(group, "nccl", line, deadline);
  if (!lines) return tl::unexpected(lines.error());
  std::vector<nccl::UniqueId> ids;
  const std::string ours = std::to_string(library.version);
  for (std::size_t rank = 0; rank < lines->size(); ++rank) {
    const std::string& said = (*lines)[rank];
    const std::string version = said.substr(0, said.find(' '));
    const std::string rest = said.substr(std::min(said.size(), version.size() + 1));
    if (version == "!") return fail(Errc::unavailable, concat("rank ", rank, ": ", rest));
    if (version != ours) {
      return fail(Errc::invalid_argument, concat("rank ", group.rank, " has NCCL version ", ours, ", rank ", rank,
                                                 " has ", version, ": all ranks must have the same"));
    }
    if (rest.empty()) continue;
    auto id = from_digits(rest, rank);
    if (!id) return tl::unexpected(id.error());
    ids.push_back(*id);
  }
  return ids;
}

namespace {

/// How long an orderly end may take, and an abort.
constexpr std::chrono::seconds finish_limit{5};
constexpr std::chrono::seconds abort_limit{10};

/// While NCCL meets, ranks know each other only through the store: a rank that fails says so there, and the others
/// look.
class FailureBoard {
 public:
  explicit FailureBoard(const Group& group)
      : group_(group), key_(group.prefix + "nccl/failed"), pause_(200 + group.size / 5) {}

  void tell(const Error& error) {
    if (group_.size == 1) return;
    (void)group_.store->compare_set(key_, "", concat("rank ", group_.rank, ": ", error.message), soon());
  }

  [[nodiscard]] Result<void> look() {
    if (group_.size == 1 || Clock::now() < next_) return {};
    next_ = Clock::now() + pause_;
    const auto there = group_.store->check({&key_, 1}, soon());
    if (!there || !*there) return {};
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
    ready = fail(Errc::unavailable, library.in_words(what, status, nullptr));
    made->comm_ = nullptr;
  } else {
    bool others_failed = false;
    const auto done = [&]() -> Result<bool> {
      bool going_on = false;
      if (auto looked = made->look(what, going_on); !looked) return tl::unexpected(looked.error());
      return !going_on;
    };
    const auto alarm = [&]() -> Result<void> {
      if (auto trouble = made->parts_.control->trouble()) return tl::unexpected(*trouble);
      auto looked = board.look();
      others_failed = !looked;
      return looked;
    };
    ready = wait_until(done, alarm, deadline, what);
    if (!ready && others_failed) {
      made->abort();
      return tl::unexpected(ready.error());
    }
  }
  if (ready) return made;
  board.tell(ready.error());
  made->abort();
  return tl::unexpected(ready.error());
}

NcclSession::~NcclSession() {
  if (comm_ != nullptr && !finish()) abort();
}

Result<void> NcclSession::look(const std::string& what, bool& going_on) {
  nccl::Status state = nccl::success;
  nccl::Status status = library().comm_get_async_error(comm_, &state);
  if (status == nccl::success) status = state;
  going_on = status == nccl::in_progress;
  if (going_on || status == nccl::success) return {};
  return fail(Errc::unavailable, library().in_words(what, status, comm_));
}

Result<void> NcclSession::settle(const std::string& what, nccl::Status status, Deadline deadline) {
  if (status == nccl::success) return {};
  if (status != nccl::in_progress) return fail(Errc::unavailable, library().in_words(what, status, comm_));
  const auto done = [&]() -> Result<bool> {
    bool going_on = false;
    if (auto looked = look(what, going_on); !looked) return tl::unexpected(looked.error());
    return !going_on;
  };
  const auto peers = [&]() -> Result<void> {
    if (auto trouble = parts_.control->trouble()) return tl::unexpected(*trouble);
    return {};
  };
  return wait_until(done, peers, deadline, what);
}

Result<void> NcclSession::alarm() {
  // A peer that is gone explains NCCL's own errors, so it comes first.
  if (auto trouble = parts_.control->trouble()) return tl::unexpected(*trouble);
  bool going_on = false;
  return look("NCCL", going_on);
}

bool NcclSession::register_memory(std::byte* memory, std::size_t bytes) {
  void* handle = nullptr;
  if (library().comm_register(comm_, memory, bytes, &handle) != nccl::success) return false;
  if (handle != nullptr) registered_.push_back(handle);
  return true;
}

void NcclSession::abort() {
  if (comm_ == nullptr) return;
  if (!within_bounds(library().comm_abort)) parts_.device->forsake();
  comm_ = nullptr;
}

/// What peers do is their affair: one that has ended already has nothing more to say.
bool NcclSession::finish() {
  if (!parts_.device->use()) return false;
  for (void* const handle : registered_) (void)library().comm_deregister(comm_, handle);
  const nccl::Status status = library().comm_finalize(comm_);
  if (status != nccl::success && status != nccl::in_progress) return false;
  const auto done = [&]() -> Result<bool> {
    bool going_on = false;
    if (auto looked = look("ncclCommFinalize", going_on); !looked) return tl::unexpected(looked.error());
    return !going_on;
  };
  const auto calm = []() -> Result<void> { return {}; };
  if (!wait_until(done, calm, Clock::now() + finish_limit, "ncclCommFinalize")) return false;
  if (!within_bounds(library().comm_destroy)) parts_.device->forsake();
  comm_ = nullptr;
  return true;
}

/// The last call with this communicator, on a thread of its own that is left behind if it does not return.
bool NcclSession::within_bounds(nccl::CommDestroy* last) {
  auto returned = std::make_shared<std::promise<void>>();
  auto future = returned->get_future();
  auto thread = start_quiet_thread("nccl-end", [returned, last, comm = comm_, device = parts_.device] {
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
