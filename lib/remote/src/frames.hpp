#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

#include "ddrun/base/result.hpp"
#include "wiped.hpp"

namespace ddrun::remote {

// What goes through an ssh connection once ddrun runs on both sides: frames of
//   4 bytes  length of the payload, most significant byte first
//   4 bytes  index of the host that it is for or from
//   1 byte   FrameType
//   payload
// Both sides are the same build, so nothing here needs to stay as it is.

enum class FrameType : std::uint8_t {
  // To a host.
  fan_out = 1,  ///< JSON: further hosts that this one is to start
  start,        ///< the job's secret, a newline, JSON: Bootstrap
  signal,       ///< the signal's number in one byte; another one if it is a repetition, and meant
  input,        ///< for the workers' standard input; empty: its end
  ping,         ///< nothing; that it comes is enough
  // From a host.
  hello,        ///< JSON: addresses under which others may reach it
  out,          ///< what its workers and ddrun wrote
  err,          ///<
  events,       ///< lines for --events, of the first host; empty: some were lost, as too much waited for the connection
  report,       ///< a part of what --report is to hold, of the first host; empty: that was all
  listening,    ///< the coordinator's port as text
  input_taken,  ///< so many bytes of `input` were passed on, as text
  ended,        ///< its ddrun has ended; the exit code as text
  failed,       ///< it could not be started or is lost; why
  alive,        ///< nothing, as ping
};

struct Frame {
  FrameType type;
  std::uint32_t host;
  std::string_view payload;  ///< valid during the call that hands it out
};

/// Says "the host at the other end of this link": a host does not know its own index at first.
constexpr std::uint32_t this_host = 0xffffffff;

/// No payload is longer.
constexpr std::size_t longest_payload = std::size_t{16} << 20U;

/// The payload of FrameType::signal.
inline std::string signal_payload(int signal, bool at_once = false) {
  return std::string(1, static_cast<char>(signal)) + (at_once ? "!" : "");
}

void append_frame(WipedString& to, FrameType type, std::uint32_t host, std::string_view payload);

/// Cuts a stream of bytes into frames. No copy of a frame that has a secret is left behind.
class FrameReader {
 public:
  /// Calls `on_frame(const Frame&)` for each frame that `bytes` completes. Fails with `protocol` for one that is too
  /// long; nothing can be read after that.
  template <class OnFrame>
  Result<void> feed(std::string_view bytes, OnFrame&& on_frame) {
    partial_.append(bytes);
    std::size_t at = 0;
    bool secret = false;
    while (partial_.size() - at >= header_size) {
      const std::size_t length = number(at);
      if (length > longest_payload) return fail(Errc::protocol, "a frame is too long");
      if (partial_.size() - at - header_size < length) break;
      const Frame frame{static_cast<FrameType>(partial_[at + 8]), number(at + 4),
                        std::string_view(partial_).substr(at + header_size, length)};
      at += header_size + length;
      secret = secret || frame.type == FrameType::start;
      on_frame(frame);
    }
    if (secret) WipedString(partial_, at).swap(partial_);
    else partial_.erase(0, at);
    return {};
  }

 private:
  static constexpr std::size_t header_size = 9;
  [[nodiscard]] std::uint32_t number(std::size_t at) const;
  WipedString partial_;
};

/// The two sides of a connection let each other know that they are there.
constexpr std::chrono::seconds ping_interval{5};
/// Who hears nothing for so long takes the connection for lost. (An end-of-file is believed at once.)
constexpr std::chrono::seconds longest_silence{30};

}  // namespace ddrun::remote
