#include "back_ends.hpp"

#include <gloo/allgather.h>
#include <gloo/allreduce.h>
#include <gloo/alltoall.h>
#include <gloo/barrier.h>
#include <gloo/broadcast.h>
#include <gloo/common/error.h>
#include <gloo/config.h>
#include <gloo/gather.h>
#include <gloo/reduce.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/store.h>
#include <gloo/scatter.h>
#include <gloo/transport/tcp/device.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <string>
#include <thread>

#include "ddrun/base/text.hpp"
#include "ddrun/collectives/communicator.hpp"
#include "ddrun/collectives/memory.hpp"
#include "ddrun/collectives/reduction.hpp"
#include "ddrun/store/tcp_client.hpp"
#include "exchange.hpp"

namespace ddrun::collectives {

namespace {

/// Adapts a group's store to Gloo's interface. Errors are thrown as gloo::IoException, as Gloo expects.
class GlooStore final : public gloo::rendezvous::Store {
 public:
  /// `group` must outlive this object.
  GlooStore(const Group& group, Deadline deadline) : group_(group), deadline_(deadline) {}

  void set(const std::string& key, const std::vector<char>& data) override;
  std::vector<char> get(const std::string& key) override;
  void wait(const std::vector<std::string>& keys) override;
  void wait(const std::vector<std::string>& keys, const std::chrono::milliseconds& timeout) override;

 private:
  [[nodiscard]] std::string name_of(const std::string& key) const { return group_.prefix + "gloo/" + key; }
  void wait_until(const std::vector<std::string>& keys, Deadline deadline);

  const Group& group_;
  Deadline deadline_;
};

template <class T>
void throw_on_error(const Result<T>& result) {
  if (!result) throw gloo::IoException(result.error().message);
}

void GlooStore::set(const std::string& key, const std::vector<char>& data) {
  throw_on_error(group_.store->set(name_of(key), {data.data(), data.size()}, deadline_));
}

std::vector<char> GlooStore::get(const std::string& key) {
  const auto value = group_.store->get(name_of(key), deadline_);
  throw_on_error(value);
  return {value->begin(), value->end()};
}

void GlooStore::wait(const std::vector<std::string>& keys) { wait_until(keys, deadline_); }

void GlooStore::wait(const std::vector<std::string>& keys, const std::chrono::milliseconds& timeout) {
  wait_until(keys, std::min(deadline_, Clock::now() + timeout));
}

void GlooStore::wait_until(const std::vector<std::string>& keys, Deadline deadline) {
  std::vector<std::string> names;
  for (const std::string& key : keys) names.push_back(name_of(key));
  throw_on_error(group_.store->wait(names, deadline));
}

using namespace std::chrono_literals;

std::chrono::milliseconds remaining(Deadline deadline) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now());
  return std::max(left, 1ms);  // Gloo takes 0 as no timeout
}

/// Removes Gloo's prefix "[file:line] ".
std::string describe(const std::exception& error) {
  const std::string_view what = error.what();
  const std::size_t end = what.starts_with('[') ? what.find("] ") : std::string_view::npos;
  return concat("gloo: ", end == std::string_view::npos ? what : what.substr(end + 2));
}

class GlooCommunicator final : public Communicator {
 public:
  GlooCommunicator(const Group& group, std::shared_ptr<gloo::rendezvous::Context> context,
                   std::shared_ptr<Communicator> control, std::size_t buffer_bytes)
      : Communicator(group.rank, group.size),
        context_(std::move(context)),
        control_(std::move(control)),
        buffer_bytes_(buffer_bytes) {}

  [[nodiscard]] Result<void> allocate() { return buffers_.allocate(distance(), 2); }

  [[nodiscard]] std::string_view name() const override { return "gloo"; }
  [[nodiscard]] std::string details() const override { return probe_gloo().value_or(""); }
  [[nodiscard]] std::optional<Error> async_error() override { return control_->async_error(); }
  [[nodiscard]] std::span<std::byte> send_buffer() override { return {buffers_.data(), buffer_bytes_}; }
  [[nodiscard]] std::span<std::byte> recv_buffer() override { return {buffers_.data() + distance(), buffer_bytes_}; }

  [[nodiscard]] std::string unsupported_reason(Collective collective, DataType type, ReduceOp op,
                                               bool in_place) const override {
    if (collective == Collective::reduce_scatter) return "gloo has no reduce_scatter of one result per rank";
    if (collective == Collective::all_to_all && in_place) return "gloo has no all_to_all in place";
    if (!reduces(collective)) return {};
    if (op == ReduceOp::avg) return "gloo has no avg";
    // Gloo reduces two inputs at a time, which would round each time.
    if (type == DataType::float16 || type == DataType::bfloat16) return concat("gloo does not reduce ", name_of(type));
    return {};
  }

