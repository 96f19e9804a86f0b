#include "session.hpp"

#include "ddrun/base/text.hpp"

namespace ddrun::store {

using wire::Opcode;

namespace {

void put_value(std::string& to, const std::string* value) {
  wire::put_bytes(to, value != nullptr ? std::string_view(*value) : std::string_view());
}

std::string describe(const Request& request) {
  const std::string key(request.key);
  return concat(opcode_name(request.op), " of ", wire::describe_keys({&key, 1}));
}

}  // namespace

Session::Progress Session::handle(std::string_view input, std::string& replies, std::size_t enough) {
  Progress progress;
  if (stage_ == Stage::unknown && !begin(input)) return progress;
  Request request;
  for (;;) {
    std::size_t consumed = 0;
    request.key = {};
    switch (parser_.next(input.substr(progress.consumed), request, consumed)) {
      case RequestParser::Status::incomplete: return progress;
      case RequestParser::Status::refused: progress.close = !refuse_parsed(request); return progress;
      case RequestParser::Status::complete: break;
    }
    progress.consumed += consumed;
    if (!apply(request, consumed, replies)) {
      progress.close = true;
      return progress;
    }
    if (replies.size() >= enough) {
      progress.paused = true;
      return progress;
    }
  }
}

/// False while the dialect is not known.
bool Session::begin(std::string_view input) {
  const auto dialect = detect_dialect(input);
  if (!dialect) return false;
  dialect_ = *dialect;
  parser_.set_dialect(dialect_);
  stage_ = dialect_ == Dialect::modern ? Stage::greeting : Stage::open;
  return true;
}

bool Session::refuse(std::string why) {
  ++state_->refused;
  state_->refusal_reason = has_requested_ ? std::move(why) : std::string();
  return false;
}

bool Session::refuse_parsed(const Request& request) {
  using Refusal = RequestParser::Refusal;
  switch (parser_.refusal()) {
    case Refusal::long_key: return refuse(concat("a key of more than ", wire::max_key, " bytes"));
    case Refusal::long_value:
      return refuse(concat(request.key.empty() ? std::string(opcode_name(request.op)) : describe(request),
                           " with a value of more than ", wire::max_value, " bytes"));
    case Refusal::many_keys:
      return refuse(concat(opcode_name(request.op), " with more than ", wire::max_keys, " keys"));
    case Refusal::long_request:
      return refuse(concat(opcode_name(request.op), " of more than ", wire::max_message, " bytes in all"));
    case Refusal::unknown_opcode:
    case Refusal::none: break;
  }
  return refuse("an unknown kind of request");
}

/// Whether a request that stores something fits, by its own size: the size of a replaced value is not subtracted.
bool Session::has_room(const Request& request, std::size_t size) {
  switch (request.op) {
    case Opcode::set:
    case Opcode::compare_set:
    case Opcode::add:
    case Opcode::append:
    case Opcode::queue_push:
    case Opcode::barrier: size += 2 * KeySpace::overhead; break;
    case Opcode::multi_set: size += request.count * KeySpace::overhead; break;
    default: return true;
  }
  if (state_->has_room(size)) return true;
  return refuse_for_room(
      concat(request.key.empty() ? std::string(opcode_name(request.op)) : describe(request), ", ", size, " bytes,"));
}

/// To be called after a wait or watch was added, which is undone if it exceeds the limit.
bool Session::has_room_for_waits(const Request& request) {
  if (state_->has_room(0)) return true;
  state_->space.leave(*waiter_);
  return refuse_for_room(opcode_name(request.op));
}

bool Session::refuse_for_room(std::string_view what) {
  return refuse(
      concat(what, " for which there is no room: ", state_->memory(), " of ", state_->memory_limit, " bytes are used"));
}

bool Session::apply(const Request& request, std::size_t size, std::string& replies) {
  KeySpace& space = state_->space;
  if (stage_ == Stage::greeting) {
    if (request.op != Opcode::validate || request.number != wire::magic) return refuse({});
    stage_ = Stage::open;
    ++state_->requests[static_cast<std::size_t>(request.op)];
    return true;
  }
  has_requested_ = true;
  if (!has_room(request, size)) return false;
  ++state_->requests[static_cast<std::size_t>(request.op)];
  // The old dialect has no request to cancel a wait: any other request cancels it.
  if (dialect_ == Dialect::old && waiter_->waiting()) space.cancel(*waiter_);
  switch (request.op) {
    case Opcode::validate: return refuse("a second greeting");
    case Opcode::ping: wire::put(replies, request.number); return true;
    case Opcode::set: space.set(request.key, request.value); return true;
    case Opcode::get: put_value(replies, space.find(request.key)); return true;
    case Opcode::add: {
      const auto sum = space.add(request.key, request.delta);
      if (!sum) return refuse(concat(describe(request), ", whose value is not a number"));
      wire::put(replies, *sum);
      return true;
    }
    case Opcode::check: return check(request, replies);
    case Opcode::wait: return wait(request, replies);
    case Opcode::cancel_wait:
      space.cancel(*waiter_);
      replies.push_back(wire::wait_cancelled);
      return true;
    case Opcode::compare_set:
      wire::put_bytes(replies, space.compare_set(request.key, request.value, request.desired));
      return true;
    case Opcode::num_keys: wire::put(replies, static_cast<std::int64_t>(space.size())); return true;
    case Opcode::delete_key: wire::put(replies, std::int64_t{space.erase(request.key)}); return true;
    case Opcode::append:
      if (space.append(request.key, request.value, wire::max_message)) return true;
      return refuse(concat(describe(request), ", whose value would become longer than ", wire::max_message, " bytes"));
    case Opcode::multi_get: return multi_get(request, replies);
    case Opcode::multi_set: {
      ItemReader items(request.items);
      for (auto left = request.count; left > 0; --left) {
        const auto key = items.next();
        space.set(key, items.next());
      }
      return true;
    }
    case Opcode::queue_push: space.push(request.key, request.value); return true;
    case Opcode::queue_pop: {
      // The length is that before the removal; an element follows unless it is 0.
      wire::put(replies, static_cast<std::int64_t>(space.queue_size(request.key)));
      if (const auto element = space.pop(request.key, *waiter_)) wire::put_bytes(replies, *element);
      return true;
    }
    case Opcode::queue_len: wire::put(replies, static_cast<std::int64_t>(space.queue_size(request.key))); return true;
    case Opcode::list_keys: return list_keys(replies);
    case Opcode::barrier: return arrive(request, replies);
    case Opcode::watch_key:
      space.watch(request.key, *waiter_);
      if (!has_room_for_waits(request)) return false;
      replies.push_back(wire::watch_registered);
      return true;
  }
  return refuse("an unknown kind of request");
}

bool Session::check(const Request& request, std::string& replies) {
  ItemReader names(request.items);
  char answer = wire::check_ready;
  for (auto left = request.count; left > 0; --left) {
    if (!state_->space.exists(names.next())) {
      answer = wire::check_not_ready;
      break;
    }
  }
  replies.push_back(answer);
  return true;
}

bool Session::wait(const Request& request, std::string& replies) {
  if (waiter_->waiting()) return refuse("a second wait before the first one's end");  // the reply would be ambiguous
  ItemReader names(request.items);
  for (auto left = request.count; left > 0; --left) state_->space.await(names.next(), *waiter_);
  if (waiter_->waiting()) return has_room_for_waits(request);
  replies.push_back(wire::wait_stopped);
  return true;
}

bool Session::arrive(const Request& request, std::string& replies) {
  if (waiter_->waiting()) return refuse("a barrier before a wait's end");
  const auto waits = state_->space.arrive(request.key, request.delta, *waiter_);
  if (!waits) return refuse(concat(describe(request), ", whose value is not a number"));
  if (*waits) return has_room_for_waits(request);
  replies.push_back(wire::wait_stopped);
  return true;
}

bool Session::multi_get(const Request& request, std::string& replies) {
  // A short request may name a long value many times: check the sum before copying.
  std::size_t size = 0;
  ItemReader measured(request.items);
  for (auto left = request.count; left > 0; --left) {
    const std::string* value = state_->space.find(measured.next());
    size += sizeof(std::uint64_t) + (value != nullptr ? value->size() : 0);
    if (size > wire::max_message) {
      return refuse(concat("a MULTI_GET whose reply would be longer than ", wire::max_message, " bytes"));
    }
  }
  if (!state_->has_room(size)) return refuse(concat("a MULTI_GET for whose reply, ", size, " bytes, there is no room"));
  ItemReader keys(request.items);
  for (auto left = request.count; left > 0; --left) put_value(replies, state_->space.find(keys.next()));
  return true;
}

bool Session::list_keys(std::string& replies) {
  std::size_t size = sizeof(std::int64_t);
  state_->space.for_each_key([&](std::string_view key) { size += sizeof(std::uint64_t) + key.size(); });
  if (size > wire::max_message || !state_->has_room(size)) {
    return refuse(concat("a LIST_KEYS for whose reply, ", size, " bytes, there is no room"));
  }
  wire::put(replies, static_cast<std::int64_t>(state_->space.size()));
  state_->space.for_each_key([&](std::string_view key) { wire::put_bytes(replies, key); });
  return true;
}

void append_change(std::string& to, KeyChange change, std::string_view key, std::string_view before,
                   std::string_view now) {
  to.push_back(static_cast<char>(change));
  wire::put_bytes(to, key);
  wire::put_bytes(to, before);
  wire::put_bytes(to, now);
}

}  // namespace ddrun::store
