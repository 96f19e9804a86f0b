#include "survey_invariants.hpp"

#include <algorithm>

#include "ddrun/base/text.hpp"
#include "simulation_invariants.hpp"

namespace ddrun::test {

using namespace ddrun::rendezvous;

namespace {

bool is_same(const Ask& one, const Ask& other) {
  return one.question == other.question && one.options == other.options;
}

}  // namespace

void SurveyInvariants::receives(LinkId link, const FromAgent& message, Clock::time_point now) {
  if (coordinator_.job().is_over() || coordinator_.job().members.find(link) == nullptr) return;
  if (const auto* ask = std::get_if<Ask>(&message)) {
    // Another question that is open comes first, and a stop's before all.
    const bool is_second = std::ranges::any_of(open_, [&](const auto& one) { return !is_same(one.second.ask, *ask); });
    const auto by = std::max(now, stop_until_) + Survey::timeout * (is_second ? 2 : 1);
    require(open_.try_emplace({link, ask->number}, Open{*ask, by}).second, "link ", link,
            " asks with one number twice");
  } else if (const auto* pong = std::get_if<Pong>(&message)) {
    Unconfirmed& at = unconfirmed_[link];
    for (; !at.pings.empty() && at.pings.front().first <= pong->number; at.pings.pop_front()) {
      at.bytes -= at.pings.front().second;
    }
  }
}

void SurveyInvariants::sends(LinkId link, const FromCoordinator& message, Clock::time_point now) {
  if (const auto* ping = std::get_if<Ping>(&message)) {
    Unconfirmed& at = unconfirmed_[link];
    if (at.since_ping > 0) at.pings.emplace_back(ping->number, std::exchange(at.since_ping, 0));
  } else if (const auto* page = std::get_if<Page>(&message)) {
    on_page(link, *page, now);
  } else if (const auto* stop = std::get_if<Stop>(&message); stop != nullptr && stop->look != 0) {
    require(stop->awaits_page == (coordinator_.job().out.observer() == link), "STOP says to link ", link,
            " that it gets the answers: ", stop->awaits_page);
    if (now + Survey::timeout <= stop_until_) return;
    stop_until_ = now + Survey::timeout;
    for (auto& [key, open] : open_) open.by += Survey::timeout;
  }
}

void SurveyInvariants::on_page(LinkId link, const Page& page, Clock::time_point now) {
  if (page.number == 0) {
    const auto reports = reports_.find(link);
    const bool does = coordinator_.job().out.observer() == link ||
                      (reports != reports_.end() && now - reports->second <= Survey::timeout + late_);
    require(does, "the answers before a stop go to link ", link, ", which does not report");
  }
  const auto open = open_.find({link, page.number});
  require(page.number == 0 || open != open_.end(), "link ", link, " gets a page of question ", page.number,
          ", which it does not ask, or which has ended");
  if (page.node_rank < 0) {
    if (page.number != 0) open_.erase(open);
    return;
  }
  require(page.number == 0 || !open->second.ask.is_for_stop, "link ", link, " gets more than the end");
  Unconfirmed& at = unconfirmed_[link];
  at.since_ping += page.part.size();
  at.bytes += page.part.size();
  require(at.bytes <= max_answer_part, "link ", link, " is sent ", at.bytes, " bytes that it has not confirmed");
}

void SurveyInvariants::after_step(Clock::time_point now) {
  const Job& job = coordinator_.job();
  if (job.is_over()) return open_.clear();
  if (const auto observer = job.out.observer()) reports_[*observer] = now;
  std::erase_if(open_, [&](const auto& one) { return job.members.find(one.first.first) == nullptr; });
  for (const auto& [key, open] : open_) {
    require(now <= open.by + late_, "question ", key.second, " of link ", key.first, " has no end in time");
  }
}

void SurveyInvariants::note_suspended(Clock::duration time) {
  stop_until_ += time;
  for (auto& [key, open] : open_) open.by += time;
}

}  // namespace ddrun::test
