#include "voting_lease.hpp"

#include <algorithm>
#include <atomic>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <random>
#include <string>
#include <utility>

#include "candidacy.hpp"
#include "ddrun/base/listener.hpp"
#include "ddrun/base/text.hpp"
#include "ddrun/lease/fence.hpp"
#include "ddrun/lease/teller.hpp"
#include "ddrun/lease/verdict_record.hpp"
#include "ddrun/rendezvous/secret.hpp"
#include "voter_link.hpp"
#include "voter_server.hpp"

// Sockets and clock for a Candidacy and, where this machine votes, for a Voter.

namespace ddrun::rendezvous {

namespace {

namespace asio = boost::asio;
using boost::system::error_code;
using lease::Callbacks;
using lease::Fence;
using lease::FenceClock;
using lease::LeaseOptions;

/// Without enough voters people are told after so long.
constexpr std::chrono::seconds time_until_trouble{2};
constexpr std::chrono::milliseconds pause_before_listening{100};
/// Of a voter, which is greeted more often than that.
constexpr Milliseconds longest_silence{15'000};

std::uint64_t random_number() {
  std::random_device device;
  return (std::uint64_t{device()} << 32U | device()) | 1U;
}

/// What voters and candidates must have in common: with other machines that vote there would be another majority.
std::string job_and_voters(const std::string& job, const std::vector<Endpoint>& voters) {
  std::string text = job;
  std::string_view before = " at ";
  for (const Endpoint& voter : voters) {
    text += concat(before, host_port_text(voter.host, voter.port));
    before = ",";
  }
  return text;
}

class VotingLease : public lease::Lease, public std::enable_shared_from_this<VotingLease> {
 public:
  VotingLease(const asio::any_io_executor& executor, LeaseOptions options, VotingOptions voting, Callbacks callbacks)
      : executor_(executor),
        options_(std::move(options)),
        voting_(std::move(voting)),
        teller_(executor, std::move(callbacks)),
        job_(job_and_voters(options_.job, voting_.voters)),
        candidacy_({voting_.voters.size(), random_id(), job_, options_.ttl, static_cast<unsigned>(random_number())}),
        timer_(executor),
        resign_timer_(executor),
        trouble_timer_(executor),
        listen_timer_(executor) {}

  Result<void> prepare() {
    auto fence = Fence::make(executor_, [this] { turn(); });
    if (!fence) return tl::unexpected(fence.error());
    fence_ = std::move(*fence);
    return {};
  }

  void close() {
    closed_ = true;
    teller_.close();
    links_.clear();
    server_.reset();
    fence_.reset();
    record_.drop();
    resigns_.clear();
    for (auto* timer : {&timer_, &resign_timer_, &trouble_timer_, &listen_timer_}) timer->cancel();
  }

  void start() override {
    links_.resize(voting_.voters.size());
    listen();
    for (std::size_t voter = 0; voter < links_.size(); ++voter) {
      if (voter != own_) connect(voter);
    }
    look_for_trouble();
    settle();
  }

  void campaign(std::string address) override {
    address_ = address;
    candidacy_.campaign(std::move(address), FenceClock::now());
    if (term_ != 0) teller_.leader({term_, address_, true});
    settle();
  }

  [[nodiscard]] bool leads() const override { return term_ != 0 && fence_->holds(); }

  void depose(std::uint64_t term) override {
    candidacy_.depose(term, FenceClock::now());
    settle();
  }

  void resign(Done done) override {
    record_.fail("gave the lease back before the verdict was recorded");
    candidacy_.resign(FenceClock::now());
    step_down();
    resigns_.push_back(std::move(done));
    resign_timer_.expires_after(options_.ttl);
    resign_timer_.async_wait([weak = weak_from_this()](const error_code& ec) {
      const auto self = weak.lock();
      if (ec || !self) return;
      self->resigned(fail(Errc::unavailable, "the lease was not given back: no machine that votes has answered"));
    });
    settle();
  }

  void record_verdict(std::string text, Done done) override {
    if (!record_.begin(std::move(text), std::move(done), candidacy_.verdict(), leads())) return;
    candidacy_.record(record_.text(), FenceClock::now());
    settle();
  }

 private:
  template <class What>
  void after(What what) {
    if (closed_) return;
    what();
    settle();
  }

  void turn() {
    after([&] { candidacy_.tick(FenceClock::now()); });
  }

  [[nodiscard]] const HmacKey* secret() const { return voting_.secret ? &*voting_.secret : nullptr; }

  void connect(std::size_t voter) {
    VoterLink::Callbacks callbacks;
    callbacks.on_connected = [this, voter] { after([&] { candidacy_.connected(voter, FenceClock::now()); }); };
    callbacks.on_disconnected = [this, voter] { after([&] { candidacy_.disconnected(voter, FenceClock::now()); }); };
    callbacks.on_answer = [this, voter](const VoteAnswer& answer) {
      after([&] { candidacy_.heard(voter, answer, FenceClock::now()); });
    };
    links_[voter] = std::make_unique<VoterLink>(executor_, voting_.voters[voter], secret(),
                                                std::min(2 * options_.ttl / 3, longest_silence), std::move(callbacks));
    links_[voter]->start();
  }

  /// The port may be that of an agent before this one on the same machine, or of another that votes there.
  void listen() {
    for (const std::size_t voter : voting_.mine) {
      auto listeners = open_listeners(voting_.addresses, voting_.voters[voter].port);
      if (!listeners && listeners.error().cause == std::errc::address_in_use) continue;
      if (!listeners) return teller_.unusable(listeners.error());
      server_ = std::make_unique<VoterServer>(executor_, std::move(*listeners), secret(),
                                              Voter(random_number(), job_, options_.ttl, FenceClock::now()),
                                              [this] { own_voter_changed(); });
      if (const auto started = server_->start(); !started) {
        server_.reset();
        return teller_.unusable(started.error());
      }
      own_ = voter;
      candidacy_.has_own(voter);
      if (links_[voter]) {
        links_[voter].reset();
        candidacy_.disconnected(voter, FenceClock::now());
      }
      return candidacy_.connected(voter, FenceClock::now());
    }
    if (voting_.mine.empty()) return;
    listen_timer_.expires_after(pause_before_listening);
    listen_timer_.async_wait([weak = weak_from_this()](const error_code& ec) {
      const auto self = weak.lock();
      if (!ec && self) self->after([&] { self->listen(); });
    });
  }

  /// Later, for this may be called while the voter is asked.
  void own_voter_changed() {
    asio::post(executor_, [weak = weak_from_this()] {
      const auto self = weak.lock();
      if (!self || self->closed_ || !self->server_) return;
      self->after([&] { self->candidacy_.heard(*self->own_, self->server_->state(), FenceClock::now()); });
    });
  }

  /// Sends what is to be sent, and tells what has changed.
  void settle() {
    for (auto asked = candidacy_.take_requests(); !asked.empty(); asked = candidacy_.take_requests()) {
      for (const auto& [voter, request] : asked) {
        if (voter != own_) links_[voter]->send(request);
        else candidacy_.heard(voter, server_->ask(request), FenceClock::now());
      }
    }
    const std::uint64_t term = candidacy_.term();
    if (term_ != 0 && term != term_) lost();
    if (term != 0) {
      fence_->renewed(candidacy_.held_since(), options_.ttl);
      if (term_.exchange(term) != term) teller_.leader({term, address_, true});
    } else if (const auto leader = candidacy_.leader()) {
      teller_.leader(*leader);
    } else {
      teller_.no_leader();
    }
    tell_verdict();
    if (!resigns_.empty() && candidacy_.released()) {
      resign_timer_.cancel();
      resigned({});
    }
    arm();
  }

  void resigned(const Result<void>& result) {
    for (auto& done : std::exchange(resigns_, {})) teller_.answer(std::move(done), result);
  }

  void tell_verdict() {
    if (const auto& verdict = candidacy_.verdict()) {
      if (told_verdict_ != verdict) teller_.verdict(*(told_verdict_ = verdict));
      record_.there_is(*verdict);
    } else if (record_.under_way() && candidacy_.refused()) {
      record_.fail("a machine that votes has another one", Errc::invalid_argument);
    }
  }

  void lost() {
    const std::string why = concat("the lease is lost: ", candidacy_.why_lost());
    record_.fail(why);
    step_down();
    teller_.lost(why);
  }

  void step_down() {
    term_ = 0;
    fence_->drop();
    teller_.forget_me();
  }

  void arm() {
    const auto next = candidacy_.next_deadline();
    if (!next) return;
    timer_.expires_after(std::chrono::ceil<std::chrono::microseconds>(*next - FenceClock::now()));
    timer_.async_wait([weak = weak_from_this()](const error_code& ec) {
      const auto self = weak.lock();
      if (!ec && self) self->turn();
    });
  }

  void look_for_trouble() {
    trouble_timer_.expires_after(time_until_trouble);
    trouble_timer_.async_wait([weak = weak_from_this()](const error_code& ec) {
      const auto self = weak.lock();
      if (ec || !self || self->closed_) return;
      self->tell_trouble();
      self->look_for_trouble();
    });
  }

  void tell_trouble() {
    const std::size_t there = candidacy_.voters_there();
    std::string troubles;
    std::size_t hopeless = 0;
    for (std::size_t voter = 0; voter < links_.size(); ++voter) {
      if (voter == own_) continue;
      std::string why = links_[voter]->trouble();
      if (const std::string& objection = candidacy_.objection(voter); !objection.empty()) {
        why = concat("the ddrun on ", host_port_text(voting_.voters[voter].host, voting_.voters[voter].port), " ",
                     objection);
      }
      if (why.empty()) continue;
      troubles += concat(troubles.empty() ? "" : "; ", why);
      if (links_[voter]->is_hopeless() || !candidacy_.objection(voter).empty()) ++hopeless;
    }
    const std::string few =
        concat("only ", there, " of the ", links_.size(), " machines of --rdzv-endpoint answer, and ",
               candidacy_.majority(), " are needed to say who leads: ", troubles);
    if (hopeless > links_.size() - candidacy_.majority() && !worked_) {
      trouble_timer_.cancel();
      return teller_.unusable(Error{Errc::invalid_argument, few, {}});
    }
    if (there >= candidacy_.majority()) {
      if (std::exchange(in_trouble_, false)) {
        teller_.trouble(
            concat("enough of the machines of --rdzv-endpoint answer again (", there, " of ", links_.size(), ")"));
      }
      worked_ = true;
    } else if (!std::exchange(in_trouble_, true)) {
      teller_.trouble(few);
    }
  }

  asio::any_io_executor executor_;
  LeaseOptions options_;
  VotingOptions voting_;
  lease::Teller teller_;
  std::string job_;  ///< and who votes
  Candidacy candidacy_;
  asio::steady_timer timer_, resign_timer_, trouble_timer_, listen_timer_;
  std::unique_ptr<Fence> fence_;
  std::optional<std::size_t> own_;  ///< the voter that is this process
  std::unique_ptr<VoterServer> server_;
  std::vector<std::unique_ptr<VoterLink>> links_;  ///< none to the own one
  std::string address_;
  std::atomic<std::uint64_t> term_ = 0;
  std::optional<std::string> told_verdict_;
  lease::VerdictRecord record_{teller_};
  std::vector<Done> resigns_;  ///< to be told when the votes are given back
  bool worked_ = false;        ///< more than half were there once
  bool in_trouble_ = false;    ///< as people were told
  bool closed_ = false;
};

}  // namespace

Result<std::shared_ptr<lease::Lease>> make_voting_lease(const asio::any_io_executor& executor,
                                                        const LeaseOptions& options, VotingOptions voting,
                                                        Callbacks callbacks) {
  if (const auto right = lease::check_options(options); !right) return tl::unexpected(right.error());
  auto lease = std::make_shared<VotingLease>(executor, options, std::move(voting), std::move(callbacks));
  if (const auto ready = lease->prepare(); !ready) return tl::unexpected(ready.error());
  return std::shared_ptr<lease::Lease>(lease.get(), [lease](lease::Lease*) { lease->close(); });
}

}  // namespace ddrun::rendezvous
