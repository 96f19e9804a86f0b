#pragma once

#include <cstddef>
#include <string>
#include <utility>

#include "ddrun/base/ip_address.hpp"
#include "ddrun/base/unique_fd.hpp"
#include "ddrun/rendezvous/coordinator.hpp"
#include "frames.hpp"
#include "handshake.hpp"

// What the coordinator's server keeps of a connection, before and after its agent has said who it is.

namespace ddrun::rendezvous {

/// A connection that is not authenticated. Answers are as short as the room that every new connection has.
struct Newcomer {
  Newcomer(UniqueFd socket, const IpAddress& from, const HmacKey* secret)
      : fd(std::move(socket)), address(from), handshake(secret, random_nonce()) {}
  UniqueFd fd;
  IpAddress address;
  CoordinatorHandshake handshake;
};
static_assert(sizeof(Newcomer) < 256 - 64, "what a stranger can cost, with its place in the list");

/// One that is served.
struct Job {
  explicit Job(CoordinatorOptions options) : coordinator(std::move(options)) {}
  Coordinator coordinator;
  std::size_t links = 0;
};

/// An agent's connection; authenticated where that is asked for.
struct Link {
  Link(Newcomer& newcomer, SessionKeys keys)
      : fd(std::move(newcomer.fd)),
        address(newcomer.address),
        sealer(std::move(keys.sealer)),
        opener(std::move(keys.opener)) {}
  enum class State {
    new_here,  ///< has not said Join
    joined,
    closing,  ///< the coordinator has said its last word
    gone,     ///< broken; to be forgotten at the end of this turn
  };

  UniqueFd fd;
  IpAddress address;
  FrameSealer sealer;
  FrameOpener opener;
  Job* job = nullptr;
  State state = State::new_here;
  bool said_end = false;         ///< all is sent, and our direction is closed
  bool watched_for_out = false;  ///< also waits for room to send
  bool to_be_flushed = false;
  std::string in;   ///< not yet a whole frame
  std::string out;  ///< not yet taken by the system, from out_begin on
  std::size_t out_begin = 0;
  std::string how_lost;
};

}  // namespace ddrun::rendezvous
