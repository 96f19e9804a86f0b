#include "survey.hpp"

#include <algorithm>
#include <set>
#include <utility>

#include "ddrun/base/text.hpp"

namespace ddrun::rendezvous {

namespace {

/// Of one agent, which the user asks by its socket.
constexpr std::ptrdiff_t max_questions = 16;

bool is_same(const Ask& one, const Ask& other) {
  return one.question == other.question && one.options == other.options;
}

}  // namespace

void Survey::on(const Member& asker, const Ask& ask) {
  const auto is_its = [&](const auto& one) { return one.link == asker.link; };
  const auto count = std::ranges::count_if(askers_, is_its) + std::ranges::count_if(queued_, is_its);
  if (ask.number == 0 || count >= max_questions) return;
  if (is_open() && !is_same(ask, question_)) return queued_.push_back({asker.link, ask});
  if (!is_open()) {
    question_ = ask;
    begin();
    for (const auto& [link, from] : awaited_) job_.out.send(link, Look{number_, ask.question, ask.options});
  }
  add(asker.link, ask);
  serve_all();
}

void Survey::begin() {
  if (++last_number_ == 0) ++last_number_;
  number_ = last_number_;
  for (const auto& [link, member] : job_.members.all()) {
    if (member.owes_stopped()) awaited_.emplace(link, Awaited{member.node_rank, member.host});
  }
  job_.deadlines.arm(Due::survey, job_.now + timeout);
}

void Survey::add(LinkId link, const Ask& ask) {
  const auto observer = job_.out.observer();
  const bool is_reported = std::ranges::any_of(askers_, [](const Asker& one) { return one.number == 0; });
  if (ask.is_for_stop && observer && !is_reported) askers_.push_back({.link = *observer});
  askers_.push_back({.link = link, .number = ask.number, .is_for_stop = ask.is_for_stop});
}

std::uint32_t Survey::begin_at_stop() {
  const auto observer = job_.out.observer();
  if (!observer) return 0;
  auto queued = std::exchange(queued_, {});
  if (is_open()) on_timeout();
  queued_ = std::move(queued);
  question_ = {};
  begin();
  askers_.push_back({.link = *observer});
  return number_;
}

void Survey::on(const Member& member, const Stacks& answer) {
  const auto awaited = awaited_.find(member.link);
  if (!is_open() || answer.number != number_ || awaited == awaited_.end()) return;
  const auto& [node_rank, host] = awaited->second;
  bytes_ += answer.part.size();
  if (bytes_ > max_all_answers || answer.part.size() > max_answer_part) {
    missing_.push_back(concat(host, ": left out, the answers of all machines have more than 4 MiB"));
    bytes_ -= answer.part.size();
    awaited_.erase(awaited);
  } else {
    answers_.push_back({0, node_rank, host, answer.last, answer.part});
    if (answer.last) awaited_.erase(awaited);
    // The agent sends the next part, of this answer or another, when this one is confirmed.
    job_.out.ping(member.link, member.pong);
  }
  serve_all();
}

void Survey::on_pong(LinkId link, std::uint32_t number) {
  const auto ping = unconfirmed_.find(link);
  if (ping == unconfirmed_.end() || static_cast<std::int32_t>(number - ping->second) < 0) return;
  unconfirmed_.erase(ping);
  if (is_open()) serve_all();
}

void Survey::on_lost(LinkId gone) {
  std::erase_if(queued_, [&](const Queued& one) { return one.link == gone; });
  std::erase_if(askers_, [&](const Asker& one) { return one.link == gone; });
  unconfirmed_.erase(gone);
  if (const auto lost = awaited_.extract(gone)) missing_.push_back(lost.mapped().host + ": was lost");
  if (is_open()) serve_all();
}

bool Survey::serve(Asker& asker) {
  const bool is_complete = awaited_.empty();
  if (asker.is_for_stop) {
    const bool is_reported = std::ranges::none_of(askers_, [](const Asker& one) { return one.number == 0; });
    if (is_complete && is_reported) send_end(asker);
    return is_complete && is_reported;
  }
  std::size_t sent = 0;
  for (const bool may_send = !unconfirmed_.contains(asker.link); may_send && asker.next < answers_.size();
       ++asker.next) {
    Page page = answers_[asker.next];
    if (sent > 0 && sent + page.part.size() > max_answer_part) break;
    sent += page.part.size();
    page.number = asker.number;
    job_.out.send(asker.link, std::move(page));
  }
  const Member* const member = sent > 0 ? job_.members.find(asker.link) : nullptr;
  if (member != nullptr) unconfirmed_[asker.link] = job_.out.ping(asker.link, member->pong);
  const bool has_all = is_complete && asker.next == answers_.size();
  if (has_all) send_end(asker);
  return has_all;
}

void Survey::serve_all() {
  // Those that get the end only come last.
  std::erase_if(askers_, [&](Asker& asker) { return !asker.is_for_stop && serve(asker); });
  std::erase_if(askers_, [&](Asker& asker) { return asker.is_for_stop && serve(asker); });
  if (askers_.empty()) end();
}

void Survey::send_end(const Asker& asker) {
  std::vector<std::string> missing = missing_;
  std::set<std::string> late;
  if (!asker.is_for_stop) {
    for (std::size_t i = asker.next; i < answers_.size(); ++i) late.insert(answers_[i].host);
  }
  for (const std::string& host : late) missing.push_back(concat(host, ": its answer did not arrive in time"));
  job_.out.send(asker.link, Page{.number = asker.number, .missing = std::move(missing)});
}

void Survey::on_timeout() {
  for (const auto& [link, from] : std::exchange(awaited_, {})) {
    missing_.push_back(concat(from.host, ": no answer within ", format_duration(timeout)));
  }
  for (const Asker& asker : std::exchange(askers_, {})) send_end(asker);
  end();
}

void Survey::end() {
  const auto queued = std::exchange(queued_, {});
  clear();
  for (const Queued& next : queued) {
    if (const Member* member = job_.members.find(next.link)) on(*member, next.ask);
  }
}

void Survey::clear() {
  job_.deadlines.clear(Due::survey);
  number_ = 0;
  awaited_.clear();
  answers_ = {};
  bytes_ = 0;
  missing_.clear();
  askers_.clear();
  queued_.clear();
}

}  // namespace ddrun::rendezvous
