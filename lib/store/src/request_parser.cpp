#include "request_parser.hpp"

#include <algorithm>

namespace ddrun::store {

std::optional<Dialect> detect_dialect(std::string_view first_bytes) {
  static constexpr std::string_view greeting("\x00\xce\xf7\x85\x3c", 5);
  const std::size_t size = std::min(first_bytes.size(), greeting.size());
  if (first_bytes.substr(0, size) != greeting.substr(0, size)) return Dialect::old;
  if (size < greeting.size()) return std::nullopt;
  return Dialect::modern;
}

namespace {

using Status = RequestParser::Status;
using Refusal = RequestParser::Refusal;

/// Reads fields from the start of a request; keeps how many bytes are needed when they run out, or why it refuses.
class FieldReader {
 public:
  explicit FieldReader(std::string_view input) : input_(input) {}

  template <class Integer>
  Status integer(Integer& out) {
    if (input_.size() - at_ < sizeof out) return short_of(sizeof out);
    out = wire::load<Integer>(input_.data() + at_);
    at_ += sizeof out;
    return Status::complete;
  }

  Status key(std::string_view& out) { return bytes(wire::max_key, Refusal::long_key, out); }
  Status value(std::string_view& out) { return bytes(wire::max_value, Refusal::long_value, out); }

  [[nodiscard]] std::size_t at() const { return at_; }
  [[nodiscard]] std::size_t needed() const { return needed_; }
  [[nodiscard]] Refusal refusal() const { return refusal_; }

 private:
  Status bytes(std::uint64_t limit, Refusal beyond, std::string_view& out) {
    constexpr std::size_t prefix = sizeof(std::uint64_t);
    if (input_.size() - at_ < prefix) return short_of(prefix);
    const auto size = wire::load<std::uint64_t>(input_.data() + at_);
    if (size > limit) {
      refusal_ = beyond;
      return Status::refused;
    }
    if (input_.size() - at_ - prefix < size) return short_of(prefix + size);
    out = input_.substr(at_ + prefix, size);
    at_ += prefix + size;
    return Status::complete;
  }

  Status short_of(std::size_t more) {
    needed_ = at_ + more;
    return Status::incomplete;
  }

  std::string_view input_;
  std::size_t at_ = 1;  // behind the opcode
  std::size_t needed_ = 0;
  Refusal refusal_ = Refusal::none;
};

Status read_fields(FieldReader& in, Request& request) {
  using wire::Opcode;
  Status status = Status::complete;
  const auto key = [&] { return (status = in.key(request.key)) == Status::complete; };
  const auto value = [&](std::string_view& out) { return (status = in.value(out)) == Status::complete; };
  switch (request.op) {
    case Opcode::validate:
    case Opcode::ping: return in.integer(request.number);
    case Opcode::get:
    case Opcode::delete_key:
    case Opcode::queue_pop:
    case Opcode::queue_len:
    case Opcode::watch_key: key(); return status;
    case Opcode::add:
    case Opcode::barrier:
      if (key()) status = in.integer(request.delta);
      return status;
    case Opcode::set:
    case Opcode::append:
    case Opcode::queue_push:
      if (key()) value(request.value);
      return status;
    case Opcode::compare_set:
      if (key() && value(request.value)) value(request.desired);
      return status;
    case Opcode::num_keys:
    case Opcode::list_keys:
    case Opcode::cancel_wait: return status;
    case Opcode::check:
    case Opcode::wait:
    case Opcode::multi_get:
    case Opcode::multi_set: break;  // of any length: next_items()
  }
  return Status::refused;
}

}  // namespace

Status RequestParser::next(std::string_view input, Request& request, std::size_t& consumed) {
  if (input.empty()) return wait_for(1);
  const auto op = opcode_of(dialect_, input.front());
  if (!op) return refuse(Refusal::unknown_opcode);
  request.op = *op;
  switch (request.op) {
    case wire::Opcode::check:
    case wire::Opcode::wait:
    case wire::Opcode::multi_get: return next_items(input, false, request, consumed);
    case wire::Opcode::multi_set: return next_items(input, true, request, consumed);
    default: break;
  }
  FieldReader in(input);
  const Status status = read_fields(in, request);
  if (status == Status::incomplete) return wait_for(in.needed());
  if (status == Status::refused) return refuse(in.refusal());
  if (status == Status::complete) {
    consumed = in.at();
    needed_ = 1;
  }
  return status;
}

Status RequestParser::next_items(std::string_view input, bool pairs, Request& request, std::size_t& consumed) {
  constexpr std::size_t head = 1 + sizeof(std::uint64_t);
  constexpr std::size_t prefix = sizeof(std::uint64_t);
  if (input.size() < head) return wait_for(head);
  const auto count = wire::load<std::uint64_t>(input.data() + 1);
  if (scanned_ == 0) {
    if (count > wire::max_keys) return refuse(Refusal::many_keys);
    scanned_ = head;
    items_left_ = pairs ? 2 * count : count;
  }
  for (; items_left_ > 0; --items_left_) {
    if (input.size() - scanned_ < prefix) return wait_for(scanned_ + prefix);
    const auto size = wire::load<std::uint64_t>(input.data() + scanned_);
    const bool is_value = pairs && items_left_ % 2 == 1;
    if (size > (is_value ? wire::max_value : wire::max_key)) {
      return refuse(is_value ? Refusal::long_value : Refusal::long_key);
    }
    if (scanned_ + prefix + size > wire::max_message) return refuse(Refusal::long_request);
    if (input.size() - scanned_ - prefix < size) return wait_for(scanned_ + prefix + size);
    scanned_ += prefix + size;
  }
  request.count = count;
  request.items = input.substr(head, scanned_ - head);
  consumed = scanned_;
  scanned_ = 0;
  needed_ = 1;
  return Status::complete;
}

}  // namespace ddrun::store
