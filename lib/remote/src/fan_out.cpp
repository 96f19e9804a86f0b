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
  // Another host that started a target which is here would look for it in the wrong place.
  std::vector<Branch> branches;
  std::vector<Target> elsewhere;
  for (const Target& target : targets) {
    if (target.here) branches.push_back({target, {}});
    else elsewhere.push_back(target);
  }
  for (Branch& branch : split_targets(elsewhere, settings_.width)) branches.push_back(std::move(branch));
  for (Branch& branch : branches) {
    Arm& arm = *arms_.emplace_back(std::make_unique<Arm>());
    arm.branch = std::move(branch);
    way_[arm.branch.root.index] = &arm;
    for (const Target& target : arm.branch.rest) way_[target.index] = &arm;
    Link::Events events;
    events.on_ready = [this, &arm] {
      if (arm.branch.rest.empty()) return;
      arm.link->send(FrameType::fan_out, arm.branch.root.index,
                     to_json(FanOutOrder{arm.branch.rest, settings_.ssh, settings_.program, settings_.width,
                                         settings_.start_limit}));
    };
    events.on_frame = [this, &arm](const Frame& frame) {
      Frame known = frame;
      if (known.host == this_host) known.host = arm.branch.root.index;
      take_frame(arm, known);
    };
    events.on_end = [this, &arm](const std::string& why) { link_ended(arm, why); };
    arm.link = std::make_unique<Link>(executor_, settings_, arm.branch.root, std::move(events));
  }
  for (const auto& arm : arms_) arm->link->start(launcher_, watcher_);
}

void FanOut::take_frame(const Arm& arm, const Frame& frame) {
  const auto way = way_.find(frame.host);
  if (way == way_.end() || way->second != &arm) return arm.link->cut("it spoke for another host");
  if (frame.type == FrameType::alive || ended_.count(frame.host) != 0) return;
  if (frame.type == FrameType::failed) {
    ended_.insert(frame.host);
    events_.on_lost(frame.host, std::string(frame.payload));
    return;
  }
  if (frame.type == FrameType::ended) ended_.insert(frame.host);
  events_.on_frame(frame);
}

void FanOut::link_ended(const Arm& arm, const std::string& why) {
  if (ended_.insert(arm.branch.root.index).second) events_.on_lost(arm.branch.root.index, why);
  for (const Target& target : arm.branch.rest) {
    if (!ended_.insert(target.index).second) continue;
    events_.on_lost(target.index,
                    concat("lost the way to host ", target.host, ", which was reached through ", arm.branch.root.host));
  }
  if (is_over()) events_.on_over();
}

void FanOut::send(FrameType type, std::uint32_t host, std::string_view payload) {
  const auto way = way_.find(host);
  if (way != way_.end()) way->second->link->send(type, host, payload);
}

void FanOut::send_all(FrameType type, std::string_view payload) {
  for (const auto& [host, arm] : way_) {
    if (ended_.count(host) == 0) arm->link->send(type, host, payload);
  }
}

void FanOut::ping() {
  for (const auto& arm : arms_) arm->link->send(FrameType::ping, arm->branch.root.index, {});
}

void FanOut::give_up(std::uint32_t host) {
  const auto way = way_.find(host);
  if (way != way_.end() && !way->second->link->is_ready()) way->second->link->kill();
}

void FanOut::hang_up() {
  for (const auto& arm : arms_) arm->link->hang_up();
}

void FanOut::kill() {
  for (const auto& arm : arms_) arm->link->kill();
}

void FanOut::pause(bool paused) {
  for (const auto& arm : arms_) arm->link->pause(paused);
}

void FanOut::child_ended(const process::ChildEnd& end) {
  for (const auto& arm : arms_) {
    if (arm->link->child_ended(end)) return;
  }
}

bool FanOut::is_over() const {
  return std::all_of(arms_.begin(), arms_.end(), [](const auto& arm) { return arm->link->is_over(); });
}

}  // namespace ddrun::remote
