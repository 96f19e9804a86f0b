#include "fan_out.hpp"

#include <algorithm>

#include "ddrun/base/text.hpp"

namespace ddrun::remote {

FanOut::FanOut(boost::asio::any_io_executor executor, process::Launcher& launcher, process::ChildWatcher& watcher,
               LinkSettings settings, Events events)
    : executor_(std::move(executor)),
      launcher_(launcher),
      watcher_(watcher),
      settings_(std::move(settings)),
      events_(std::move(events)) {}

void FanOut::start(const std::vector<Target>& targets) {
  // A local target must be started from here, not through another host.
  std::vector<Branch> branches;
  std::vector<Target> elsewhere;
  for (const Target& target : targets) {
    if (target.is_local) branches.push_back({target, {}});
    else elsewhere.push_back(target);
  }
  for (Branch& branch : split_targets(elsewhere, settings_.width)) branches.push_back(std::move(branch));
  for (Branch& branch : branches) {
    Subtree& subtree = *subtrees_.emplace_back(std::make_unique<Subtree>());
    subtree.branch = std::move(branch);
    routes_[subtree.branch.root.index] = &subtree;
    for (const Target& target : subtree.branch.rest) routes_[target.index] = &subtree;
    Link::Events events;
    events.on_ready = [this, &subtree] {
      if (subtree.branch.rest.empty()) return;
      subtree.link->send(FrameType::fan_out, subtree.branch.root.index,
                         to_json(FanOutOrder{subtree.branch.rest, settings_.ssh, settings_.program, settings_.width,
                                             settings_.start_limit}));
    };
    events.on_frame = [this, &subtree](const Frame& frame) {
      Frame known = frame;
      if (known.host == this_host) known.host = subtree.branch.root.index;
      handle_frame(subtree, known);
    };
    events.on_end = [this, &subtree](const std::string& why) { link_ended(subtree, why); };
    subtree.link = std::make_unique<Link>(executor_, settings_, subtree.branch.root, std::move(events));
  }
  for (const auto& subtree : subtrees_) subtree->link->start(launcher_, watcher_);
}

void FanOut::handle_frame(const Subtree& subtree, const Frame& frame) {
  const auto route = routes_.find(frame.host);
  if (route == routes_.end() || route->second != &subtree) return subtree.link->disconnect("it spoke for another host");
  if (frame.type == FrameType::alive || ended_.count(frame.host) != 0) return;
  if (frame.type == FrameType::failed) {
    ended_.insert(frame.host);
    events_.on_lost(frame.host, std::string(frame.payload));
    return;
  }
  if (frame.type == FrameType::ended) ended_.insert(frame.host);
  events_.on_frame(frame);
}

void FanOut::link_ended(const Subtree& subtree, const std::string& why) {
  if (ended_.insert(subtree.branch.root.index).second) events_.on_lost(subtree.branch.root.index, why);
  for (const Target& target : subtree.branch.rest) {
    if (!ended_.insert(target.index).second) continue;
    events_.on_lost(target.index, concat("lost the way to host ", target.host, ", which was reached through ",
                                         subtree.branch.root.host));
  }
  if (is_over()) events_.on_over();
}

void FanOut::send(FrameType type, std::uint32_t host, std::string_view payload) {
  const auto route = routes_.find(host);
  if (route != routes_.end()) route->second->link->send(type, host, payload);
}

void FanOut::send_all(FrameType type, std::string_view payload) {
  for (const auto& [host, subtree] : routes_) {
    if (ended_.count(host) == 0) subtree->link->send(type, host, payload);
  }
}

void FanOut::ping() {
  for (const auto& subtree : subtrees_) subtree->link->send(FrameType::ping, subtree->branch.root.index, {});
}

void FanOut::cancel_start(std::uint32_t host) {
  const auto route = routes_.find(host);
  if (route != routes_.end() && !route->second->link->is_ready()) route->second->link->kill();
}

void FanOut::close_input() {
  for (const auto& subtree : subtrees_) subtree->link->close_input();
}

void FanOut::kill() {
  for (const auto& subtree : subtrees_) subtree->link->kill();
}

void FanOut::pause(bool paused) {
  for (const auto& subtree : subtrees_) subtree->link->pause(paused);
}

void FanOut::child_ended(const process::ChildEnd& end) {
  for (const auto& subtree : subtrees_) {
    if (subtree->link->child_ended(end)) return;
  }
}

bool FanOut::is_over() const {
  return std::all_of(subtrees_.begin(), subtrees_.end(), [](const auto& subtree) { return subtree->link->is_over(); });
}

}  // namespace ddrun::remote
