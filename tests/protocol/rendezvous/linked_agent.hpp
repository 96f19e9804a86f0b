#pragma once

#include <boost/asio/io_context.hpp>
#include <chrono>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "agent_link.hpp"
#include "ddrun/base/io_context.hpp"
#include "ddrun/test/catch.hpp"
#include "ddrun/test/soon.hpp"
#include "raw_agent.hpp"

namespace ddrun::test {

/// Of an agent's workers, while its owner's thread is blocked.
struct Graces {
  Milliseconds whole{100};
  Milliseconds lost_sight = std::chrono::hours(1);
};

/// A link and a log of its callbacks.
struct Agent {
  explicit Agent(std::vector<Endpoint> coordinators, const std::string& secret = test_secret,
                 std::chrono::milliseconds timeout = std::chrono::seconds(20), const std::string& job = "job")
      : Agent(std::move(coordinators), options_with(secret), timeout, job) {}
  Agent(std::vector<Endpoint> coordinators, rendezvous::AgentLinkOptions options,
        std::chrono::milliseconds timeout = std::chrono::seconds(20), const std::string& job = "job",
        std::function<bool()> kill_workers = {}, Graces graces = {}) {
    options.coordinators = std::move(coordinators);
    options.join.job_id = job;
    if (options.join.host.empty()) options.join.host = options.join.agent_id = "linked";
    options.connect_by = Clock::now() + timeout;
    rendezvous::AgentLinkCallbacks callbacks;
    callbacks.on_message = [this](const rendezvous::FromCoordinator& message) { messages.push_back(message); };
    callbacks.on_lost = [this](const rendezvous::LinkLoss& loss) {
      lost = loss.error;
      unreachable = loss.unreachable;
    };
    callbacks.on_retry = [this](const std::string& why) { retries.push_back(why); };
    callbacks.on_not_listening = [this] { not_listening = true; };
    auto of_link = *make_io_context();
    rendezvous::serve_blocked_owner(options, *of_link, context.get_executor(), std::move(kill_workers), graces.whole,
                                    graces.lost_sight);
    link.emplace(context.get_executor(), std::move(of_link), std::move(options), std::move(callbacks));
  }

  /// Runs until the condition holds; false after 20 s.
  template <class Condition>
  bool run_until(Condition condition) {
    for (const auto end = soon(); Clock::now() < end;) {
      if (condition()) return true;
      context.restart();
      context.run_one_for(std::chrono::milliseconds(50));
    }
    return false;
  }
  template <class Message>
  std::optional<Message> wait_for() {
    std::optional<Message> wanted;
    run_until([&] {
      while (!wanted && taken < messages.size()) {
        if (const auto* message = std::get_if<Message>(&messages[taken++])) wanted = *message;
      }
      return wanted.has_value() || lost.has_value();
    });
    return wanted;
  }
  std::string end() {
    run_until([&] { return lost.has_value(); });
    return lost ? lost->message : "it did not end";
  }

  boost::asio::io_context context;
  std::vector<rendezvous::FromCoordinator> messages;
  std::size_t taken = 0;
  std::vector<std::string> retries;
  std::optional<Error> lost;
  bool unreachable = false;
  bool not_listening = false;
  std::optional<rendezvous::AgentLink> link;

 private:
  static rendezvous::AgentLinkOptions options_with(const std::string& secret) {
    rendezvous::AgentLinkOptions options;
    if (!secret.empty()) options.secret.emplace(secret);
    return options;
  }
};

inline bool has(const std::string& text, const std::string& part) {
  if (text.find(part) != std::string::npos) return true;
  UNSCOPED_INFO("'" << part << "' is not in: " << text);
  return false;
}

}  // namespace ddrun::test
