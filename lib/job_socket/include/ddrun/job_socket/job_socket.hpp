#pragma once

#include <sys/types.h>

#include <boost/asio/any_io_executor.hpp>
#include <cstddef>
#include <functional>
#include <limits>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ddrun/base/alarm.hpp"
#include "ddrun/base/duration.hpp"
#include "ddrun/base/result.hpp"
#include "ddrun/base/text.hpp"

namespace ddrun::job_socket {

/// A request to a running job, one JSON object in a line, the only one of its connection: {"question":"job"}, or
/// {"question":"stacks","ranks":"0-3,trainer:7,router","format":"json"}, where "ranks" and "format" may be absent.
struct Request {
  enum class Question { job, stacks };
  Question question = Question::job;
  struct Ranks {
    std::string role;  ///< empty: any
    int first = 0;
    int last = std::numeric_limits<int>::max();
  };
  std::vector<Ranks> ranks;  ///< empty: all
  bool as_json = false;

  /// Fails with `invalid_argument`.
  [[nodiscard]] static Result<Request> parse(std::string_view line);
  [[nodiscard]] bool includes(const RankName& rank) const;
};

/// A reply as one line without its newline; invalid UTF-8 is replaced.
[[nodiscard]] std::string reply_line(const nlohmann::json& reply);
/// {"error":"…"}
[[nodiscard]] std::string error_reply(std::string_view message);

/// The Unix sockets, one in each folder, on which this user, or root, can ask a running job. They cost no wake-up
/// without a client. A client that does not read its reply within client_timeout is disconnected, and one that sends no
/// complete request, where half of max_clients are there within crowded_timeout. Use on the executor's thread only;
/// must outlive the event loop. SIGPIPE has to be ignored.
class Server {
 public:
  static constexpr std::size_t max_clients = 8;  ///< further ones wait in the kernel's queue
  static constexpr std::size_t max_request_bytes = 4096;
  static constexpr Milliseconds client_timeout{5'000};
  static constexpr Milliseconds crowded_timeout{500};
  static constexpr Milliseconds open_delay{100};

  /// Takes one line, without its newline. May be called at any later time, and not at all; without effect if the client
  /// has disconnected.
  using Reply = std::function<void(std::string line)>;
  using Answer = std::function<void(const Request& request, Reply reply)>;

  Server(boost::asio::any_io_executor executor, Answer answer);
  ~Server() { close(); }

  /// Listens in each of `folders` that can be used, which it creates if need be, as job_socket_path.hpp describes.
  /// `pid`: of the ddrun that the user started. Logs why a folder cannot be used; the job needs none, so that is a
  /// warning only where all have a fault that the user can mend.
  void open(const std::vector<std::string>& folders, pid_t pid);
  /// open() in the job_socket_path.hpp folders of this user after open_delay: a shorter job does not pay for a new
  /// file, some 4 % of its time on ext4. `runtime_dir`: XDG_RUNTIME_DIR.
  void open_later(std::string_view runtime_dir, pid_t pid);
  /// Disconnects all clients and removes the files that are still its own.
  void close();

 private:
  class Client;
  struct Listener;

  Result<void> open_in(const std::string& folder, pid_t pid);
  void accept_later();
  void accept_pending(Listener& listener);
  void remove(const std::shared_ptr<Client>& client);

  boost::asio::any_io_executor executor_;
  Answer answer_;
  Alarm timer_;  ///< of open_later(), then after a lack of descriptors
  std::set<std::shared_ptr<Client>> clients_;
  std::vector<std::shared_ptr<Listener>> listeners_;  ///< empty: closed
};

}  // namespace ddrun::job_socket
