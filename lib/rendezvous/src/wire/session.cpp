#include "session.hpp"

#include "codec.hpp"
#include "ddrun/base/listener.hpp"

namespace ddrun::rendezvous {

void Session::connect(SessionKeys keys) {
  disconnect();
  keys_.emplace(std::move(keys));
}

void Session::take_connection(Session& other) {
  connect(std::move(*other.keys_));
  in_.assign(other.in_, other.in_begin_);
  other.disconnect();
}

void Session::open() {
  is_open_ = true;
  for (const auto& [type, payload] : unconfirmed_) keys_->sealer.seal(type, payload, out_);
}

void Session::disconnect() {
  keys_.reset();
  is_open_ = false;
  empty_buffer(in_);
  empty_buffer(out_);
  in_begin_ = out_begin_ = 0;
}

FrameOpener::Status Session::next(FrameOpener::Frame& frame, std::size_t max_size) {
  if (!keys_) return FrameOpener::Status::incomplete;
  const auto status = keys_->opener.next(std::string_view(in_).substr(in_begin_), frame, max_size);
  if (status == FrameOpener::Status::whole) {
    in_begin_ += frame.size;
    if (is_sequenced(frame.type)) ++received_;
  } else if (status == FrameOpener::Status::incomplete) {
    if (has_partial_input()) in_.erase(0, in_begin_);
    else std::string().swap(in_);  // most agents are idle most of the time
    in_begin_ = 0;
  }
  return status;
}

void Session::send(std::uint8_t type, std::string_view payload) {
  const bool is_kept = is_sequenced(type);
  if (is_kept) {
    unconfirmed_.emplace_back(type, payload);
    unconfirmed_bytes_ += payload.size();
  }
  if (keys_ && (is_open_ || !is_kept)) keys_->sealer.seal(type, payload, out_);
}

bool Session::confirm(std::uint64_t received) {
  if (received < confirmed_ || received - confirmed_ > unconfirmed_.size()) return false;
  const auto end = unconfirmed_.begin() + static_cast<std::ptrdiff_t>(received - confirmed_);
  for (auto message = unconfirmed_.begin(); message != end; ++message) unconfirmed_bytes_ -= message->second.size();
  unconfirmed_.erase(unconfirmed_.begin(), end);
  confirmed_ = received;
  return true;
}

void Session::sent(std::size_t size) {
  out_begin_ += size;
  if (out_begin_ == out_.size()) {
    empty_buffer(out_);
    out_begin_ = 0;
  } else if (out_begin_ > out_.size() / 2) {
    out_.erase(0, out_begin_);
    out_begin_ = 0;
  }
}

void PacedAnswers::add(const Stacks& answer) {
  parts_.clear();
  std::size_t at = 0;
  do {
    std::string part = answer.part.substr(at, max_answer_part);
    at += max_answer_part;
    parts_.push_back({answer.number, at >= answer.part.size(), std::move(part)});
  } while (at < answer.part.size());
}

std::optional<Stacks> PacedAnswers::next(const Session& session) {
  if (parts_.empty() || session.confirmed() < last_) return std::nullopt;
  last_ = session.sent_messages() + 1;
  Stacks part = std::move(parts_.front());
  parts_.pop_front();
  return part;
}

}  // namespace ddrun::rendezvous
