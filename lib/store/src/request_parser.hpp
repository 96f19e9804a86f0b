#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <optional>
#include <string_view>

#include "wire.hpp"

namespace ddrun::store {

/// The two ways PyTorch's clients have spoken: since 2.1 ("modern"), with a greeting, and before ("old"), without one
/// and with other numbers for the requests.
enum class Dialect : std::uint8_t { modern, old };

/// The dialect of a connection, from its first bytes; nothing while these are a beginning of the greeting. No request
/// of the old dialect begins like the whole greeting: as a SET it would have a key of over a gigabyte.
[[nodiscard]] std::optional<Dialect> detect_dialect(std::string_view first_bytes);

/// The meaning of a request's first byte in the dialect.
[[nodiscard]] inline std::optional<wire::Opcode> opcode_of(Dialect dialect, char byte) {
  using wire::Opcode;
  const auto number = static_cast<unsigned char>(byte);
  if (dialect == Dialect::modern) {
    if (number > static_cast<unsigned char>(Opcode::barrier)) return std::nullopt;
    return static_cast<Opcode>(number);
  }
  constexpr Opcode meaning[] = {Opcode::set,  Opcode::compare_set, Opcode::get,       Opcode::add,       Opcode::check,
                                Opcode::wait, Opcode::num_keys,    Opcode::watch_key, Opcode::delete_key};
  if (number >= std::size(meaning)) return std::nullopt;
  return meaning[number];
}

/// One whole request. Its views point into the parser's input.
struct Request {
  wire::Opcode op{};
  std::string_view key;
  std::string_view value;    ///< SET, APPEND, QUEUE_PUSH; the expected value of COMPARE_SET
  std::string_view desired;  ///< COMPARE_SET
  std::int64_t delta = 0;    ///< ADD; the number of members of BARRIER
  std::uint32_t number = 0;  ///< VALIDATE: magic, PING: nonce
  std::uint64_t count = 0;   ///< keys or pairs in `items`
  std::string_view items;    ///< CHECK, WAIT, MULTI_GET, MULTI_SET: the fields after the count; read with ItemReader
};

/// Walks `Request::items`, which the parser has checked.
class ItemReader {
 public:
  explicit ItemReader(std::string_view items) : at_(items.data()) {}
  [[nodiscard]] std::string_view next() {
    const auto size = wire::load<std::uint64_t>(at_);
    const std::string_view item(at_ + sizeof size, size);
    at_ += sizeof size + size;
    return item;
  }

 private:
  const char* at_;
};

/// Parses requests from a stream of bytes that may be split anywhere.
///
/// Call next() with all bytes not consumed yet. After `incomplete`, call it again with the same bytes and more, best
/// with at least needed() of them: a request is scanned once, however small the pieces.
class RequestParser {
 public:
  enum class Status {
    complete,    ///< `request` is filled, `consumed` bytes belonged to it
    incomplete,  ///< nothing consumed
    refused,     ///< unknown opcode or a limit exceeded, see refusal(): close the connection
  };
  enum class Refusal : std::uint8_t { none, unknown_opcode, long_key, long_value, many_keys, long_request };

  /// Before the first request; modern unless said otherwise.
  void set_dialect(Dialect dialect) { dialect_ = dialect; }

  [[nodiscard]] Status next(std::string_view input, Request& request, std::size_t& consumed);

  /// With fewer bytes than this `next` would be `incomplete` again.
  [[nodiscard]] std::size_t needed() const { return needed_; }

  [[nodiscard]] Refusal refusal() const { return refusal_; }

 private:
  [[nodiscard]] Status next_items(std::string_view input, bool pairs, Request& request, std::size_t& consumed);
  [[nodiscard]] Status wait_for(std::size_t bytes) {
    needed_ = bytes;
    return Status::incomplete;
  }
  [[nodiscard]] Status refuse(Refusal why) {
    refusal_ = why;
    return Status::refused;
  }

  Dialect dialect_ = Dialect::modern;
  Refusal refusal_ = Refusal::none;
  std::size_t needed_ = 1;
  // Progress within a request of many items, so that no item is looked at twice.
  std::size_t scanned_ = 0;
  std::uint64_t items_left_ = 0;
};

}  // namespace ddrun::store