 private:
  [[nodiscard]] std::size_t distance() const { return (buffer_bytes_ + 4095) / 4096 * 4096; }

  [[nodiscard]] Result<void> run(const Call& call, Deadline deadline) override {
    const Blocks blocks = blocks_of(call.collective, size());
    if (size() == 1) {
      if (call.in != call.out) std::memcpy(call.out, call.in, call.bytes() * blocks.in);
      return {};
    }
    if (call.bytes() == 0) return {};
    try {
      start(call, deadline);
      return {};
    } catch (const std::exception& error) {
      return tl::unexpected(explain(error, deadline));
    }
  }

  /// Gloo does not say which rank is gone; the control communicator does, possibly a little later.
  Error explain(const std::exception& error, Deadline deadline) {
    Error mine{Clock::now() >= deadline ? Errc::timeout : Errc::connection_lost, describe(error)};
    if (mine.code == Errc::timeout) return mine;
    for (const auto end = Clock::now() + 2s; Clock::now() < end;) {
      if (auto known = control_->async_error()) return *known;
      std::this_thread::sleep_for(2ms);
    }
    return mine;
  }

  void start(const Call& call, Deadline deadline) {
    switch (call.collective) {
      case Collective::barrier: return barrier(deadline);
      case Collective::all_reduce: return reduce_to_all(call, deadline);
      case Collective::reduce: return reduce_to_root(call, deadline);
      case Collective::broadcast: return broadcast(call, deadline);
      case Collective::all_gather: return copy_blocks<gloo::AllgatherOptions>(call, deadline, gloo::allgather);
      case Collective::all_to_all: return copy_blocks<gloo::AlltoallOptions>(call, deadline, gloo::alltoall);
      case Collective::gather: return gather(call, deadline);
      case Collective::scatter: return scatter(call, deadline);
      case Collective::send_recv: return send_recv(call, deadline);
      case Collective::reduce_scatter: break;  // see unsupported_reason()
    }
  }

  /// Gloo's interface takes non-const pointers to inputs.
  static char* input(const Call& call) { return reinterpret_cast<char*>(const_cast<std::byte*>(call.in)); }
  static char* output(const Call& call) { return reinterpret_cast<char*>(call.out); }

  template <class Options>
  Options make(Deadline deadline) {
    Options options(context_);
    options.setTimeout(remaining(deadline));
    return options;
  }

  /// Gloo's own functions are typed and drop NaN, so ddrun's kernels are used. The caller must align the data.
  static auto reduce_function(const Call& call, int ranks) {
    const auto reduce = kernels(call.type, call.op).reduce;
    return [reduce, ranks](void* to, const void* a, const void* b, std::size_t count) {
      const std::array<const void*, 2> in{a, b};
      reduce(in.data(), in.size(), &to, 1, 0, count, Stores::normal, ranks);
    };
  }

  /// Gloo takes the element size as a template argument.
  template <class Body>
  static void with_element(const Call& call, const Body& body) {
    switch (size_of(call.type)) {
      case 1: return body(std::uint8_t{});
      case 2: return body(std::uint16_t{});
      case 4: return body(std::uint32_t{});
      default: return body(std::uint64_t{});
    }
  }

  void barrier(Deadline deadline) {
    gloo::BarrierOptions options(context_);
    options.setTimeout(remaining(deadline));
    gloo::barrier(options);
  }

  void reduce_to_all(const Call& call, Deadline deadline) {
    auto options = make<gloo::AllreduceOptions>(deadline);
    with_element(call, [&]<class Element>(Element) {
      if (call.in != call.out) options.setInput(reinterpret_cast<Element*>(input(call)), call.count);
      options.setOutput(reinterpret_cast<Element*>(output(call)), call.count);
    });
    options.setReduceFunction(reduce_function(call, size()));
    gloo::allreduce(options);
  }

  void reduce_to_root(const Call& call, Deadline deadline) {
    // Every rank needs a buffer for partial results.
    std::byte* to = call.out;
    if (rank() != call.root) {
      scratch_.resize(call.bytes());
      to = scratch_.data();
    }
    auto options = make<gloo::ReduceOptions>(deadline);
    with_element(call, [&]<class Element>(Element) {
      if (call.in != to) options.setInput(reinterpret_cast<Element*>(input(call)), call.count);
      options.setOutput(reinterpret_cast<Element*>(to), call.count);
    });
    options.setRoot(call.root);
    options.setReduceFunction(reduce_function(call, size()));
    gloo::reduce(options);
  }

