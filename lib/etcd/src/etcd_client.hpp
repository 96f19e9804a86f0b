#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/steady_timer.hpp>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ddrun/base/duration.hpp"
#include "ddrun/base/result.hpp"
#include "ddrun/etcd/etcd_lease.hpp"
#include "ddrun/helper/run.hpp"
#include "ddrun/lease/fence.hpp"
#include "etcd_answers.hpp"
#include "http_connection.hpp"
#include "stream.hpp"

namespace ddrun::etcd {

/// Asks an etcd of several members, one that answers: a member that fails or is silent for `bound` is left for the next
/// at once. Requests go one after the other, through one connection that stays; a watch has its own, to the same
/// member. It knows names, user and password, and what is a member's answer and what a stranger's, but nothing of
/// leaders.
class EtcdClient : public std::enable_shared_from_this<EtcdClient> {
 public:
  struct Events {
    std::function<void(std::string text)> on_trouble;
    std::function<void(Error error)> on_unusable;
    /// The member that is asked is another one: a watch belongs there too.
    std::function<void()> on_moved;
  };
  struct Endpoint {
    std::string host;
    std::uint16_t port = 0;
  };

  EtcdClient(const boost::asio::any_io_executor& executor, EtcdOptions options, std::vector<Endpoint> endpoints,
             StreamMaker streams, Milliseconds bound, Events events);

  void start();
  /// Nothing is called any more.
  void close();

  /// True if the answer was understood, and then it has been told to who asked.
  using Take = std::function<bool(const std::string& body)>;
  using Fail = std::function<void(const Error& error)>;
  /// POSTs `body` to `path` until an answer has come or it is `by`. `fail`: `timeout`; or etcd has refused:
  /// `not_found`, else `invalid_argument`, with its words. Each request may reach etcd more than once.
  void ask(std::string path, std::string body, Deadline by, Take take, Fail fail);
  /// When the request that is answered in this moment was sent.
  [[nodiscard]] lease::FenceClock::time_point sent() const { return sent_; }

  /// One at a time; another one, or close_watch(), ends it. `on_end` is told once.
  void watch(std::string body, std::function<void(std::string_view line)> on_line,
             std::function<void(std::string why)> on_end);
  void close_watch();

  /// What has failed last, for people; empty if all is well.
  [[nodiscard]] const std::string& trouble() const { return trouble_; }

 private:
  struct Member {
    Endpoint at;
    std::vector<boost::asio::ip::tcp::endpoint> addresses;
    helper::Running lookup;
    std::string why;
    bool for_good = false;
    [[nodiscard]] std::string name() const;
  };
  struct Question {
    std::string path, body;
    Deadline by;
    Take take;
    Fail fail;
    int tried = 0;
  };
  struct Target {
    std::size_t member;
    boost::asio::ip::tcp::endpoint address;
  };

  void look_up(std::size_t member);
  void set_targets();
  void next();
  void expire();
  void send();
  void answered(tl::expected<HttpAnswer, HttpFailure> answer);
  void understood(const HttpAnswer& answer);
  void refused(const EtcdError& error, unsigned status);
  void authenticated(const HttpAnswer& answer);
  void attempt_failed(std::string why, bool for_good);
  void pass_failed();
  void unusable(std::string why);
  void well();
  void pause(Milliseconds duration);
  [[nodiscard]] std::string request(const std::string& path, const std::string& body) const;
  [[nodiscard]] const Target& target() const { return targets_[current_ % targets_.size()]; }
  [[nodiscard]] std::unique_ptr<HttpConnection> connection() const;

  EtcdOptions options_;
  std::vector<Member> members_;
  StreamMaker streams_;
  Milliseconds bound_;
  Events events_;
  boost::asio::any_io_executor executor_;
  boost::asio::steady_timer timer_, watch_timer_;
  std::vector<Target> targets_;
  std::size_t current_ = 0;
  std::size_t failed_in_row_ = 0;
  std::size_t failed_passes_ = 0;
  Deadline looked_up_{};
  std::deque<Question> questions_;
  std::unique_ptr<HttpConnection> connection_, watch_;
  std::string token_, trouble_;
  lease::FenceClock::time_point sent_{};
  bool busy_ = false, pausing_ = false, authenticating_ = false, auth_is_off_ = false, closed_ = false;
  bool was_well_ = false, trouble_told_ = false;
};

}  // namespace ddrun::etcd
