#pragma once

#include <string.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "ddrun/base/bytes.hpp"
#include "ddrun/base/result.hpp"

namespace ddrun::remote {

/// Memory that is overwritten when it is given back, also when a container grows.
template <class T>
struct WipingAllocator {
  using value_type = T;
  WipingAllocator() = default;
  template <class U>
  WipingAllocator(const WipingAllocator<U>& /*other*/) noexcept {
  }  // NOLINT(google-explicit-constructor): as containers do
  T* allocate(std::size_t count) { return std::allocator<T>().allocate(count); }
  void deallocate(T* memory, std::size_t count) noexcept {
    ::explicit_bzero(memory, count * sizeof(T));
    std::allocator<T>().deallocate(memory, count);
  }
  bool operator==(const WipingAllocator&) const = default;
};

/// For texts in which there may be a secret. (One of less than 16 bytes lies in the object itself and is not wiped.)
using WipedString = std::basic_string<char, std::char_traits<char>, WipingAllocator<char>>;

inline void wipe(std::string& text) {
  ::explicit_bzero(text.data(), text.size());
  text.clear();
}

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
constexpr std::size_t max_payload_bytes = std::size_t{16} << 20U;

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
      if (length > max_payload_bytes) return fail(Errc::protocol, "a frame is too long");
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
  [[nodiscard]] std::uint32_t number(std::size_t at) const {
    return bytes::load<std::uint32_t, std::endian::big>(partial_.data() + at);
  }
  WipedString partial_;
};

/// A side that hears nothing for so long takes the connection for lost. (An end-of-file is believed at once.) 30 s; for
/// tests as many seconds as DDRUN_SSH_SILENCE says.
[[nodiscard]] std::chrono::seconds silence_timeout();
/// The two sides of a connection let each other know that they are there, six times within that.
[[nodiscard]] std::chrono::milliseconds ping_interval();

/// A host and the number by which frames name it.
struct Target {
  std::uint32_t index = 0;
  std::string host;       ///< as ssh gets it
  bool is_local = false;  ///< this very machine, which needs no ssh; never in an order
  bool operator==(const Target&) const = default;
};

/// The payload of `fan_out`: start these hosts in the way in which you were started.
struct FanOutOrder {
  std::vector<Target> targets;
  std::vector<std::string> ssh;              ///< the command's words
  std::string program;                       ///< where ddrun lies on the user's machine
  std::size_t width = 1;                     ///< so many at once; more are reached through those
  std::chrono::milliseconds start_limit{0};  ///< for each
};

[[nodiscard]] std::string to_json(const FanOutOrder& order);
[[nodiscard]] Result<FanOutOrder> fan_out_from_json(std::string_view text);

/// The payload of `hello`.
struct Hello {
  std::vector<std::string> addresses;  ///< under which it can be reached, the likeliest first
};

[[nodiscard]] std::string to_json(const Hello& hello);
[[nodiscard]] Result<Hello> hello_from_json(std::string_view text);

/// A host and those that it starts itself.
struct Branch {
  Target root;
  std::vector<Target> rest;
};

/// At most `width` branches of nearly equal size, in order; without more targets than that, each is a branch.
[[nodiscard]] std::vector<Branch> split_targets(const std::vector<Target>& targets, std::size_t width);

}  // namespace ddrun::remote
