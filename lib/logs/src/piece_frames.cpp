#include "ddrun/logs/piece_frames.hpp"

#include <limits.h>

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
  bytes::put<std::endian::big>(bytes, key);
  return bytes;
}

std::uint32_t number_at(std::string_view payload, std::size_t at) {
  return bytes::load<std::uint32_t, std::endian::big>(payload.data() + at);
}

}  // namespace

std::string encode(const WorkerLabel& worker) {
  std::string bytes = frame(worker_frame, worker_header + worker.label.size(), worker.key);
  bytes::put<std::endian::big>(bytes, static_cast<std::uint32_t>(worker.rank));
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
  if (payload.size() < worker_header || number_at(payload, 4) > INT_MAX) return std::nullopt;
  return WorkerLabel{number_at(payload, 0), static_cast<int>(number_at(payload, 4)), payload[8] != 0,
                     payload.substr(worker_header)};
}

std::optional<WorkerPiece> decode_piece(std::string_view payload) {
  if (payload.size() < piece_header_bytes) return std::nullopt;
  const auto kind = static_cast<std::uint8_t>(payload[5]);
  const auto end = static_cast<std::uint8_t>(kind & ~continues_bit);
  if (end > static_cast<std::uint8_t>(PieceEnd::open)) return std::nullopt;
  return WorkerPiece{number_at(payload, 0),
                     payload[4] != 0,
                     {payload.substr(piece_header_bytes), (kind & continues_bit) != 0, static_cast<PieceEnd>(end)}};
}

}  // namespace ddrun::logs
