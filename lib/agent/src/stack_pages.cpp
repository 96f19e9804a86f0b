#include "stack_pages.hpp"

#include <time.h>

#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "ddrun/base/environment.hpp"
#include "ddrun/base/messages.hpp"
#include "ddrun/base/text.hpp"

namespace ddrun::agent {

namespace {

using Format = inspect::StackReader::Request::Format;
using job_socket::error_reply;
using job_socket::reply_line;

}  // namespace

StackPages::StackPages(Job& job, WorkerGroup& group, logs::Output& output, std::function<void()> on_answer)
    : job_(job),
      group_(group),
      output_(output),
      reader_(job.io.get_executor()),
      on_answer_(std::move(on_answer)),
      socket_(job.io.get_executor(), [this](const auto& request, const auto& reply) { answer(request, reply); }),
      limit_(job.io.get_executor()) {}

StackPages::Targets StackPages::targets(const std::set<int>& slots) const {
  Targets targets;
  for (const Worker& worker : group_.workers()) {
    if (!slots.empty() && !slots.contains(worker.end.slot)) continue;
    if (worker.end.pid != 0) targets.push_back({worker.end.rank_name(), worker.child ? worker.end.pid : 0});
  }
  return targets;
}

void StackPages::async_show(const std::string& why, Milliseconds limit, const std::set<int>& slots,
                            std::function<void(const inspect::StackPage*)> done) {
  done_ = std::move(done);
  if (limit != Milliseconds::max()) {
    limit_.set(Clock::now() + limit, [this, limit] {
      say(Level::notice, concat("the stacks of the ranks were not read within ", format_duration(limit)));
      std::exchange(done_, nullptr)(nullptr);
    });
  }
  // Without log files the page is a temporary file, which stays.
  const bool has_logs = !output_.run_dir().empty();
  const std::string prefix = has_logs ? output_.attempt_dir() + "/stacks-"
                                      : concat(variable("TMPDIR").value_or("/tmp"), "/ddrun-stacks-", tag_, "-");
  inspect::StackReader::Request request{why, targets(slots), prefix, Format::text, job_.prepared.first().directory};
  reader_.async_read(std::move(request), [this, number = ++number_](const auto& answer) {
    // With -q too: it belongs to the error that follows.
    const std::string page =
        concat(answer.text, "  all threads: ", answer.file.empty() ? answer.file_error : answer.file);
    say_text(concat("ddrun: ", sanitize_for_terminal(page), "\n"));
    if (!answer.file.empty()) job_.record.result().stack_files.push_back(answer.file);
    if (number != number_ || !done_) return;
    limit_.cancel();
    std::exchange(done_, nullptr)(&answer.page);
  });
}

void StackPages::give_up() {
  limit_.cancel();
  done_ = nullptr;
}

void StackPages::open_socket_later() {
  socket_.open_later(job_.prepared.parent.get("XDG_RUNTIME_DIR").value_or(""), job_.context.shared->started_pid);
}

void StackPages::answer(const job_socket::Request& request, const job_socket::Server::Reply& reply) {
  std::vector<RankName> names;
  std::vector<int> ranks;
  Targets asked;
  for (const auto& target : targets()) {
    if (target.pid != 0) {
      names.push_back(target.name);
      ranks.push_back(target.name.rank);
    }
    if (request.includes(target.name)) asked.push_back(target);
  }
  if (request.question == job_socket::Request::Question::job) {
    const auto age = std::chrono::duration_cast<std::chrono::seconds>(Clock::now() - job_.record.started_at());
    return reply(reply_line({{"tag", tag_},
                             {"pid", job_.context.shared->started_pid.load()},
                             {"run_id", job_.rendezvous->run_id()},
                             {"program", job_.spec.first().name},
                             {"ranks", ranks},
                             {"started", ::time(nullptr) - age.count()}}));
  }
  if (ranks.empty()) return reply(error_reply("no worker of this job runs on this machine at present; ask again"));
  if (asked.empty()) {
    return reply(error_reply(concat("no such rank runs on this machine; give some of ", name_workers(names))));
  }
  const auto format = request.as_json ? Format::json : Format::text;
  reader_.async_read({"", std::move(asked), "", format, job_.prepared.first().directory},
                     [this, as_json = request.as_json, reply](const auto& read) {
                       on_answer_();
                       reply(as_json ? concat(R"({"stacks":)", read.text, "}") : reply_line({{"text", read.text}}));
                     });
}

}  // namespace ddrun::agent
