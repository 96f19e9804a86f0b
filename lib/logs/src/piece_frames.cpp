#include "ddrun/logs/piece_frames.hpp"

#include "ddrun/base/bytes.hpp"

namespace ddrun::logs {

namespace {

constexpr std::size_t worker_header = 9;
constexpr std::size_t piece_header_bytes = 6;
constexpr std::uint8_t continues_bit = 0x80;

std::string frame(std::uint8_t type, std::size_t size, std::uint32_t key) {
  std::string bytes;
  bytes::put<std::endian::big>(bytes, static_cast<std::uint32_t>(size));
  bytes += static_cast<char>(type);
  bytes::put(bytes, key);
  return bytes;
}

}  // namespace

std::string encode(const WorkerLabel& worker) {
  std::string bytes = frame(worker_frame, worker_header + worker.label.size(), worker.key);
  bytes::put(bytes, static_cast<std::int32_t>(worker.rank));
  bytes += worker.labelled ? '\1' : '\0';
  return bytes.append(worker.label);
}

std::string piece_header(const WorkerPiece& piece) {
  std::string bytes = frame(piece_frame, piece_header_bytes + piece.piece.text.size(), piece.key);
  bytes += piece.is_error ? '\1' : '\0';
  bytes += static_cast<char>(static_cast<std::uint8_t>(piece.piece.end) | (piece.piece.continues ? continues_bit : 0));
  return bytes;
}

std::optional<WorkerLabel> decode_worker(std::string_view payload) {
  bytes::Reader reader(payload);
  WorkerLabel worker{reader.number<std::uint32_t>(), reader.number<std::int32_t>(), reader.boolean()};
  worker.label = reader.left();
  return reader.ok() && worker.rank >= 0 ? std::optional(worker) : std::nullopt;
}

std::optional<WorkerPiece> decode_piece(std::string_view payload) {
  bytes::Reader reader(payload);
  WorkerPiece got{reader.number<std::uint32_t>(), reader.boolean()};
  const auto kind = reader.number<std::uint8_t>();
  const auto end = static_cast<PieceEnd>(kind & ~continues_bit);
  got.piece = {reader.left(), (kind & continues_bit) != 0, end};
  return reader.ok() && end <= PieceEnd::open ? std::optional(got) : std::nullopt;
}

}  // namespace ddrun::logs
