#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "ddrun/base/result.hpp"

// What an agent and a machine of --rdzv-endpoint=a,b,c say to each other about who leads: PROTOCOL.md, section 11.
namespace ddrun::rendezvous {

/// No job gets there; what is above is refused, so that the next one is a number, too.
inline constexpr std::uint64_t highest_term = std::uint64_t{1} << 62U;

inline constexpr std::uint8_t vote_request_type = 32;
inline constexpr std::uint8_t vote_answer_type = 96;
/// Payload of either, bytes.
inline constexpr std::size_t max_vote_payload = 64 * 1024;

/// From an agent.
struct VoteRequest {
  enum class Kind : std::uint8_t {
    enter,    ///< first, and again as a sign of life: `text` is the job, `term` the highest that the agent has heard of
    vote,     ///< `candidate` wants to lead in `term`
    hold,     ///< it leads, and is to be found at `text`
    release,  ///< it does not want to, or does not lead any more
    depose,   ///< who leads in `term` has ended
    record,   ///< the one that leads: `text` is how the job has ended
  };
  Kind kind = Kind::enter;
  std::uint64_t number = 0;  ///< above 0; comes back in the answer
  std::uint64_t term = 0;
  std::string candidate;
  std::string text;
  std::uint32_t ttl_ms = 0;
  bool sure = false;  ///< of a verdict: more than half have it

  bool operator==(const VoteRequest&) const = default;
};

/// To an agent: an answer, or, with number 0, what has changed.
struct VoteAnswer {
  enum class Ballot : std::uint8_t {
    no,
    yes,
    fresh,      ///< yes, but this voter has begun lately and does not know whom it may have voted for before
    other_job,  ///< another job, or another time to live: `verdict` is a sentence about it
  };
  std::uint64_t number = 0;
  Ballot ballot = Ballot::no;
  std::uint64_t voter = 0;        ///< which one answers: random, for its lifetime
  std::uint64_t voted = 0;        ///< the highest term that it has voted for
  std::uint64_t seen = 0;         ///< the highest term that anybody is known to have led in
  std::uint64_t leader_term = 0;  ///< 0: none leads, as far as it knows
  std::string leader_address;
  std::string verdict;  ///< empty: there is none
  bool sure = false;

  bool operator==(const VoteAnswer&) const = default;
};

[[nodiscard]] std::string encode(const VoteRequest& request);
[[nodiscard]] std::string encode(const VoteAnswer& answer);

/// Bytes behind the last field are passed over. Fail with `protocol`.
[[nodiscard]] Result<VoteRequest> decode_vote_request(std::string_view payload);
[[nodiscard]] Result<VoteAnswer> decode_vote_answer(std::string_view payload);

}  // namespace ddrun::rendezvous
