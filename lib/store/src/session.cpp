#include "session.hpp"

namespace ddrun::store {

using wire::Opcode;

Session::Progress Session::handle(std::string_view input, std::string& replies, std::size_t enough) {
  Progress progress;
  // Whoever does not begin with the greeting is no client of ours: do not wait for the rest of what it may send.
  if (!greeted_ && !input.empty() && input.front() != static_cast<char>(Opcode::validate)) {
    progress.close = true;
    return progress;
  }
  Request request;
  for (;;) {
    std::size_t consumed = 0;
    switch (parser_.next(input.substr(progress.consumed), request, consumed)) {
      case RequestParser::Status::incomplete: return progress;
      case RequestParser::Status::refused: progress.close = true; return progress;
      case RequestParser::Status::complete: break;
    }
    progress.consumed += consumed;
    if (!apply(request, replies)) {
      progress.close = true;
      return progress;
    }
    if (replies.size() >= enough) {
      progress.paused = true;
      return progress;
    }
  }
}

bool Session::apply(const Request& request, std::string& replies) {
  if (greeted_ == (request.op == Opcode::validate)) return false;
  switch (request.op) {
    case Opcode::validate: greeted_ = true; return request.number == wire::magic;
    case Opcode::ping: wire::put(replies, request.number); return true;
    case Opcode::set: space_->set(request.key, request.value); return true;
    case Opcode::get: {
      const std::string* value = space_->find(request.key);
      wire::put_bytes(replies, value != nullptr ? std::string_view(*value) : std::string_view());
      return true;
    }
    case Opcode::add: {
      const auto sum = space_->add(request.key, request.delta);
      if (!sum) return false;
      wire::put(replies, *sum);
      return true;
    }
    case Opcode::check: {
      ItemReader keys(request.items);
      char answer = wire::check_ready;
      for (auto left = request.count; left > 0; --left) {
        if (space_->find(keys.next()) == nullptr) {
          answer = wire::check_not_ready;
          break;
        }
      }
      replies.push_back(answer);
      return true;
    }
    case Opcode::wait: return wait(request, replies);
    case Opcode::cancel_wait:
      space_->cancel(*waiter_);
      replies.push_back(wire::wait_cancelled);
      return true;
    case Opcode::compare_set:
      wire::put_bytes(replies, space_->compare_set(request.key, request.value, request.desired));
      return true;
    case Opcode::num_keys: wire::put(replies, static_cast<std::int64_t>(space_->size())); return true;
    case Opcode::delete_key: wire::put(replies, std::int64_t{space_->erase(request.key)}); return true;
    case Opcode::append: return space_->append(request.key, request.value, wire::max_message);
    case Opcode::multi_get: return multi_get(request, replies);
    case Opcode::multi_set: {
      ItemReader items(request.items);
      for (auto left = request.count; left > 0; --left) {
        const auto key = items.next();
        space_->set(key, items.next());
      }
      return true;
    }
  }
  return false;
}

bool Session::wait(const Request& request, std::string& replies) {
  if (waiter_->waiting()) return false;  // which of the two would the answer be for?
  ItemReader keys(request.items);
  for (auto left = request.count; left > 0; --left) space_->await(keys.next(), *waiter_);
  if (!waiter_->waiting()) replies.push_back(wire::wait_stopped);
  return true;
}

bool Session::multi_get(const Request& request, std::string& replies) {
  // A short request may name a long value often: look at the sum before copying anything.
  std::size_t size = 0;
  ItemReader measured(request.items);
  for (auto left = request.count; left > 0; --left) {
    const std::string* value = space_->find(measured.next());
    size += sizeof(std::uint64_t) + (value != nullptr ? value->size() : 0);
    if (size > wire::max_message) return false;
  }
  ItemReader keys(request.items);
  for (auto left = request.count; left > 0; --left) {
    const std::string* value = space_->find(keys.next());
    wire::put_bytes(replies, value != nullptr ? std::string_view(*value) : std::string_view());
  }
  return true;
}

}  // namespace ddrun::store
