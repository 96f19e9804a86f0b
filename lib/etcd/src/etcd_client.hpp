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
#include "etcd_responses.hpp"
#include "http_connection.hpp"
#include "stream.hpp"

namespace ddrun::etcd {

/// Sends requests to one member of an etcd cluster; a member that fails, or is silent for `timeout`, is replaced by the
/// next at once. Requests are sequential on one persistent connection; a watch has its own, to the same member. Handles
/// name resolution, authentication, and replies that are not etcd's; independent of leader election. Use on the
/// executor only; nothing blocks.
class EtcdClient : public std::enable_shared_from_this<EtcdClient> {
 public:
  struct Events {
    std::function<void(std::string text)> on_status;
    std::function<void(Error error)> on_unusable;
    /// Requests go to another member now: reopen the watch there.
    std::function<void()> on_member_changed;
  };
  struct Endpoint {
    std::string host;
    std::uint16_t port = 0;
  };

  EtcdClient(const boost::asio::any_io_executor& executor, EtcdOptions options, std::vector<Endpoint> endpoints,
             StreamMaker streams, Milliseconds timeout, Events events);

  void start();
  /// No callback follows.
  void close();

  /// Parses and consumes the body; false if it is not a valid response.
  using OnBody = std::function<bool(const std::string& body)>;
  using OnError = std::function<void(const Error& error)>;
  /// POSTs `body` to `path` until there is a response, or `by` has passed. `on_error`: `timeout`; or etcd refused:
  /// `not_found`, else `invalid_argument`, with its message. A request may reach etcd more than once.
  void post(std::string path, std::string body, Deadline by, OnBody on_body, OnError on_error);
  /// When the request of the current response was sent.
  [[nodiscard]] lease::FenceClock::time_point sent() const { return sent_; }

  /// One at a time: another one, or close_watch(), ends it. `on_end` is called once.
  void watch(std::string body, std::function<void(std::string_view line)> on_line,
             std::function<void(std::string why)> on_end);
  void close_watch();

  /// The last failure, for the user; empty if requests succeed.
  [[nodiscard]] const std::string& last_error() const { return last_error_; }

 private:
  struct Member {
    Endpoint at;
    std::vector<boost::asio::ip::tcp::endpoint> addresses;
    helper::Running lookup;
    std::string why;
    bool permanent = false;
    [[nodiscard]] std::string name() const;
  };
  struct Request {
    std::string path, body;
    Deadline by;
    OnBody on_body;
    OnError on_error;
    int attempts = 0;
  };
  struct Target {
    std::size_t member;
    boost::asio::ip::tcp::endpoint address;
  };

  void resolve(std::size_t member);
  void set_targets();
  void next();
  void expire();
  void send();
  void on_response(tl::expected<HttpResponse, HttpError> answer);
  void on_ok(const HttpResponse& answer);
  void on_error_response(const EtcdError& error, unsigned status);
  void on_authenticated(const HttpResponse& answer);
  void attempt_failed(std::string why, bool permanent);
  void on_all_members_failed();
  void on_unusable_etcd(std::string why);
  void set_healthy();
  void back_off(Milliseconds duration);
  [[nodiscard]] std::string request(const std::string& path, const std::string& body) const;
  [[nodiscard]] const Target& target() const { return targets_[current_ % targets_.size()]; }
  [[nodiscard]] std::unique_ptr<HttpConnection> connection() const;

  EtcdOptions options_;
  std::vector<Member> members_;
  StreamMaker streams_;
  Milliseconds timeout_;
  Events events_;
  boost::asio::any_io_executor executor_;
  boost::asio::steady_timer timer_, watch_timer_;
  std::vector<Target> targets_;
  std::size_t current_ = 0;
  std::size_t failed_in_row_ = 0;
  std::size_t failed_passes_ = 0;
  Deadline resolved_at_{};
  std::deque<Request> requests_;
  std::unique_ptr<HttpConnection> connection_, watch_;
  std::string token_, last_error_;
  lease::FenceClock::time_point sent_{};
  bool busy_ = false, backing_off_ = false, authenticating_ = false, auth_is_off_ = false, closed_ = false;
  bool was_healthy_ = false, error_reported_ = false;
};

}  // namespace ddrun::etcd
