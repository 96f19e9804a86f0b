#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>

#include "commands.hpp"
#include "ddrun/base/environment.hpp"
#include "ddrun/base/exit_status.hpp"
#include "ddrun/base/messages.hpp"
#include "ddrun/base/text.hpp"
#include "ddrun/base/unique_fd.hpp"
#include "ddrun/cli/values.hpp"
#include "ddrun/job_socket/job_socket.hpp"

// `ddrun stacks`: asks a running job of this machine, through its socket, where its ranks are.

namespace ddrun {

namespace {

using nlohmann::json;

constexpr std::chrono::seconds total_timeout{10};
// Bounds of what a reply costs: root may ask the job of a user whose program answers in its place.
constexpr std::size_t max_reply_values = 2'000'000;
constexpr int max_reply_depth = 16;
constexpr int not_running = 1;

constexpr argv::Option stacks_options[] = {
    {"rank", "", "RANKS", "Only these ranks: 0-3,7, or of a program trainer:0-3,router (default: all)"},
    {"all-threads", "", "", "Print all threads, with all their frames"},
    {"json", "", "", "Print JSON, which has all threads"},
    help_option};

std::string stacks_help() {
  return concat(R"(Usage: ddrun stacks [JOB] [--rank=RANKS] [--all-threads] [--json]

Prints where the ranks of a running job are: for each worker, on all machines,
what its threads execute. Ask on any machine of the job, or where ddrun --hosts
was typed. JOB is the PID of ddrun or the job's run id; it is not needed if one
job of yours runs on this machine. The job is not disturbed.
)",
                argv::describe(stacks_options), R"(
Exit status: 0; 1 no worker with such a rank runs; 2 wrong usage, or
several jobs to choose from; 125 there was no job, or it did not answer. A
program called stacks: ddrun -- stacks

Examples:
  ddrun stacks
  ddrun stacks 4711 --rank=0
)");
}

struct Job {
  std::string name;                  ///< the socket's without its suffix: the PID, or PID-2
  std::shared_ptr<UniqueFd> folder;  ///< of the socket
  json facts;                        ///< the reply to {"question":"job"}; empty: none
  std::string error;                 ///< why there was none

