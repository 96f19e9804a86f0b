#include "head_output.hpp"

#include <unistd.h>

#include "ddrun/base/messages.hpp"

namespace ddrun::remote {

namespace {

constexpr std::size_t console_high = std::size_t{8} << 20U;

}  // namespace

HeadOutput::HeadOutput(const boost::asio::any_io_executor& executor, const std::function<void()>& on_room)
    : out_(std::make_shared<logs::Console>(executor, STDOUT_FILENO, console_high)),
      err_(logs::Console::same_place(STDOUT_FILENO, STDERR_FILENO)
               ? out_
               : std::make_shared<logs::Console>(executor, STDERR_FILENO, console_high)) {
  for (const auto& console : {out_, err_}) console->on_room(on_room);
}

HeadOutput::~HeadOutput() { set_message_sink({}); }

void HeadOutput::take_messages() {
  set_message_sink([this](std::string_view line) {
    err_->add_text(line);
    err_->flush();
  });
}

/// Workers' lines carry their host already; those of ddrun itself get it here.
void HeadOutput::add(HostLines& host, Stream stream, logs::Piece piece) {
  constexpr std::string_view own = "ddrun: ";
  std::string_view prefix;
  if (stream == Stream::err && !host.own_prefix.empty() && piece.text.starts_with(own)) {
    prefix = host.own_prefix;
    piece.text.remove_prefix(own.size());
  }
  if (stream == Stream::out) out_->add(&host.out, prefix, piece);
  else err_->add(&host.err, prefix, piece);
}

void HeadOutput::show(HostLines& host, Stream stream, std::string_view bytes) {
  auto& lines = stream == Stream::out ? host.out : host.err;
  lines.feed(bytes, [&](const logs::Piece& piece) { add(host, stream, piece); });
  (stream == Stream::out ? out_ : err_)->flush_soon();
}

void HeadOutput::finish(HostLines& host) {
  host.out.finish([&](const logs::Piece& piece) { add(host, Stream::out, piece); });
  host.err.finish([&](const logs::Piece& piece) { add(host, Stream::err, piece); });
  out_->flush_soon();
  err_->flush_soon();
}

void HeadOutput::flush() {
  out_->flush();
  err_->flush();
}

std::optional<std::string> HeadOutput::close() {
  set_message_sink({});
  out_->close();
  err_->close();
  for (const auto& console : {out_, err_}) {
    if (console->lost_bytes() > 0 && !console->reader_left()) return console->first_error();
  }
  return std::nullopt;
}

}  // namespace ddrun::remote
