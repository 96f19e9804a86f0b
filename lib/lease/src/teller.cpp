#include "ddrun/lease/teller.hpp"

#include <boost/asio/post.hpp>
#include <utility>

namespace ddrun::lease {

Teller::Teller(boost::asio::any_io_executor executor, Callbacks callbacks)
    : executor_(std::move(executor)), callbacks_(std::make_shared<const Callbacks>(std::move(callbacks))) {}

void Teller::post(std::function<void(const Callbacks&)> what) {
  if (!callbacks_) return;
  boost::asio::post(executor_, [weak = std::weak_ptr(callbacks_), what = std::move(what)] {
    if (const auto callbacks = weak.lock()) what(*callbacks);
  });
}

void Teller::leader(const Leader& leader) {
  if (told_ == leader) return;
  told_ = leader;
  post([leader](const Callbacks& to) {
    if (to.on_leader) to.on_leader(leader);
  });
}

void Teller::no_leader() {
  if (!told_ || told_->is_me) return;
  told_.reset();
  post([](const Callbacks& to) {
    if (to.on_no_leader) to.on_no_leader();
  });
}

void Teller::lost(std::string why) {
  told_.reset();
  post([why = std::move(why)](const Callbacks& to) {
    if (to.on_lost) to.on_lost(why);
  });
}

void Teller::verdict(std::string text) {
  post([text = std::move(text)](const Callbacks& to) {
    if (to.on_verdict) to.on_verdict(text);
  });
}

void Teller::trouble(std::string text) {
  if (text == trouble_) return;
  trouble_ = text;
  post([text = std::move(text)](const Callbacks& to) {
    if (to.on_trouble) to.on_trouble(text);
  });
}

void Teller::unusable(Error error) {
  post([error = std::move(error)](const Callbacks& to) {
    if (to.on_unusable) to.on_unusable(error);
  });
}

void Teller::answer(Lease::Done done, Result<void> result) {
  if (!done) return;
  post([done = std::move(done), result = std::move(result)](const Callbacks&) { done(result); });
}

void Teller::also(std::function<void()> what) {
  post([what = std::move(what)](const Callbacks&) { what(); });
}

void Teller::close() { callbacks_.reset(); }

}  // namespace ddrun::lease