  [[nodiscard]] std::string text(const char* key) const {
    const auto found = facts.find(key);
    return found != facts.end() && found->is_string() ? found->get<std::string>() : "";
  }
};

std::string pid_of(const std::string& name) { return name.substr(0, name.find('-')); }

struct Found {
  std::vector<Job> jobs;            ///< a job may be there twice, by its socket in each folder
  std::vector<std::string> faults;  ///< of folders that cannot be used
};

/// Looks into the folders of this user. Root may also ask a job of the user who owns the process `wanted`.
Found find_jobs(const std::string& wanted) {
  const uid_t self = ::geteuid();
  std::vector<std::pair<std::string, uid_t>> folders;
  const auto add = [&](uid_t owner, std::string_view runtime_dir) {
    for (auto& folder : job_socket::folders(owner, runtime_dir)) folders.emplace_back(std::move(folder), owner);
  };
  add(self, variable("XDG_RUNTIME_DIR").value_or(""));
  struct stat info {};
  if (self == 0 && parse_integer(wanted, 1, INT32_MAX) && ::stat(concat("/proc/", wanted).c_str(), &info) == 0 &&
      info.st_uid != self) {
    add(info.st_uid, "");
  }
  Found found;
  for (const auto& [path, owner] : folders) {
    auto opened = job_socket::open_folder(path, owner);
    if (!opened && opened.error().code != Errc::not_found) found.faults.push_back(opened.error().message);
    if (!opened) continue;
    const auto folder = std::make_shared<UniqueFd>(std::move(*opened));
    std::error_code ignored;
    const std::string listed = concat("/proc/self/fd/", folder->get());
    for (std::filesystem::directory_iterator file(listed, ignored), end; file != end; file.increment(ignored)) {
      if (file->path().extension() != job_socket::suffix) continue;
      found.jobs.push_back({file->path().stem().string(), folder, {}, {}});
    }
  }
  return found;
}

Error no_answer() { return {Errc::timeout, "it does not answer; SIGCONT continues one that was stopped"}; }

/// Fails as job_socket::connect() does.
Result<UniqueFd> connect(const Job& job, Deadline deadline) {
  auto connection = job_socket::connect(*job.folder, concat(job.name, job_socket::suffix), deadline);
  if (!connection && connection.error().code == Errc::timeout) return tl::unexpected(no_answer());
  return connection;
}

/// False for a text that would cost a JSON parser much more memory than it has bytes.
bool is_bounded(std::string_view text) {
  std::size_t values = 0;
  int depth = 0;
  bool in_string = false;
  for (std::size_t at = 0; at < text.size() && depth <= max_reply_depth && values <= max_reply_values; ++at) {
    const char c = text[at];
    if (c == '"') in_string = !in_string;
    else if (in_string) at += c == '\\' ? 1 : 0;
    else if (c == ']' || c == '}') --depth;
    else if (c == '[' || c == '{') ++depth, ++values;
    else if (c == ',') ++values;
  }
  return depth <= max_reply_depth && values <= max_reply_values;
}

/// Fails as connect() does, or with `timeout` or `protocol`.
Result<json> ask(const Result<UniqueFd>& connection, const json& request, Deadline deadline) {
  if (!connection) return tl::unexpected(connection.error());
  // The socket's buffer is empty and has room for it.
  const std::string line = request.dump(-1, ' ', false, json::error_handler_t::replace) + "\n";
  (void)::send(connection->get(), line.data(), line.size(), MSG_NOSIGNAL);
  std::string reply;
  std::vector<char> buffer(1U << 16U);
  while (!reply.ends_with('\n') && reply.size() < job_socket::max_reply_bytes) {
    const ssize_t got = ::recv(connection->get(), buffer.data(), buffer.size(), 0);
    if (got > 0) reply.append(buffer.data(), static_cast<std::size_t>(got));
    else if (got == 0 || (errno != EAGAIN && errno != EINTR)) break;
    if (got > 0) continue;
    pollfd readable{connection->get(), POLLIN, 0};
    if (::poll(&readable, 1, poll_timeout(deadline)) == 0) return tl::unexpected(no_answer());
  }
  if (reply.size() >= job_socket::max_reply_bytes || !is_bounded(reply)) {
    return fail(Errc::protocol, "its answer is too long; ask for some ranks with --rank");
  }
  json object = json::parse(reply, nullptr, false);
  if (!object.is_object()) return fail(Errc::protocol, "it ended, or broke off its answer");
  return object;
}

/// The jobs that are meant by `wanted` (empty: all), with their facts, each once.
std::vector<Job> select_jobs(std::vector<Job> jobs, const std::string& wanted, Deadline deadline) {
  const auto is_named = [&](const Job& job) { return job.name == wanted || pid_of(job.name) == wanted; };
  const bool by_pid = std::any_of(jobs.begin(), jobs.end(), is_named);
  std::vector<Job> selected;
  std::set<std::string> known;
  auto left = static_cast<long>(jobs.size());
  for (Job& job : jobs) {
    const Deadline until = Clock::now() + (deadline - Clock::now()) / left--;
    if (by_pid && !is_named(job)) continue;
    const auto connection = connect(job, until);
    if (!connection && connection.error().code == Errc::connection_lost) continue;
    auto facts = ask(connection, {{"question", "job"}}, until);
    if (facts) job.facts = std::move(*facts);
    else job.error = facts.error().message;
    const std::string tag = job.text("tag");
    if (!known.insert(tag.empty() ? job.name : tag).second) continue;
    if (!wanted.empty() && !by_pid && job.text("run_id") != wanted) continue;
    // Any agent of a job answers for all of it, the one with a socket in $XDG_RUNTIME_DIR before others.
    const std::string whole = job.text("job");
    if (whole.empty() || known.insert(whole).second) selected.push_back(std::move(job));
  }
  // The head of a job with --hosts names them; an agent of it on this machine answers for both.
  const auto is_head = [](const Job& job) { return job.facts.contains("hosts"); };
  std::set<std::string> of_agents;
  for (const Job& job : selected) {
    if (!is_head(job)) of_agents.insert(job.text("run_id"));
  }
  std::erase_if(selected, [&](const Job& job) { return is_head(job) && of_agents.contains(job.text("run_id")); });
  std::ranges::sort(selected, {}, &Job::name);
  return selected;
}

/// "4711  run id  program  2 min 5 s"
std::string describe(const Job& job) {
  if (!job.error.empty()) return concat(job.name, ": ", job.error);
  const auto started = job.facts.find("started");
  const std::int64_t age =
      started != job.facts.end() && started->is_number_integer() ? ::time(nullptr) - started->get<std::int64_t>() : 0;
  return concat(job.name, "  ", job.text("run_id"), "  ", job.text("program"), "  ",
                format_duration(std::chrono::seconds(std::max<std::int64_t>(age, 1))));
}

std::string describe(const std::vector<Job>& jobs) {
  std::string text;
  for (const Job& job : jobs) text += concat("\n", describe(job));
  return text;
}

int say_no_job(const StacksRequest& command, bool was_there, const std::vector<Job>& others,
               const std::vector<std::string>& faults) {
  const std::string hidden = faults.empty() ? "" : concat("; its socket may be hidden: ", join(faults, "; "));
  if (was_there) say_error(concat("the job with PID ", command.job, " has ended"));
  else if (others.empty() && hidden.empty())
    say_error("no job of yours runs on this machine; ask on a machine of the job, as the user who started it");
  else if (others.empty()) say_error(concat("no job of yours is found on this machine", hidden));
  else
    say_error(concat("no job of yours has the PID of ddrun or the run id '", command.job, "'", hidden,
                     "; give one of:", describe(others)));
  return exit_codes::launcher_failed;
}

/// Text of another process, line by line as plain_line() has it.
std::string plain_text(const std::string& text) {
  std::string plain;
  for (const std::string& line : split(text, '\n')) plain += plain_line(line) + "\n";
  if (text.ends_with('\n')) plain.pop_back();
  return plain;
}

/// Ranks of any program, or of one: "0-3,7", "trainer:0-3,router". As the job takes them.
Result<std::string> parse_ranks(const std::string& text) {
  std::set<int> of_any;
  std::vector<std::string> parts;
  for (const std::string& part : split(text, ',')) {
    const std::size_t colon = part.find(':');
    const bool is_role = colon == std::string::npos && part.find_first_not_of("0123456789-") != std::string::npos;
    if (is_role || colon != std::string::npos) parts.push_back(part);
    if (is_role) continue;
    auto numbers = TRY(cli::parse_number_set(part.substr(colon + 1), INT32_MAX, "a rank"));
    if (colon == std::string::npos) of_any.merge(numbers);
  }
  if (!of_any.empty()) parts.insert(parts.begin(), fold_ranks({of_any.begin(), of_any.end()}));
  return join(parts, ",");
}

}  // namespace

