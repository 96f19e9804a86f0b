#include "ddrun/job_socket/job_socket.hpp"

#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <boost/asio/io_context.hpp>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ddrun/base/messages.hpp"
#include "ddrun/base/unique_fd.hpp"
#include "ddrun/test/catch.hpp"
#include "ddrun/test/files.hpp"

using namespace ddrun;
using namespace ddrun::job_socket;
using ddrun::test::TemporaryDirectory;

namespace {

constexpr std::string_view ask_for_stacks = "{\"question\":\"stacks\"}\n";

Result<UniqueFd> connect_in(const std::string& folder, const std::string& name) {
  const auto opened = open_folder(folder, ::geteuid());
  if (!opened) return tl::unexpected(opened.error());
  return connect(*opened, name, Clock::now());
}

/// A socket with PID 7 in a new folder.
struct Opened {
  Opened() {
    ::signal(SIGPIPE, SIG_IGN);  // as in the agent
    set_message_settings({Level::info, false});
    set_message_sink([this](std::string_view line) { messages += line; });
  }
  ~Opened() {
    set_message_sink({});
    set_message_settings({});
  }
  void open() { socket.open({folder}, 7); }
  /// Runs the loop until this is true.
  bool run_until(const std::function<bool()>& condition) {
    for (const Deadline deadline = Clock::now() + std::chrono::seconds(20); !condition();) {
      if (Clock::now() > deadline) return false;
      io.run_for(std::chrono::milliseconds(2));
      io.restart();
    }
    return true;
  }
  UniqueFd connect(std::string_view request) {
    auto connection = connect_in(folder, "7.sock");
    REQUIRE(connection);
    REQUIRE(::send(connection->get(), request.data(), request.size(), MSG_NOSIGNAL) ==
            static_cast<ssize_t>(request.size()));
    return std::move(*connection);
  }
  /// Appends what there is to read; true at end-of-file.
  static bool at_end(const UniqueFd& connection, std::string& text) {
    std::vector<char> buffer(1U << 20U);
    ssize_t got;
    while ((got = ::recv(connection.get(), buffer.data(), buffer.size(), 0)) > 0) {
      text.append(buffer.data(), static_cast<std::size_t>(got));
    }
    return got == 0 || errno == ECONNRESET;
  }

