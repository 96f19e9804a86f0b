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
#include "ddrun/base/unique_fd.hpp"

// Where a running job has its Unix socket: FOLDER/PID.sock, with the PID of the ddrun that the user started. A job in
// another PID namespace that shares the folder may have the same PID; its name is PID-2.sock, and so on.

namespace ddrun::job_socket {

inline constexpr std::string_view suffix = ".sock";
/// A longer reply is not read.
inline constexpr std::size_t max_reply_bytes = std::size_t{32} << 20U;

/// The folders for the jobs of a user: RUNTIME_DIR/ddrun if `runtime_dir` (XDG_RUNTIME_DIR), or else /run/user/UID, is
/// the absolute path of a directory of this user (sudo may pass on another user's), and /tmp/ddrun-UID. A job has a
/// socket in each, as either may be removed while it runs, and its asker may lack the variable. TMPDIR is not used: the
/// asker may have another.
[[nodiscard]] std::vector<std::string> folders(uid_t uid, std::string_view runtime_dir);

/// A folder with O_PATH, so that what is used is what was checked. Fails with `not_found`, or with `unavailable` unless
/// it is a directory, no symbolic link, of this owner, to which others have no rights. Does not block.
[[nodiscard]] Result<UniqueFd> open_folder(const std::string& folder, uid_t owner);

/// A connection to the socket of this name in an open_folder(), non-blocking and close-on-exec. Blocks until the
/// deadline at most, while too many clients wait. Fails with `timeout`, with `connection_lost` if the job has ended, or
/// with `unavailable`. Removes the socket of a job that has ended, unless it is so new that its job may be about to
/// listen.
[[nodiscard]] Result<UniqueFd> connect(const UniqueFd& folder, const std::string& name, Deadline deadline);

/// connect(), without a wait, to the job of this user that process `ddrun`, its ancestor, was started as.
/// `runtime_dir`: XDG_RUNTIME_DIR. Fails with `not_found`.
[[nodiscard]] Result<UniqueFd> connect_to_descendant(pid_t ddrun, std::string_view runtime_dir);

/// A request to a running job, one JSON object in a line, the only one of its connection: {"question":"job"}, or
/// {"question":"stacks","ranks":"0-3,trainer:7,router","format":"text","threads":"all"}, where all but the first may be
/// absent. JSON has all threads.
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
  bool all_threads = false;
  std::string line;  ///< what it was parsed from

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

  /// Listens in each of `folders` that can be used, which it creates if need be.
  /// `pid`: of the ddrun that the user started. Logs why a folder cannot be used; the job needs none, so that is a
  /// warning only where all have a fault that the user can mend.
  void open(const std::vector<std::string>& folders, pid_t pid);
  /// open() in the folders() of this user after open_delay: a shorter job does not pay for a new
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
