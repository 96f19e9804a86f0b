#include "host_console.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <utility>

#include "ddrun/base/messages.hpp"
#include "ddrun/base/shared_output.hpp"
#include "ddrun/base/shutdown_timeouts.hpp"
#include "ddrun/base/text.hpp"
#include "ddrun/logs/piece_frames.hpp"

namespace ddrun::remote {

namespace {

/// Time without progress at the end after which a disk is given up.
constexpr std::chrono::seconds disk_stall_timeout{60};
constexpr std::size_t console_high = std::size_t{8} << 20U;
/// Of queued bytes while the hosts are read although the console takes nothing.
constexpr std::size_t max_read_ahead = 16 * console_high;

bool is_file(int fd) {
  struct stat info {};
  return ::fstat(fd, &info) == 0 && S_ISREG(info.st_mode);
}

}  // namespace

HostConsole::HostConsole(const boost::asio::any_io_executor& executor, const LogSpec& log,
                         std::function<void()> on_change)
    : on_change_(std::move(on_change)),
      patience_alarm_(executor),
      out_(console_on(executor, STDOUT_FILENO, log)),
      err_(logs::Console::same_file(STDOUT_FILENO, STDERR_FILENO) ? out_ : console_on(executor, STDERR_FILENO, log)) {
  for (const auto& ranks : {out_, err_}) {
    ranks->console().on_drained([this, ranks = ranks.get()] {
      ranks->flush();
      on_change_();
    });
  }
}

HostConsole::Ranks HostConsole::console_on(const boost::asio::any_io_executor& executor, int fd, const LogSpec& log) {
  logs::RankConsoleOptions options(log, ::isatty(fd) == 1);
  options.queue_high = console_high;
  options.knows_ranks = false;
  if (is_file(fd)) {
    if (auto disk = BackgroundWriter::start("ddrun-disk", {fd}, true)) {
      disks_.push_back(std::move(*disk));
      fd = disks_.back()->input();
    }
  }
  return std::make_shared<logs::RankConsole>(executor, fd, std::move(options));
}

HostConsole::~HostConsole() { set_message_sink({}); }

void HostConsole::redirect_messages() {
  set_message_sink([this](std::string_view line) {
    err_->add_text(line);
    err_->flush_now();
  });
}

void HostConsole::add_worker(HostLines& host, std::string_view payload) {
  const auto worker = logs::decode_worker(payload);
  if (!worker) return;
  logs::RankStream& label = host.workers[worker->key].label;
  label.rank = label.position = worker->rank;
  label.prefix = worker->label;
  label.labelled = worker->labelled;
  if (const std::size_t colon = worker->label.rfind(':'); colon != std::string_view::npos)
    label.scope = worker->label.substr(1, colon - 1);
}

void HostConsole::show_piece(HostLines& host, std::string_view payload) {
  const auto got = logs::decode_piece(payload);
  if (!got) return;
  if (const auto worker = host.workers.find(got->key); worker != host.workers.end()) {
    auto& stream = got->is_error ? worker->second.err : worker->second.out;
    logs::RankConsole& console = got->is_error ? *err_ : *out_;
    if (!stream) {
      stream = std::make_unique<logs::RankStream>(worker->second.label);
      stream->is_error = got->is_error;
      console.open_stream(*stream);
    }
    console.feed(*stream, got->piece);
  } else if (got->key == 0) {
    add_own(host, Stream::err, got->piece);
    err_->flush();
  }
  on_change_();
}

/// Of ddrun itself, with its host before it.
void HostConsole::add_own(HostLines& host, Stream stream, logs::Piece piece) {
  constexpr std::string_view own = "ddrun: ";
  std::string_view prefix;
  if ((stream == Stream::err || out_ == err_) && !host.own_prefix.empty() && piece.text.starts_with(own)) {
    prefix = host.own_prefix;
    piece.text.remove_prefix(own.size());
  }
  logs::RankConsole& ranks = stream == Stream::out ? *out_ : *err_;
  ranks.add_unlabelled(&(stream == Stream::out ? host.out : host.err), prefix, piece);
}

void HostConsole::show(HostLines& host, Stream stream, std::string_view bytes) {
  auto& lines = stream == Stream::out ? host.out : host.err;
  lines.feed(bytes, [&](const logs::Piece& piece) { add_own(host, stream, piece); });
  (stream == Stream::out ? out_ : err_)->flush();
  on_change_();
}

void HostConsole::finish(HostLines& host) {
  host.out.finish([&](const logs::Piece& piece) { add_own(host, Stream::out, piece); });
  host.err.finish([&](const logs::Piece& piece) { add_own(host, Stream::err, piece); });
  for (const auto& [key, worker] : host.workers) {
    if (worker.out) out_->close_stream(*worker.out);
    if (worker.err) err_->close_stream(*worker.err);
  }
  host.workers.clear();
  out_->flush();
  err_->flush();
}

void HostConsole::flush() {
  for (const auto& ranks : {out_, err_}) {
    ranks->release();
    ranks->flush_now();
  }
}

bool HostConsole::is_congested() const {
  if (patience_ == Patience::reads_ahead) return queued() >= max_read_ahead;
  return out_->console().has_back_pressure() || err_->console().has_back_pressure();
}

void HostConsole::read_ahead(std::function<void()> on_end) {
  if (patience_ == Patience::bounded) return;
  patience_ = Patience::reads_ahead;
  on_change_();
  patience_alarm_.set(Clock::now() + shutdown::console_stall_limit, [this, on_end = std::move(on_end)] {
    patience_ = Patience::waits;
    on_end();
    on_change_();
  });
}

void HostConsole::bound_wait() {
  if (std::exchange(patience_, Patience::bounded) == Patience::bounded) return;
  set_ending();
  watch_progress();
}

void HostConsole::watch_progress() {
  const auto written = [this] { return out_->console().written_bytes() + err_->console().written_bytes(); };
  patience_alarm_.set(Clock::now() + shutdown::console_stall_limit, [this, written, before = written()] {
    if (written() == before) {
      out_->console().drop_queue();
      err_->console().drop_queue();
    }
    on_change_();
    watch_progress();
  });
}

HostConsole::Loss HostConsole::close() {
  set_message_sink({});
  out_->close();
  if (err_ != out_) err_->close();
  Loss loss;
  const auto add = [&loss](const logs::Console& console) {
    if (console.lost_bytes() == 0 || console.reader_closed()) return;
    loss.bytes += console.lost_bytes();
    loss.why = console.first_error();
  };
  add(out_->console());
  if (err_ != out_) add(err_->console());
  if (!loss.why.empty()) return loss;
  for (const auto& disk : disks_) {
    const auto lost = disk->finish(disk_stall_timeout);
    if (lost.stalled || !lost.why.empty()) {
      loss.why = concat("cannot write to the console: ", lost.stalled ? "the disk takes nothing" : lost.why);
    }
  }
  return loss;
}

}  // namespace ddrun::remote
