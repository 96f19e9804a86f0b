#include "measure/buffers.hpp"

#include "ddrun/base/text.hpp"

namespace ddrun::allreduce {

namespace {

constexpr std::uint64_t kPage = 4096;

}  // namespace

std::uint64_t Buffers::of_back_end(const Options& options, std::uint64_t bytes) {
  return options.private_buffers ? 0 : bytes;
}

Result<void> Buffers::provide(collectives::Communicator& communicator, const Options& options, std::uint64_t bytes) {
  if (!options.private_buffers) {
    send_ = communicator.send_buffer();
    recv_ = communicator.recv_buffer();
    return {};
  }
  if (&communicator.memory() != &collectives::host_memory()) {
    return fail(Errc::invalid_argument,
                concat("--buffers: ", communicator.name(), " works on a device's memory, not on private memory"));
  }
  // Both begin at a page, as the back ends' do.
  const std::uint64_t apart = (bytes + kPage - 1) / kPage * kPage;
  if (auto got = own_.allocate(apart, 2); !got) return got;
  send_ = {own_.data(), bytes};
  recv_ = {own_.data() + apart, bytes};
  return {};
}

}  // namespace ddrun::allreduce
