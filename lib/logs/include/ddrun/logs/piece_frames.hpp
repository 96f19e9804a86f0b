#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "ddrun/base/text.hpp"
#include "ddrun/logs/line_assembler.hpp"

// The lines of workers on their way to a ddrun on another machine, which labels and shows them. A frame is
//   4 bytes  length of the payload, most significant byte first (the other numbers: least)
//   1 byte   type
//   payload  of worker_frame: 4 bytes key, 4 bytes rank, 1 byte whether the label is ddrun's, the label
//            of piece_frame: 4 bytes key, 1 byte stream, 1 byte kind (PieceEnd, 0x80 if it continues a line), the text
// A key stands for a worker, and is new in each frame of a worker; key 0 for ddrun itself.

namespace ddrun::logs {

constexpr std::uint8_t worker_frame = 32;
constexpr std::uint8_t piece_frame = 33;
/// A longer line comes in several pieces.
constexpr std::size_t max_piece_bytes = std::size_t{64} << 10U;

struct WorkerLabel {
  std::uint32_t key = 0;
  int rank = 0;
  bool labelled = true;  ///< RankStream::labelled
  std::string_view label{};
};

struct WorkerPiece {
  std::uint32_t key = 0;
  bool is_error = false;
  Piece piece{};
};

[[nodiscard]] std::string encode(const WorkerLabel& worker);
/// What comes before the text, of max_piece_bytes at most.
[[nodiscard]] std::string piece_header(const WorkerPiece& piece);
/// Empty if it is none.
[[nodiscard]] std::optional<WorkerLabel> decode_worker(std::string_view payload);
[[nodiscard]] std::optional<WorkerPiece> decode_piece(std::string_view payload);

}  // namespace ddrun::logs
