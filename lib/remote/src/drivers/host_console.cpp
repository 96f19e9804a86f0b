#include "host_console.hpp"

#include <limits.h>
#include <sys/stat.h>
#include <unistd.h>

#include <utility>

#include "ddrun/base/messages.hpp"
#include "ddrun/base/shared_output.hpp"
#include "ddrun/base/shutdown_timeouts.hpp"
#include "ddrun/base/text.hpp"

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

HostConsole::HostConsole(const boost::asio::any_io_executor& executor, const LogSpec& log, std::string mark,
                         std::function<void()> on_change)
    : mark_(std::move(mark)),
      labelled_(log.line_prefix_template.empty()),
      on_change_(std::move(on_change)),
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
  logs::RankConsoleOptions options;
  if (!mark_.empty()) options = logs::RankConsoleOptions(log, ::isatty(fd) == 1);
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

logs::RankStream& HostConsole::stream_of(HostLines& host, Stream stream, int rank, std::string_view prefix) {
  const bool is_error = stream == Stream::err && out_ != err_;
  for (const auto& known : host.ranks) {
    if (known->rank == rank && known->is_error == is_error) return *known;
  }
  auto& added = *host.ranks.emplace_back(std::make_unique<logs::RankStream>());
  added.rank = added.position = rank;
  added.prefix = prefix;
  added.labelled = labelled_;
  if (const std::size_t colon = prefix.rfind(':'); colon != std::string_view::npos)
    added.scope = prefix.substr(1, colon - 1);
  added.is_error = is_error;
  (is_error ? err_ : out_)->open_stream(added);
  return added;
}

/// A line of a worker is marked, or has its host already; those of ddrun itself get it here.
void HostConsole::add(HostLines& host, Stream stream, logs::Piece piece) {
  logs::RankConsole& ranks = stream == Stream::out ? *out_ : *err_;
  if (!mark_.empty() && piece.text.starts_with(mark_)) {
    std::string_view rest = piece.text.substr(mark_.size());
    const std::string_view rank = rest.substr(0, rest.find(logs::mark_end));
    rest.remove_prefix(std::min(rest.size(), rank.size() + 1));
    const std::string_view prefix = rest.substr(0, rest.find(logs::mark_end));
    if (const auto number = parse_integer(rank, 0, INT_MAX); number && prefix.size() < rest.size()) {
      return ranks.feed(stream_of(host, stream, static_cast<int>(*number), prefix), rest.substr(prefix.size() + 1));
    }
  }
  constexpr std::string_view own = "ddrun: ";
  std::string_view prefix;
  if ((stream == Stream::err || out_ == err_) && !host.own_prefix.empty() && piece.text.starts_with(own)) {
    prefix = host.own_prefix;
    piece.text.remove_prefix(own.size());
  }
  ranks.add_unlabelled(&(stream == Stream::out ? host.out : host.err), prefix, piece);
}

void HostConsole::show(HostLines& host, Stream stream, std::string_view bytes) {
  auto& lines = stream == Stream::out ? host.out : host.err;
  lines.feed(bytes, [&](const logs::Piece& piece) { add(host, stream, piece); });
  (stream == Stream::out ? out_ : err_)->flush();
  on_change_();
}

void HostConsole::finish(HostLines& host) {
  host.out.finish([&](const logs::Piece& piece) { add(host, Stream::out, piece); });
  host.err.finish([&](const logs::Piece& piece) { add(host, Stream::err, piece); });
  for (const auto& stream : host.ranks) (stream->is_error ? err_ : out_)->close_stream(*stream);
  host.ranks.clear();
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
