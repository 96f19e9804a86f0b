// Handshakes of an agent and a coordinator with an attacker in between, who forwards, changes, inserts, reflects or
// replays bytes.
//
// Checks: a side with a secret completes the handshake only if it has received exactly the bytes that its peer, with
// the same secret, has sent in this session; splitting the bytes makes no difference.
#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "handshake.hpp"
#include "input.hpp"

using namespace ddrun::rendezvous;
using ddrun::fuzz::Input;

namespace {

Nonce nonce(std::uint8_t fill) {
  Nonce bytes;
  bytes.fill(fill);
  return bytes;
}

const std::array<HmacKey, 2> secrets{HmacKey("the secret of the job"), HmacKey("another secret")};

/// One side, and a copy that gets the same bytes one by one.
template <class Machine>
class Side {
 public:
  Side(const HmacKey* secret, std::uint8_t fill) : whole_(secret, nonce(fill)), bytewise_(secret, nonce(fill)) {
    if constexpr (requires { whole_.begin(); }) {
      sent_ = bytewise_sent_ = whole_.begin();
    }
  }

  void receive(std::string_view bytes) {
    while (!bytes.empty() && whole_.state() == HandshakeState::in_progress) receive_some(bytes);
  }
  [[nodiscard]] bool done() const { return whole_.state() == HandshakeState::done; }
  [[nodiscard]] const std::string& sent() const { return sent_; }
  [[nodiscard]] const std::string& received() const { return received_; }
  [[nodiscard]] SessionKeys keys() const { return whole_.keys(); }

 private:
  void receive_some(std::string_view& bytes) {
    auto left = bytes;
    whole_.feed(left, sent_);
    DDRUN_FUZZ_CHECK(left.size() <= bytes.size());
    DDRUN_FUZZ_CHECK(whole_.state() != HandshakeState::in_progress || left.empty());
    received_ += bytes.substr(0, bytes.size() - left.size());
    for (; !bytes.empty() && bytewise_.state() == HandshakeState::in_progress; bytes.remove_prefix(1)) {
      auto byte = bytes.substr(0, 1);
      bytewise_.feed(byte, bytewise_sent_);
    }
    bytes = left;
    DDRUN_FUZZ_CHECK(whole_.state() == bytewise_.state());
    DDRUN_FUZZ_CHECK(sent_ == bytewise_sent_);
    DDRUN_FUZZ_CHECK(sent_.size() <= hello_size + sizeof(Digest));
  }

  Machine whole_, bytewise_;
  std::string sent_, bytewise_sent_, received_;
};

std::string behind_hello(const std::string& sent) { return sent.substr(std::min(hello_size, sent.size())); }

/// Bytes sent by one side, changed or not.
std::string piece(Input& input, const std::string& of, std::size_t& from, std::uint8_t what) {
  std::string bytes = of.substr(std::min(from, of.size()), std::size_t{1} << what % 8);
  from += bytes.size();
  if (what % 16 >= 14 && !bytes.empty()) {
    auto& byte = bytes[input.byte() % bytes.size()];
    byte = static_cast<char>(byte ^ (1 << what % 8));
  }
  return bytes;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Input input(data, size);
  const auto flags = input.byte();
  const auto secret = [](unsigned choice) { return choice % 4 < 2 ? &secrets[choice % 4] : nullptr; };
  const HmacKey* const of_agent = secret(flags);
  const HmacKey* const of_coordinator = secret(flags / 4);

  // An earlier session, recorded by the attacker.
  Side<AgentHandshake> old_agent(&secrets[0], 1);
  Side<CoordinatorHandshake> old_coordinator(&secrets[0], 2);
  for (int turn = 0; turn < 2; ++turn) {
    old_coordinator.receive(std::string_view(old_agent.sent()).substr(old_coordinator.received().size()));
    old_agent.receive(std::string_view(old_coordinator.sent()).substr(old_agent.received().size()));
  }
  DDRUN_FUZZ_CHECK(old_agent.done() && old_coordinator.done());

  Side<AgentHandshake> agent(of_agent, 3);
  Side<CoordinatorHandshake> coordinator(of_coordinator, 4);
  std::array<std::size_t, 4> from{};
  while (!input.empty()) {
    const auto what = input.byte();
    switch (what / 32) {
      case 0: coordinator.receive(piece(input, agent.sent(), from[0], what)); break;
      case 1: agent.receive(piece(input, coordinator.sent(), from[1], what)); break;
      case 2: coordinator.receive(piece(input, old_agent.sent(), from[2], what)); break;
      case 3: agent.receive(piece(input, old_coordinator.sent(), from[3], what)); break;
      case 4: coordinator.receive(input.bytes(what % 32 + 1)); break;
      case 5: agent.receive(input.bytes(what % 32 + 1)); break;
      case 6:  // left out
        from[what % 4] += what % 8;
        break;
      default:  // sent back
        if (what % 2 == 0) agent.receive(behind_hello(agent.sent()));
        else coordinator.receive(behind_hello(coordinator.sent()));
    }
  }
  if (agent.done() && of_agent != nullptr) {
    DDRUN_FUZZ_CHECK(of_agent == of_coordinator);
    DDRUN_FUZZ_CHECK(agent.received() == coordinator.sent());
    DDRUN_FUZZ_CHECK(coordinator.received() == agent.sent());
  }
  if (coordinator.done() && of_coordinator != nullptr) {
    DDRUN_FUZZ_CHECK(of_agent == of_coordinator);
    DDRUN_FUZZ_CHECK(coordinator.received() == agent.sent());
  }
  if (agent.done() && coordinator.done() && of_agent != nullptr) {
    auto agent_keys = agent.keys(), coordinator_keys = coordinator.keys();
    std::string bytes;
    FrameOpener::Frame frame;
    DDRUN_FUZZ_CHECK(agent_keys.sealer.seal(1, "payload", bytes));
    DDRUN_FUZZ_CHECK(coordinator_keys.opener.next(bytes, frame) == FrameOpener::Status::whole);
    DDRUN_FUZZ_CHECK(agent_keys.opener.next(bytes, frame) == FrameOpener::Status::wrong_tag);
    DDRUN_FUZZ_CHECK(old_coordinator.keys().opener.next(bytes, frame) == FrameOpener::Status::wrong_tag);
  }
  return 0;
}
