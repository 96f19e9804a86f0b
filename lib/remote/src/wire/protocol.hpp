#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "ddrun/base/bytes.hpp"
#include "ddrun/base/result.hpp"
#include "ddrun/logs/piece_frames.hpp"

namespace ddrun::remote {

// The protocol on an ssh connection once ddrun runs on both sides: frames of
//   4 bytes  length of the payload, most significant byte first
//   1 byte   FrameType
//   payload
// Both sides are the same build, so it may change freely.

enum class FrameType : std::uint8_t {
  // Both ways.
  alive = 1,  ///< no payload; heartbeat
  // To a host.
  start,   ///< the job's secret, a newline, the encoded Bootstrap
  signal,  ///< the signal number in one byte; a second byte for a repetition that forces SIGKILL
  input,   ///< the workers' stdin; empty: end-of-file
  over,    ///< no payload; the job has ended: a host that is in no round ends
  ask,     ///< numbered(): a request for the job's socket there
  // From a host.
  hello,        ///< its addresses for other hosts, in the order to try, separated by spaces
  out,          ///< other text on the stdout of its ddrun, also of a worker that has the same
  err,          ///< the same of stderr
  events,       ///< lines for --events, of the coordinator; empty: lines were dropped because of back pressure
  report,       ///< a part of --report, of the coordinator; empty: complete
  listening,    ///< the coordinator's port as text
  in_round,     ///< no payload; its ddrun takes part in a round
  input_taken,  ///< number of `input` bytes forwarded, as text (flow control)
  answer,       ///< numbered(): a part of the reply to `ask`; empty: complete
  ended,        ///< its ddrun has exited; the exit code as text
  worker = logs::worker_frame,  ///< as logs/piece_frames.hpp says
  piece = logs::piece_frame,
};

struct Frame {
  FrameType type;
  std::string_view payload;  ///< valid during the callback only
};

/// Limit for a payload.
constexpr std::size_t max_payload_bytes = std::size_t{16} << 20U;

/// The payload of FrameType::signal.
inline std::string signal_payload(int signal, bool at_once = false) {
  return std::string(1, static_cast<char>(signal)) + (at_once ? "!" : "");
}

/// The payload of `ask` and `answer`: 4 bytes, the number of the question, most significant first, from 1 on; a text.
[[nodiscard]] std::string numbered(std::uint32_t number, std::string_view text);
/// Number 0 if it is none.
[[nodiscard]] std::pair<std::uint32_t, std::string_view> decode_numbered(std::string_view payload);

void append_frame(WipedString& to, FrameType type, std::string_view payload);

/// Splits a byte stream into frames. Buffers of frames with a secret are wiped.
class FrameReader {
 public:
  /// Calls `on_frame(const Frame&)` for each frame completed by `bytes`. Fails with `protocol` for a frame over the
  /// limit; the reader is then unusable.
  template <class OnFrame>
  Result<void> feed(std::string_view bytes, OnFrame&& on_frame) {
    partial_.append(bytes);
    std::size_t at = 0;
    bool secret = false;
    while (partial_.size() - at >= header_size) {
      const std::size_t length = bytes::load<std::uint32_t, std::endian::big>(partial_.data() + at);
      if (length > max_payload_bytes) return fail(Errc::protocol, "a frame is too long");
      if (partial_.size() - at - header_size < length) break;
      const Frame frame{static_cast<FrameType>(partial_[at + 4]),
                        std::string_view(partial_).substr(at + header_size, length)};
      at += header_size + length;
      secret = secret || frame.type == FrameType::start;
      on_frame(frame);
    }
    if (secret) WipedString(partial_, at).swap(partial_);
    else partial_.erase(0, at);
    return {};
  }

  /// The frames that `bytes` complete, unread, to be passed on; valid until the next call. Fails as feed() does.
  Result<std::string_view> whole(std::string_view bytes);

 private:
  static constexpr std::size_t header_size = 5;
  WipedString partial_;
  std::size_t passed_on_ = 0;  ///< by whole()
};

/// Heartbeat timeout: without data for this long the connection is lost. 30 s; tests set DDRUN_SSH_SILENCE in seconds.
[[nodiscard]] std::chrono::seconds silence_timeout();
/// Heartbeat interval of both sides, a sixth of the timeout.
[[nodiscard]] std::chrono::milliseconds ping_interval();

}  // namespace ddrun::remote
