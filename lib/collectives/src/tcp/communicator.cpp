#include "tcp/communicator.hpp"

#include "copy.hpp"
#include "ddrun/base/text.hpp"
#include "ddrun/store/tcp_client.hpp"

namespace ddrun::collectives {

namespace {

/// One stream is one flow, which the network handles with one queue and one processor.
constexpr int streams_between_machines = 4;

}  // namespace

Result<std::unique_ptr<TcpCommunicator>> TcpCommunicator::connect(const Group& group, const TcpOptions& options,
                                                                  Deadline deadline) {
  if (options.streams < 0 || options.streams > TcpLinks::max_streams) {
    return fail(Errc::invalid_argument, concat("a link cannot have ", options.streams, " streams: give 1 to ",
                                               TcpLinks::max_streams, ", or 0 for a number that is chosen"));
  }
  auto links = TRY(TcpLinks::connect(group, deadline));
  const int chosen = links.one_machine() ? 1 : streams_between_machines;
  const int streams = options.streams == 0 ? chosen : options.streams;
  const TransferOptions transfer{streams, !options.oversubscribed};
  std::unique_ptr<TcpCommunicator> made(new TcpCommunicator(group, std::move(links), options, transfer));
  TRY(made->buffers_.allocate(made->distance_, 2));
  return made;
}

TcpCommunicator::TcpCommunicator(Group group, TcpLinks links, const TcpOptions& options,
                                 const TransferOptions& transfer)
    : Communicator(group.rank, group.size),
      group_(std::move(group)),
      streams_(transfer.streams),
      transfer_(group_, std::move(links), transfer),
      plan_(options.plan.value_or(plan_for(group_.size))),
      buffer_bytes_(options.buffer_bytes),
      distance_(whole_pages(options.buffer_bytes)) {}

TcpCommunicator::~TcpCommunicator() {
  if (!failed_) transfer_.leave();
}

std::string TcpCommunicator::details() const {
  if (group_.size == 1) return {};
  return concat(streams_, streams_ == 1 ? " stream" : " streams");
}

std::optional<Error> TcpCommunicator::async_error() {
  if (group_.size == 1 || failed_) return std::nullopt;
  if (auto checked = transfer_.check_next_rank(); !checked) return first_failure(checked.error());
  return std::nullopt;
}

Result<void> TcpCommunicator::run(const Call& call, Deadline deadline) {
  if (group_.size == 1) {
    if (call.in != call.out) copy_bytes(call.out, call.in, call.bytes());
    return {};
  }
  transfer_.begin(call, deadline);
  const auto done = collectives::perform(transfer_, workspace_, plan_, call);
  if (!done) return tl::unexpected(first_failure(done.error()));
  return {};
}

/// A rank has links to some peers only. A failing rank writes the cause to the store before it closes its links, so
/// that peers that see the closed links report the first failure.
Error TcpCommunicator::first_failure(Error mine) {
  failed_ = true;
  const std::string text = concat(static_cast<int>(mine.code), ' ', mine.message);
  const auto first =
      group_.store->compare_set(group_.prefix + "failed", "", text, Clock::now() + std::chrono::seconds(2));
  transfer_.close();
  if (!first) return mine;
  const auto blank = first->find(' ');
  const auto code = parse_integer(std::string_view(*first).substr(0, blank), 0, static_cast<int>(Errc::cancelled));
  if (!code || blank == std::string::npos) return mine;
  mine.code = static_cast<Errc>(*code);
  mine.message = first->substr(blank + 1);
  return mine;
}

Result<BackendConnection> connect_tcp(const Ranks& ranks, Deadline deadline) {
  TcpOptions tcp;
  tcp.buffer_bytes = ranks.options.buffer_bytes;
  tcp.streams = ranks.options.tcp_streams;
  tcp.oversubscribed = is_oversubscribed(ranks.hosts, ranks.group.rank);
  return BackendConnection{TRY(TcpCommunicator::connect(ranks.group, tcp, deadline))};
}

}  // namespace ddrun::collectives
