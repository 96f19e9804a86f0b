#include <utility>

#include "job.hpp"

namespace ddrun::rendezvous {

namespace {

/// Of unread reports; below the transport's limit for an agent that does not read.
constexpr std::uint64_t max_unread_report_bytes = 32UL << 20U;

}  // namespace

void Outgoing::send(LinkId link, FromCoordinator message) { outputs_.push_back(Output{link, std::move(message)}); }

void Outgoing::close(LinkId link) { outputs_.push_back(Output{link, std::nullopt}); }

void Outgoing::refuse(LinkId link, RefusalKind kind, const std::string& why) {
  send(link, Refused{kind, why});
  close(link);
}

void Outgoing::ping(LinkId link, std::uint32_t heard) {
  if (++pings_ == 0) ++pings_;
  send(link, Ping{pings_, 0, heard});
  if (link == reported_.to && reported_.ping == 0) {
    reported_.ping = pings_;
    reported_.sent_before_ping = reported_.sent;
  }
}

void Outgoing::on_pong(LinkId link, std::uint32_t number) {
  if (link != reported_.to || reported_.ping == 0 || static_cast<std::int32_t>(number - reported_.ping) < 0) return;
  reported_.read = reported_.sent_before_ping;
  reported_.ping = 0;
}

void Outgoing::event(std::string json, std::size_t max_early) {
  early_events_.push_back(std::move(json));
  if (const auto to = observer_()) {
    for (auto& one : std::exchange(early_events_, {})) send(*to, Log{LogKind::event, std::move(one)});
    return;
  }
  while (early_events_.size() > max_early) early_events_.pop_front();
}

void Outgoing::notice(const std::string& text) {
  if (const auto to = observer_()) send(*to, Log{LogKind::notice, text});
}

void Outgoing::report(Log report) {
  const auto to = observer_();
  if (!to) return;
  if (reported_.to != *to) reported_ = {.to = *to};
  const bool fits = reported_.sent - reported_.read + report.text.size() <= max_unread_report_bytes;
  if (fits) reported_.sent += report.text.size();
  else report.text.clear();
  send(*to, std::move(report));
}

std::vector<Output> Outgoing::take() { return std::exchange(outputs_, {}); }

}  // namespace ddrun::rendezvous
