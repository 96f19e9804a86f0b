#include "stack_pages.hpp"

#include <time.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "ddrun/base/environment.hpp"
#include "ddrun/base/messages.hpp"
#include "ddrun/base/text.hpp"
#include "ddrun/rendezvous/rendezvous.hpp"

namespace ddrun::agent {

namespace {

using Format = inspect::StackReader::Request::Format;
using Scope = action::ReadStacks::Scope;
using job_socket::error_reply;
using job_socket::reply_line;

// Options of the question (PROTOCOL.md, section 11).
constexpr const char* main_threads = "";
constexpr const char* all_threads = "all";
constexpr const char* for_stop = "stop";  ///< main threads; all go to a file of the machine

/// From the question to the page, without a word of the coordinator.
constexpr Milliseconds page_timeout{3'400};
/// Of a machine's own ranks before a stop.
constexpr Milliseconds reading_timeout{2'500};
/// What was read of this machine's ranks before its question came answers that one.
constexpr Milliseconds own_lasts{3'000};

}  // namespace

StackPages::StackPages(Job& job, WorkerGroup& group, logs::Output& output, std::function<std::string()> describe_wait,
                       std::function<void()> on_answer, OnPage on_page)
    : job_(job),
      group_(group),
      output_(output),
      reader_(job.io.get_executor()),
      describe_wait_(std::move(describe_wait)),
      on_answer_(std::move(on_answer)),
      on_page_(std::move(on_page)),
      socket_(job.io.get_executor(), [this](const auto& request, const auto& reply) { answer_client(request, reply); }),
      limit_(job.io.get_executor()),
      settled_(job.io.get_executor()),
      late_(job.io.get_executor()) {}

StackPages::Targets StackPages::targets(const std::set<int>& slots) const {
  Targets targets;
  for (const Worker& worker : group_.workers()) {
    if (!slots.empty() && !slots.contains(worker.end.slot)) continue;
    const PreparedProgram& program = job_.prepared.of(worker.end.slot);
    const int world = program.command.is_service ? -1 : program.world.value_or(-1);
    if (worker.end.pid != 0) targets.push_back({worker.end.rank_name(), worker.child ? worker.end.pid : 0, world});
  }
  return targets;
}

// ---- before a stop

void StackPages::async_show(const action::ReadStacks& read, std::function<void()> done) {
  ++shows_;
  show_ = Show{std::move(done), read.why, read.limit};
  // A question has its own limit.
  limit_show(read.scope == Scope::order ? reading_timeout : Milliseconds::max());
  if (read.scope == Scope::machine) return show_machine(read);
  read_own(for_stop);
  if (read.scope == Scope::asks) {
    show_->awaits = {Awaited::page};
    return ask(for_stop, true, page_request(read.why), [this, number = shows_](const Answer* own) {
      if (own != nullptr) show(*own);
      go_on_showing(number, {Awaited::page});
    });
  }
  show_->awaits = {Awaited::own, Awaited::order};
  if (read.look != 0) carry_out(action::AnswerOrder{read.look, read.awaits_page});
}

void StackPages::limit_show(Milliseconds limit) {
  limit = std::min(limit, show_->limit);
  if (limit == Milliseconds::max()) return;
  limit_.set(Clock::now() + limit, [this, limit] {
    say(Level::notice, concat("the stacks of the ranks were not read within ", format_duration(limit)));
    std::exchange(show_, {})->done();
  });
}

/// Without log files the page is a temporary file, which stays.
std::string StackPages::file_prefix() const {
  return output_.run_dir().empty() ? concat(variable("TMPDIR").value_or("/tmp"), "/ddrun-stacks-", tag_, "-")
                                   : output_.attempt_dir() + "/stacks-";
}

void StackPages::show(const Answer& answer) {
  // With -q too: it belongs to the error that follows.
  const std::string& file = answer.file.empty() ? answer.file_error : answer.file;
  const std::string page = concat(answer.text, file.empty() ? "" : concat("  all threads: ", file, "\n"));
  say_text(concat("ddrun: ", sanitize_for_terminal(page)));
  on_page_(answer.page, answer.page.is_whole_job);
}

void StackPages::show_machine(const action::ReadStacks& read) {
  show_->awaits = {Awaited::own};
  Request request = page_request(read.why);
  add_own(request, targets(read.slots));
  request.file_prefix = file_prefix();
  request.needs_file = !output_.run_dir().empty();
  reader_.async_read(std::move(request), [this, number = shows_, finds_cause = read.finds_cause](const auto& answer) {
    show(answer);
    if (!answer.file.empty()) job_.record.result().stack_files.push_back(answer.file);
    if (!finds_cause) return go_on_showing(number, {Awaited::own});
    settle([this, number, page = answer.page] {
      on_page_(page, true);
      go_on_showing(number, {Awaited::own});
    });
  });
}

void StackPages::carry_out(const action::AnswerOrder& order) {
  if (!show_) return;
  if (order.look != 0) send_own(for_stop, order.look);
  if (order.awaits_page) await_page(show_->why);
  go_on_showing(shows_, {Awaited::order});
}

void StackPages::go_on_showing(unsigned number, std::set<Awaited> is_there) {
  if (number != shows_ || !show_) return;
  for (const Awaited one : is_there) show_->awaits.erase(one);
  if (!show_->awaits.empty()) return;
  limit_.cancel();
  std::exchange(show_, {})->done();
}

void StackPages::carry_out(const action::GiveUpStacks& /*none*/) {
  limit_.cancel();
  show_.reset();
  const auto asked = std::ranges::find_if(questions_, [](const auto& one) { return one.second.is_for_stop; });
  // What is there helps all the same.
  if (asked != questions_.end()) end_question(asked->first, {"not all machines had answered at the stop"}, false);
}

void StackPages::when_shown(std::function<void()> then) {
  if (!is_page_due_) return then();
  when_shown_ = std::move(then);
}

// ---- several machines

void StackPages::on_told(const rendezvous::Look& look) {
  if (look.question != rendezvous::stacks_question) return job_.rendezvous->send(rendezvous::Stacks{look.number});
  read_own(look.options);
  send_own(look.options, look.number);
  forget_own();
}

void StackPages::read_own(const std::string& options) {
  const auto found = own_.find(options);
  const auto begun = Clock::now();
  const bool is_old = found == own_.end() || found->second.state == Own::State::sent ||
                      (found->second.state == Own::State::ready && begun > found->second.begun + own_lasts);
  if (!is_old) return;
  own_[options] = {.begun = begun};
  Request request = page_request("");
  add_own(request, targets());
  if (options == for_stop) request.file_prefix = file_prefix();
  request.format = Format::share;
  request.all_threads = options == all_threads;
  request.max_bytes = std::max(rendezvous::max_answer_part,
                               rendezvous::max_all_answers / static_cast<std::size_t>(job_.ranks.node_count));
  reader_.async_read(std::move(request), [this, options, begun](const auto& answer) {
    if (!answer.file.empty()) job_.record.result().stack_files.push_back(answer.file);
    Own& own = own_[options];
    if (own.begun != begun) return;
    own.text = answer.text;
    if (!show_ || options != for_stop) return answer_looks(options);
    settle([this, options, number = shows_] {
      answer_looks(options);
      go_on_showing(number, {Awaited::own});
    });
  });
}

void StackPages::answer_looks(const std::string& options) {
  Own& own = own_[options];
  own.state = Own::State::ready;
  for (const std::uint32_t look : std::exchange(own.looks, {})) send_own(options, look);
  forget_own();
}

void StackPages::send_own(const std::string& options, std::uint32_t look) {
  Own& own = own_[options];
  if (own.state == Own::State::reading) return own.looks.push_back(look);
  own.state = Own::State::sent;
  std::vector<RankName> gave_up;
  for (const Worker& worker : group_.workers()) {
    // It reads files.
    if (options == for_stop && job_.record.has_given_up(worker, output_)) gave_up.push_back(worker.end.rank_name());
  }
  job_.rendezvous->send(rendezvous::Stacks{look, true, inspect::share_of(gave_up, job_.ranks.base_rank, own.text)});
}

void StackPages::forget_own() {
  if (!questions_.empty() || show_) return;
  std::erase_if(own_, [](const auto& one) { return one.second.state != Own::State::reading; });
}

void StackPages::open_question(std::uint32_t number, Question question) {
  question.by = Clock::now() + page_timeout;
  if (questions_.empty()) late_.set(question.by, [this] { end_late_questions(); });
  questions_.emplace(number, std::move(question));
}

void StackPages::end_late_questions() {
  const auto now = Clock::now();
  std::vector<std::uint32_t> late;
  Deadline next = Deadline::max();
  for (const auto& [number, question] : questions_) {
    if (question.by <= now) late.push_back(number);
    else next = std::min(next, question.by);
  }
  if (next != Deadline::max()) late_.set(next, [this] { end_late_questions(); });
  const std::string why = concat("the coordinator did not answer within ", format_duration(page_timeout));
  for (const std::uint32_t number : late) end_question(number, {why}, false);
}

void StackPages::ask(const std::string& options, bool is_for_stop, Request request,
                     std::function<void(const Answer*)> done) {
  if (++last_question_ == 0) ++last_question_;
  open_question(last_question_, {options, std::move(request), std::move(done), is_for_stop, {}});
  job_.rendezvous->send(rendezvous::Ask{last_question_, rendezvous::stacks_question, options, is_for_stop});
}

StackPages::Request StackPages::page_request(const std::string& why) const {
  Request request;
  request.why = why;
  request.directory = job_.prepared.first().directory;
  request.is_whole = job_.ranks.node_count <= 1;
  for (const int port : job_.rendezvous->store_ports()) request.store_ports.insert(port);
  request.store_ports.insert(job_.ranks.master_port);
  request.store_ports.erase(0);  // before the first round
  return request;
}

void StackPages::add_own(Request& request, Targets targets) const {
  request.targets = std::move(targets);
  if (const std::string wait = describe_wait_(); !wait.empty()) request.notes = {wait};
  for (auto& wait : job_.rendezvous->store_waits()) {
    std::string keys = join(wait.keys, ", ");
    if (wait.keys_left_out > 0) keys += concat(" and ", wait.keys_left_out, " more");
    const auto since = std::chrono::duration_cast<Milliseconds>(Clock::now() - wait.since);
    request.store_waits.push_back({std::move(keys), std::move(wait.clients), since.count()});
  }
}

/// On the machine that reports to the user.
void StackPages::await_page(const std::string& why) {
  if (questions_.contains(0)) return;
  is_page_due_ = true;
  const auto done = [this](const Answer* answer) {
    show(*answer);
    is_page_due_ = false;
    if (const auto then = std::exchange(when_shown_, nullptr)) then();
  };
  open_question(0, {for_stop, page_request(why), done, false, {}});
}

void StackPages::on_told(const rendezvous::Page& page) {
  const bool is_end = page.node_rank < 0;
  if (page.number == 0 && !is_end) await_page(show_ ? show_->why : "");
  const auto found = questions_.find(page.number);
  if (found == questions_.end()) return;
  if (is_end) return end_question(page.number, page.missing, true);
  Question& question = found->second;
  inspect::StackReader::Share& share = question.shares[page.node_rank];
  share.host = page.host;
  share.text += page.part;
  if (page.last) question.complete.insert(page.node_rank);
}

void StackPages::end_question(std::uint32_t number, std::vector<std::string> notes, bool in_time) {
  Question question = std::move(questions_.extract(number).mapped());
  if (questions_.empty()) late_.cancel();
  if (in_time && question.is_for_stop) return question.done(nullptr);
  std::vector<inspect::StackReader::Share> shares;
  for (auto& [node_rank, share] : question.shares) {
    if (question.complete.contains(node_rank)) shares.push_back(std::move(share));
  }
  const auto own = own_.find(question.options);
  if (shares.empty() && own != own_.end() && !own->second.text.empty()) {
    notes.push_back("the ranks of this machine only");
    shares.push_back({job_.ranks.host, inspect::share_of({}, job_.ranks.base_rank, own->second.text)});
  }
  forget_own();
  question.request.is_whole = in_time && notes.empty();
  question.request.notes = std::move(notes);
  reader_.async_merge(std::move(question.request), std::move(shares),
                      [done = std::move(question.done)](const auto& answer) { done(&answer); });
}

// ---- `ddrun stacks`

void StackPages::open_socket_later() {
  socket_.open_later(job_.prepared.parent.get("XDG_RUNTIME_DIR").value_or(""), job_.context.shared->started_pid);
}

void StackPages::close() {
  socket_.close();
  questions_.clear();
}

std::string StackPages::no_rank_reply(bool some_were_asked, const std::vector<std::string>& notes) const {
  const std::string wait = notes.empty() ? describe_wait_() : join(notes, "; ");
  const bool is_start = notes.empty() && job_.record.result().attempts.empty();
  const std::string_view what = some_were_asked ? "no such rank runs in this job"
                                : is_start      ? "no worker runs yet"
                                                : "no worker is found";
  return error_reply(concat(what, wait.empty() ? "" : ": ", wait));
}

/// Of agents of one job that run on one machine; empty: there is only this one.
std::string StackPages::job_identity() const {
  if (job_.spec.rendezvous.max_nodes <= 1) return {};
  std::string identity = job_.rendezvous->run_id();
  for (const Endpoint& at : job_.spec.rendezvous.coordinators) identity += concat(" ", at.host, ":", at.port);
  return identity;
}

void StackPages::answer_client(const job_socket::Request& request, const job_socket::Server::Reply& reply) {
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
                             {"job", job_identity()},
                             {"program", job_.spec.first().name},
                             {"ranks", ranks},
                             {"started", ::time(nullptr) - age.count()}}));
  }
  const auto answered = [this, as_json = request.as_json, reply](const auto& read) {
    on_answer_();
    reply(as_json ? concat(R"({"stacks":)", read.text, "}") : reply_line({{"text", read.text}}));
  };
  Request page = page_request("");
  if (request.as_json) page.format = Format::json;
  else if (request.all_threads) page.format = Format::all_threads;
  if (job_.ranks.node_count > 1) {
    const std::string options = page.format == Format::text ? main_threads : all_threads;
    page.includes = [request](const RankName& rank) { return request.includes(rank); };
    read_own(options);
    return ask(options, false, std::move(page),
               [this, answered, reply, is_some = !request.ranks.empty()](const Answer* read) {
                 if (read->page.ranks.empty()) return reply(no_rank_reply(is_some, read->page.notes));
                 answered(*read);
               });
  }
  if (ranks.empty()) return reply(no_rank_reply(false, {}));
  if (asked.empty()) {
    return reply(error_reply(concat("no such rank runs on this machine; give some of ", name_workers(names))));
  }
  page.is_whole = asked.size() == group_.workers().size();
  add_own(page, std::move(asked));
  reader_.async_read(std::move(page), answered);
}

}  // namespace ddrun::agent
