#include "vote_messages.hpp"

#include "ddrun/base/bytes.hpp"
#include "ddrun/base/text.hpp"

namespace ddrun::rendezvous {

using bytes::put;
using bytes::put_text;
using bytes::Reader;

std::string encode(const VoteRequest& request) {
  std::string payload;
  put(payload, static_cast<std::uint8_t>(request.kind));
  put(payload, request.number);
  put(payload, request.term);
  put_text(payload, request.candidate);
  put_text(payload, request.text);
  put(payload, request.ttl_ms);
  put(payload, static_cast<std::uint8_t>(request.sure));
  return payload;
}

std::string encode(const VoteAnswer& answer) {
  std::string payload;
  put(payload, answer.number);
  put(payload, static_cast<std::uint8_t>(answer.ballot));
  put(payload, answer.voter);
  put(payload, answer.voted);
  put(payload, answer.seen);
  put(payload, answer.leader_term);
  put_text(payload, answer.leader_address);
  put_text(payload, answer.verdict);
  put(payload, static_cast<std::uint8_t>(answer.sure));
  return payload;
}

Result<VoteRequest> decode_vote_request(std::string_view payload) {
  Reader from(payload);
  VoteRequest request;
  request.kind = from.choice<VoteRequest::Kind>(static_cast<std::uint8_t>(VoteRequest::Kind::record));
  request.number = from.number<std::uint64_t>();
  request.term = from.number<std::uint64_t>();
  request.candidate = from.text();
  request.text = from.text();
  request.ttl_ms = from.number<std::uint32_t>();
  request.sure = from.boolean();
  if (!from.ok()) return fail(Errc::protocol, concat("a request of ", payload.size(), " bytes that cannot be read"));
  return request;
}

Result<VoteAnswer> decode_vote_answer(std::string_view payload) {
  Reader from(payload);
  VoteAnswer answer;
  answer.number = from.number<std::uint64_t>();
  answer.ballot = from.choice<VoteAnswer::Ballot>(static_cast<std::uint8_t>(VoteAnswer::Ballot::other_job));
  answer.voter = from.number<std::uint64_t>();
  answer.voted = from.number<std::uint64_t>();
  answer.seen = from.number<std::uint64_t>();
  answer.leader_term = from.number<std::uint64_t>();
  answer.leader_address = from.text();
  answer.verdict = from.text();
  answer.sure = from.boolean();
  if (!from.ok()) return fail(Errc::protocol, concat("an answer of ", payload.size(), " bytes that cannot be read"));
  return answer;
}

}  // namespace ddrun::rendezvous
