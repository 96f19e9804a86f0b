#include "ddrun/lease/callback_queue.hpp"

#include <boost/asio/post.hpp>
#include <utility>

namespace ddrun::lease {

CallbackQueue::CallbackQueue(boost::asio::any_io_executor executor, Callbacks callbacks)
    : executor_(std::move(executor)), callbacks_(std::make_shared<const Callbacks>(std::move(callbacks))) {}

void CallbackQueue::post(std::function<void(const Callbacks&)> what) {
  if (!callbacks_) return;
  boost::asio::post(executor_, [weak = std::weak_ptr(callbacks_), what = std::move(what)] {
    if (const auto callbacks = weak.lock()) what(*callbacks);
  });
}

void CallbackQueue::leader(const Leader& leader) {
  if (last_leader_ == leader) return;
  last_leader_ = leader;
  post([leader](const Callbacks& to) {
    if (to.on_leader) to.on_leader(leader);
  });
}

void CallbackQueue::no_leader() {
  if (!last_leader_ || last_leader_->is_self) return;
  last_leader_.reset();
  post([](const Callbacks& to) {
    if (to.on_no_leader) to.on_no_leader();
  });
}

void CallbackQueue::lost(std::string why) {
  last_leader_.reset();
  post([why = std::move(why)](const Callbacks& to) {
    if (to.on_lost) to.on_lost(why);
  });
}

void CallbackQueue::verdict(std::string text) {
  post([text = std::move(text)](const Callbacks& to) {
    if (to.on_verdict) to.on_verdict(text);
  });
}

void CallbackQueue::status(std::string text) {
  if (text == last_status_) return;
  last_status_ = text;
  post([text = std::move(text)](const Callbacks& to) {
    if (to.on_status) to.on_status(text);
  });
}

void CallbackQueue::unusable(Error error) {
  post([error = std::move(error)](const Callbacks& to) {
    if (to.on_unusable) to.on_unusable(error);
  });
}

void CallbackQueue::complete(Lease::Done done, Result<void> result) {
  if (!done) return;
  post([done = std::move(done), result = std::move(result)](const Callbacks&) { done(result); });
}

void CallbackQueue::post_other(std::function<void()> what) {
  post([what = std::move(what)](const Callbacks&) { what(); });
}

void CallbackQueue::close() { callbacks_.reset(); }

}  // namespace ddrun::lease