Parsed parse_stacks(std::span<const std::string> rest, const cli::ParseContext& /*context*/) {
  const auto typed = read_arguments("stacks", stacks_options, stacks_help, rest);
  if (!typed) return typed.error();
  if (typed->positionals.size() > 1) {
    return wrong_usage("stacks",
                       "usage: ddrun stacks [JOB] [--rank=RANKS] [--all-threads] [--json]; for a program called stacks "
                       "write: ddrun -- stacks");
  }
  StacksRequest request;
  if (!typed->positionals.empty()) request.job = typed->positionals.front();
  request.json = typed->has("json");
  request.all_threads = typed->has("all-threads");
  const auto read = typed->read("rank", request.ranks, parse_ranks);
  if (!read) return wrong_usage("stacks", read.error().message);
  return request;
}

int run_stacks(const Parsed& parsed) {
  const auto& command = std::get<StacksRequest>(parsed);
  const Deadline deadline = Clock::now() + total_timeout;
  const auto [found, faults] = find_jobs(command.job);
  std::vector<Job> jobs = select_jobs(found, command.job, deadline);
  if (jobs.empty()) {
    const bool was_there = !command.job.empty() && std::any_of(found.begin(), found.end(), [&](const Job& job) {
      return pid_of(job.name) == command.job;
    });
    return say_no_job(command, was_there, command.job.empty() ? jobs : select_jobs(found, "", deadline), faults);
  }
  if (jobs.size() > 1) {
    say_error(concat("several jobs of yours run on this machine; give one of:", describe(jobs)));
    return exit_codes::usage;
  }
  const Job& job = jobs.front();
  json request{{"question", "stacks"}, {"format", command.json ? "json" : "text"}};
  if (!command.ranks.empty()) request["ranks"] = command.ranks;
  if (command.all_threads) request["threads"] = "all";
  const auto reply = job.error.empty() ? ask(connect(job, deadline), request, deadline)
                                       : tl::unexpected(Error{Errc::timeout, job.error});
  if (!reply) {
    say_error(concat("no answer from the job with PID ", job.name, ": ", reply.error().message));
    return exit_codes::launcher_failed;
  }
  if (const auto error = reply->find("error"); error != reply->end() && error->is_string()) {
    say_error(error->get<std::string>());
    return not_running;
  }
  const auto answer = reply->find(command.json ? "stacks" : "text");
  if (answer != reply->end() && command.json) {
    return print_to_stdout(answer->dump(2, ' ', true, json::error_handler_t::replace) + "\n");
  }
  if (answer != reply->end() && answer->is_string()) return print_to_stdout(plain_text(answer->get<std::string>()));
  say_error(concat("the job with PID ", job.name, " was started by another version of ddrun"));
  return exit_codes::launcher_failed;
}

}  // namespace ddrun
