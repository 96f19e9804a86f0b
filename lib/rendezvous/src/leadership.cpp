#include "leadership.hpp"

#include <algorithm>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/post.hpp>
#include <string_view>
#include <utility>
#include <vector>

#include "ddrun/base/event_thread.hpp"
#include "ddrun/base/text.hpp"
#include "ddrun/lease/etcd.hpp"
#include "ddrun/lease/program_lease.hpp"

namespace ddrun::rendezvous {

namespace asio = boost::asio;

namespace {

std::vector<std::string> etcd_command(const RendezvousSpec& spec) {
  const auto conf = [&](const std::string& key) { return spec.conf_value(key).value_or(""); };
  return lease::etcd_command({spec.endpoint, conf("protocol") == "https", conf("cacert"), conf("cert"), conf("key")});
}

lease::ProgramOptions lease_program(const RendezvousSpec& spec, std::function<void(pid_t)> on_program) {
  lease::ProgramOptions program;
  if (spec.is_etcd()) {
    program.argv = etcd_command(spec);
    // Not in argv, which is visible to all users.
    if (const auto user = spec.conf_value("user").value_or(""); !user.empty()) {
      program.environment = concat("DDRUN_ETCD_USER=", user);
    }
  } else {
    for (auto& word : split(spec.lease, ' ')) {
      if (!word.empty()) program.argv.push_back(std::move(word));
    }
  }
  program.on_start = std::move(on_program);
  return program;
}

}  // namespace

Leadership::Leadership(asio::any_io_executor executor) : executor_(std::move(executor)) {}

Result<std::unique_ptr<Leadership>> Leadership::make(asio::any_io_executor executor, const RendezvousSpec& spec,
                                                     std::function<void(pid_t)> on_program,
                                                     lease::Callbacks callbacks) {
  if (spec.is_etcd()) {
    if (auto there = lease::check_etcdctl(); !there) return tl::unexpected(there.error());
  }
  std::unique_ptr<Leadership> made(new Leadership(std::move(executor)));
  made->callbacks_ = std::make_shared<const lease::Callbacks>(made->track_state(std::move(callbacks)));
  // Posts to the owner's thread, unless the owner is destroyed by then.
  const auto forward = [executor = made->executor_, weak = std::weak_ptr(made->callbacks_)](auto member, auto... args) {
    asio::post(executor, [weak, member, ... args = std::move(args)] {
      const auto callback = weak.lock();
      if (callback && (*callback).*member) ((*callback).*member)(args...);
    });
  };
  using lease::Callbacks;
  Callbacks on_thread;
  on_thread.on_leader = [forward](const lease::Leader& leader) { forward(&Callbacks::on_leader, leader); };
  on_thread.on_no_leader = [forward] { forward(&Callbacks::on_no_leader); };
  on_thread.on_lost = [forward](std::string_view why) { forward(&Callbacks::on_lost, std::string(why)); };
  on_thread.on_verdict = [forward](std::string_view text) { forward(&Callbacks::on_verdict, std::string(text)); };
  on_thread.on_status = [forward](std::string_view text) { forward(&Callbacks::on_status, std::string(text)); };
  on_thread.on_unusable = [forward](const Error& error) { forward(&Callbacks::on_unusable, error); };
  auto lease = lease::make_program_lease(made->context_.get_executor(), {spec.id, spec.lease_ttl},
                                         lease_program(spec, std::move(on_program)), std::move(on_thread));
  if (!lease) return tl::unexpected(lease.error());
  made->lease_ = std::move(*lease);
  return made;
}

/// Updates the state before the callback.
lease::Callbacks Leadership::track_state(lease::Callbacks callbacks) {
  const auto before = [](auto update, auto callback) {
    return [update, callback = std::move(callback)](const auto&... args) {
      update(args...);
      if (callback) callback(args...);
    };
  };
  callbacks.on_leader = before(
      [this](const lease::Leader& leader) {
        leader_ = leader;
        last_error_.clear();
      },
      std::move(callbacks.on_leader));
  callbacks.on_no_leader = before([this] { leader_.reset(); }, std::move(callbacks.on_no_leader));
  callbacks.on_lost = before([this](std::string_view) { leader_.reset(); }, std::move(callbacks.on_lost));
  callbacks.on_status = before([this](std::string_view text) { last_error_ = text; }, std::move(callbacks.on_status));
  callbacks.on_unusable =
      before([this](const Error& error) { last_error_ = error.message; }, std::move(callbacks.on_unusable));
  return callbacks;
}

Leadership::~Leadership() {
  callbacks_.reset();
  if (!thread_.joinable()) return;
  asio::post(context_, [this] {
    lease_.reset();
    context_.stop();
  });
  thread_.join();
}

Result<void> Leadership::start() {
  auto thread = start_thread_signals_blocked("ddrun-lease", [this] {
    const auto work = asio::make_work_guard(context_);
    context_.run();
  });
  if (!thread) return tl::unexpected(std::move(thread.error()));
  thread_ = std::move(*thread);
  asio::post(context_, [this] { lease_->start(); });
  return {};
}

void Leadership::campaign(std::string address) {
  is_candidate_ = true;
  asio::post(context_, [this, address = std::move(address)]() mutable {
    resign_timer_.expires_at(Deadline::max());
    lease_->campaign(std::move(address));
  });
}

void Leadership::depose(std::uint64_t term) {
  asio::post(context_, [this, term] { lease_->depose(term); });
}

void Leadership::resign(lease::Lease::Done done) {
  is_candidate_ = false;
  asio::post(context_, [this, executor = executor_, done = std::move(done)]() mutable {
    resign_timer_.expires_at(Deadline::max());
    lease_->resign([executor, done = std::move(done)](const Result<void>& result) {
      if (done) asio::post(executor, [done, result] { done(result); });
    });
  });
}

void Leadership::resign_after(Milliseconds time) {
  asio::post(context_, [this, time] {
    resign_timer_.expires_after(time);
    resign_timer_.async_wait([this](const boost::system::error_code& ec) {
      // It may have expired while it was being rearmed.
      if (!ec && lease_ && Clock::now() >= resign_timer_.expiry()) lease_->resign([](const Result<void>&) {});
    });
  });
}

void Leadership::record_verdict(std::string text, lease::Lease::Done done) {
  asio::post(context_, [this, executor = executor_, text = std::move(text), done = std::move(done)]() mutable {
    lease_->record_verdict(std::move(text), [this, executor, done = std::move(done)](const Result<void>& result) {
      if (result) has_recorded_ = true;
      asio::post(executor, [done, result] { done(result); });
    });
  });
}

}  // namespace ddrun::rendezvous