  void broadcast(const Call& call, Deadline deadline) {
    auto options = make<gloo::BroadcastOptions>(deadline);
    if (rank() == call.root && call.in != call.out) options.setInput(input(call), call.bytes());
    options.setOutput(output(call), call.bytes());
    options.setRoot(call.root);
    gloo::broadcast(options);
  }

  template <class Options>
  void copy_blocks(const Call& call, Deadline deadline, void (*run)(Options&)) {
    const Blocks blocks = blocks_of(call.collective, size());
    auto options = make<Options>(deadline);
    if (!collectives::in_place(call, rank(), size())) options.setInput(input(call), call.bytes() * blocks.in);
    options.setOutput(output(call), call.bytes() * blocks.out);
    run(options);
  }

  void gather(const Call& call, Deadline deadline) {
    auto options = make<gloo::GatherOptions>(deadline);
    options.setInput(input(call), call.bytes());
    if (rank() == call.root) options.setOutput(output(call), call.bytes() * static_cast<std::size_t>(size()));
    options.setRoot(call.root);
    gloo::gather(options);
  }

  void scatter(const Call& call, Deadline deadline) {
    auto options = make<gloo::ScatterOptions>(deadline);
    if (rank() == call.root) {
      std::vector<char*> blocks;
      for (int peer = 0; peer < size(); ++peer) {
        blocks.push_back(input(call) + static_cast<std::size_t>(peer) * call.bytes());
      }
      options.setInputs(blocks, call.bytes());
    }
    options.setOutput(output(call), call.bytes());
    options.setRoot(call.root);
    gloo::scatter(options);
  }

  void send_recv(const Call& call, Deadline deadline) {
    // Differs from the slots of Gloo's collectives.
    constexpr std::uint64_t message_slot = 0x64647275'6e000000ULL;
    if (call.to == rank()) {
      // `from` is this rank too.
      if (call.in != call.out) std::memcpy(call.out, call.in, call.bytes());
      return;
    }
    const bool in_place = call.in == call.out;
    if (in_place) scratch_.assign(call.in, call.in + call.bytes());
    auto out = context_->createUnboundBuffer(output(call), call.bytes());
    auto in =
        context_->createUnboundBuffer(in_place ? reinterpret_cast<char*>(scratch_.data()) : input(call), call.bytes());
    out->recv(call.from, message_slot);
    in->send(call.to, message_slot);
    if (!in->waitSend(remaining(deadline)) || !out->waitRecv(remaining(deadline))) throw gloo::IoException("aborted");
  }

  std::shared_ptr<gloo::rendezvous::Context> context_;
  std::shared_ptr<Communicator> control_;
  std::size_t buffer_bytes_;
  PrivateMemory buffers_;
  std::vector<std::byte> scratch_;
};

Result<std::shared_ptr<Communicator>> connect_gloo_library(const Group& group, std::size_t buffer_bytes,
                                                           std::shared_ptr<Communicator> control, Deadline deadline) {
  std::shared_ptr<gloo::rendezvous::Context> context;
  if (group.size > 1) {
    try {
      std::shared_ptr<gloo::transport::Device> device = gloo::transport::tcp::CreateDevice(group.address.c_str());
      context = std::make_shared<gloo::rendezvous::Context>(group.rank, group.size);
      context->setTimeout(remaining(deadline));
      GlooStore store(group, deadline);
      context->connectFullMesh(store, device);
    } catch (const std::exception& error) {
      return fail(Clock::now() >= deadline ? Errc::timeout : Errc::unavailable, describe(error));
    }
  }
  auto made = std::make_shared<GlooCommunicator>(group, std::move(context), std::move(control), buffer_bytes);
  TRY(made->allocate());
  return made;
}

}  // namespace

Result<std::string> probe_gloo() {
  return concat("gloo ", GLOO_VERSION_MAJOR, '.', GLOO_VERSION_MINOR, '.', GLOO_VERSION_PATCH);
}

Result<BackendConnection> connect_gloo(const Ranks& ranks, Deadline deadline) {
  auto control = TRY(connect_control(ranks, deadline));
  auto made = connect_gloo_library(ranks.group, ranks.options.buffer_bytes, control, deadline);
  const Result<void> mine = made ? Result<void>() : Result<void>(tl::unexpected(made.error()));
  TRY(agree(ranks.group, "with_gloo", mine, deadline));
  return BackendConnection{std::move(*made), "", std::move(control)};
}

}  // namespace ddrun::collectives