  TemporaryDirectory dir;
  std::string folder = dir.file("jobs");
  std::string path = folder + "/7.sock";
  std::string messages;
  boost::asio::io_context io;
  std::vector<std::pair<Request, Server::Reply>> requests;
  Server socket{io.get_executor(),
                [this](const Request& request, Server::Reply reply) { requests.emplace_back(request, reply); }};
};

bool exists(const std::string& path) { return ::access(path.c_str(), F_OK) == 0; }

/// The file of a socket on which no process listens, so old that its job has ended.
void make_stale(const std::string& path) {
  const UniqueFd listener(::socket(AF_UNIX, SOCK_STREAM, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  path.copy(address.sun_path, sizeof address.sun_path - 1);
  REQUIRE(::bind(listener.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0);
}

bool refuses(const std::string& line) { return !Request::parse(line); }

}  // namespace

TEST_CASE("A request names its question ranks and format") {
  CHECK(Request::parse(R"({"question":"job"})")->question == Request::Question::job);
  const auto all = Request::parse(R"({"question":"stacks"})");
  REQUIRE(all);
  CHECK(all->question == Request::Question::stacks);
  CHECK_FALSE(all->as_json);
  CHECK_FALSE(all->all_threads);
  CHECK(Request::parse(R"({"question":"stacks","threads":"all"})")->all_threads);
  CHECK(all->includes({"", 0}));
  CHECK(all->includes({"trainer", 99'999}));
  const auto some = Request::parse(R"({"question":"stacks","ranks":"0-2,7,100-2147483647","format":"json"})");
  REQUIRE(some);
  CHECK(some->as_json);
  for (const int rank : {0, 2, 7, 100, 2'000'000'000}) CHECK(some->includes({"", rank}));
  for (const int rank : {3, 6, 8, 99}) CHECK_FALSE(some->includes({"", rank}));
}

TEST_CASE("A request may name ranks of single programs") {
  const auto some = Request::parse(R"({"question":"stacks","ranks":"7,trainer:0-2,router"})");
  REQUIRE(some);
  for (const RankName& rank : {RankName{"trainer", 0}, RankName{"trainer", 2}, RankName{"router", 9}, RankName{"x", 7}})
    CHECK(some->includes(rank));
  for (const RankName& rank : {RankName{"trainer", 3}, RankName{"x", 0}, RankName{"rout", 1}})
    CHECK_FALSE(some->includes(rank));
}

TEST_CASE("Every other request is refused") {
  for (const std::string line :
       {"", "x", "null", "[]", "{}", R"({"question":"jobs"})", R"({"question":["job"]})", R"({"question":"job")",
        R"({"question":"stacks","ranks":""})", R"({"question":"stacks","ranks":3})",
        R"({"question":"stacks","ranks":"3-1"})", R"({"question":"stacks","ranks":"-1"})",
        R"({"question":"stacks","ranks":"1,"})", R"({"question":"stacks","ranks":"2147483648"})",
        R"({"question":"stacks","format":"xml"})", R"({"question":"stacks","format":null})",
        R"({"question":"stacks","threads":"main"})"}) {
    CAPTURE(line);
    CHECK(refuses(line));
  }
  CHECK(refuses(std::string(4000, '[')));
  CHECK(refuses(std::string("{\"question\":\"\0job\"}", 19)));
}

TEST_CASE("A reply of some MiB comes late and complete and in any order") {
  Opened job;
  job.open();
  const UniqueFd one = job.connect(ask_for_stacks);
  const UniqueFd two = job.connect(ask_for_stacks);
  REQUIRE(job.run_until([&] { return job.requests.size() == 2; }));
  const std::string line(8U << 20U, 'x');
  job.requests[1].second(line);
  job.requests[0].second("short");
  job.requests[0].second("twice");
  std::string first, second;
  CHECK(job.run_until([&] { return Opened::at_end(one, first); }));
  CHECK(job.run_until([&] { return Opened::at_end(two, second); }));
  CHECK(first == "short\n");
  CHECK(second == line + "\n");
}

TEST_CASE("A reply to a client that has gone or after the end of the socket has no effect") {
  Opened job;
  job.open();
  job.connect(ask_for_stacks).reset();
  const UniqueFd still = job.connect(ask_for_stacks);
  REQUIRE(job.run_until([&] { return job.requests.size() == 2; }));
  job.requests[0].second(std::string(1U << 20U, 'x'));
  std::string text;
  job.socket.close();
  CHECK_FALSE(exists(job.path));
  job.requests[1].second("late");
  job.io.run_for(std::chrono::milliseconds(1));
  CHECK(Opened::at_end(still, text));
  CHECK(text.empty());
}

TEST_CASE("Clients that do not read their reply are disconnected and make room for others") {
  Opened job;
  job.open();
  std::vector<UniqueFd> deaf;
  for (std::size_t i = 0; i < Server::max_clients; ++i) deaf.push_back(job.connect(ask_for_stacks));
  const UniqueFd next = job.connect(ask_for_stacks);
  REQUIRE(job.run_until([&] { return job.requests.size() == Server::max_clients; }));
  const std::string line(8U << 20U, 'x');
  for (const auto& request : job.requests) request.second(line);
  CHECK(job.run_until([&] { return job.requests.size() == Server::max_clients + 1; }));
  job.requests.back().second("reply");
  std::string text;
  CHECK(job.run_until([&] { return Opened::at_end(next, text); }));
  CHECK(text == "reply\n");
  text.clear();
  CHECK(Opened::at_end(deaf[0], text));
  CHECK(text.size() < line.size());
}

TEST_CASE("A name that is taken by a live job gets a number and that of a dead job is replaced") {
  Opened job;
  job.open();
  boost::asio::io_context io;
  Server second(io.get_executor(), {});
  second.open({job.folder}, 7);
  CHECK(exists(job.folder + "/7-2.sock"));
  second.close();
  CHECK_FALSE(exists(job.folder + "/7-2.sock"));
  CHECK(exists(job.path));

  make_stale(job.folder + "/8.sock");
  // Once it is old enough to be that of a dead job.
  REQUIRE(job.run_until([&] {
    second.open({job.folder}, 8);
    const bool replaced = !exists(job.folder + "/8-2.sock");
    if (!replaced) second.close();
    return replaced;
  }));
  CHECK(connect_in(job.folder, "8.sock"));
  // Another job's file is left alone.
  REQUIRE(::unlink((job.folder + "/8.sock").c_str()) == 0);
  make_stale(job.folder + "/8.sock");
  second.close();
  CHECK(exists(job.folder + "/8.sock"));
}

TEST_CASE("A request that is too long is answered and the connection ends in order") {
  Opened job;
  job.open();
  for (const std::size_t size : {std::size_t{4097}, std::size_t{100'000}}) {
    const UniqueFd client = job.connect(std::string(size, 'x'));
    std::string text;
    std::array<char, 4096> buffer{};
    ssize_t got = -1;
    CHECK(job.run_until([&] {
      got = ::recv(client.get(), buffer.data(), buffer.size(), 0);
      if (got > 0) text.append(buffer.data(), static_cast<std::size_t>(got));
      return got == 0 || (got < 0 && errno != EAGAIN);
    }));
    CHECK(got == 0);
    CHECK(text == error_reply("a request has at most 4096 bytes") + "\n");
  }
}

TEST_CASE("Clients that send nothing do not keep another one waiting for their time limit") {
  Opened job;
  job.open();
  std::vector<UniqueFd> silent;
  for (int i = 0; i < 33; ++i) {
    REQUIRE(job.run_until([&] {
      auto connection = connect_in(job.folder, "7.sock");
      if (connection) silent.push_back(std::move(*connection));
      return bool(connection);
    }));
  }
  std::optional<UniqueFd> asker;
  const auto begin = Clock::now();
  REQUIRE(job.run_until([&] {
    if (auto connection = connect_in(job.folder, "7.sock")) asker = std::move(*connection);
    return asker.has_value();
  }));
  (void)::send(asker->get(), ask_for_stacks.data(), ask_for_stacks.size(), MSG_NOSIGNAL);
  CHECK(job.run_until([&] { return !job.requests.empty(); }));
  CHECK(Clock::now() - begin < std::chrono::seconds(10));
}

TEST_CASE("A job listens in each folder and closes all its sockets") {
  Opened job;
  const std::string other = job.dir.file("other");
  job.socket.open({job.folder, other}, 7);
  CHECK(job.messages.empty());
  CHECK(exists(other + "/7.sock"));
  REQUIRE(::unlink(job.path.c_str()) == 0);  // its folder may be removed while the job runs
  auto connection = connect_in(other, "7.sock");
  REQUIRE(connection);
  (void)::send(connection->get(), ask_for_stacks.data(), ask_for_stacks.size(), MSG_NOSIGNAL);
  CHECK(job.run_until([&] { return job.requests.size() == 1; }));
  job.socket.close();
  CHECK_FALSE(exists(other + "/7.sock"));
}

TEST_CASE("What is no socket in a folder of another user is neither followed nor removed") {
  Opened job;
  job.open();
  const TemporaryDirectory other;
  REQUIRE(::symlink(job.path.c_str(), other.file("1.sock").c_str()) == 0);
  other.file("2.sock", "");
  REQUIRE(::mkfifo(other.file("3.sock").c_str(), 0600) == 0);
  for (const std::string name : {"1.sock", "2.sock", "3.sock", "none.sock"}) {
    const auto connection = connect_in(other.path(), name);
    REQUIRE_FALSE(connection);
    CHECK(connection.error().code == Errc::connection_lost);
    CHECK(exists(other.file(name)) == (name != "none.sock"));
  }
  // A folder that was opened stays the same one, whatever takes its name.
  const auto opened = open_folder(job.folder, ::geteuid());
  REQUIRE(opened);
  REQUIRE(::rename(job.folder.c_str(), other.file("moved").c_str()) == 0);
  REQUIRE(::symlink(other.path().c_str(), job.folder.c_str()) == 0);
  CHECK(connect(*opened, "7.sock", Clock::now()));
}

TEST_CASE("A folder whose fault the user can mend is a warning only where there is no other") {
  const TemporaryDirectory other;
  REQUIRE(::mkdir(other.file("open").c_str(), 0700) == 0);
  REQUIRE(::chmod(other.file("open").c_str(), 0755) == 0);
  for (const bool has_other : {true, false}) {
    Opened job;
    set_message_settings({Level::warning, false});
    job.socket.open(has_other ? std::vector{other.file("open"), job.folder} : std::vector{other.file("open")}, 7);
    CHECK(job.messages.empty() == has_other);
  }
  Opened job;
  set_message_settings({Level::warning, false});
  job.socket.open({other.file("missing/folder")}, 7);
  CHECK(job.messages.empty());
}

TEST_CASE("A folder that is not this user's alone is not used and the others are") {
  Opened job;
  const TemporaryDirectory other;
  const std::string target = other.file("target");
  REQUIRE(::mkdir(target.c_str(), 0700) == 0);
  REQUIRE(::symlink(target.c_str(), other.file("link").c_str()) == 0);
  REQUIRE(::mkdir(other.file("open").c_str(), 0700) == 0);
  REQUIRE(::chmod(other.file("open").c_str(), 0710) == 0);
  other.file("file", "");
  std::vector<std::string> folders{other.file("link"), other.file("open"), other.file("file"),
                                   other.file("missing/folder"), other.file(std::string(150, 'x'))};
  if (::geteuid() == 0) {
    folders.push_back(other.file("foreign"));
    REQUIRE(::mkdir(folders.back().c_str(), 0700) == 0);
    REQUIRE(::chown(folders.back().c_str(), 65534, 65534) == 0);
  }
  folders.push_back(job.folder);
  job.socket.open(folders, 7);
  CHECK(exists(job.path));
  CHECK_FALSE(exists(target + "/7.sock"));
  CHECK(std::count(job.messages.begin(), job.messages.end(), '\n') == static_cast<long>(folders.size()) - 1);
  for (const std::string part : {"link is not a directory", "open is open to others", "file is not a directory",
                                 "cannot create the folder", "the path is too long"}) {
    CHECK_THAT(job.messages, test::contains(part));
  }
}

TEST_CASE("The folders are in XDG_RUNTIME_DIR of this user and in /tmp") {
  const TemporaryDirectory dir;
  const uid_t self = ::geteuid();
  const std::string standard = "/tmp/ddrun-" + std::to_string(self);
  CHECK(folders(self, dir.path()) == std::vector{dir.file("ddrun"), standard});
  const auto without = folders(self, "");
  CHECK(without.back() == standard);
  if (without.size() > 1) CHECK(without == std::vector{"/run/user/" + std::to_string(self) + "/ddrun", standard});
  for (const std::string& none : {std::string("tmp"), dir.file("missing"), dir.file("file", "")}) {
    CHECK(folders(self, none) == without);
  }
  constexpr uid_t unused = 3'912'345;
  CHECK(folders(unused, dir.path()) == std::vector{"/tmp/ddrun-" + std::to_string(unused)});
}
