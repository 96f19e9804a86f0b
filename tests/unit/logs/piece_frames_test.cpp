// Lines of workers on their way to a ddrun on another machine.

#include "ddrun/logs/piece_frames.hpp"

#include <fcntl.h>
#include <boost/asio/io_context.hpp>
#include <random>

#include "ddrun/base/bytes.hpp"
#include "ddrun/logs/rank_console.hpp"
#include "ddrun/test/catch.hpp"
#include "ddrun/test/files.hpp"

using namespace ddrun;
using namespace ddrun::logs;
using namespace ddrun::test;

namespace {

constexpr int ranks = 3;

/// A console in a file, and the streams of ranks on it.
class FileConsole {
 public:
  explicit FileConsole(bool frames) : path_(directory_.file("out", "")), fd_(::open(path_.c_str(), O_WRONLY)) {
    RankConsoleOptions options;
    options.frames = frames;
    console_ = std::make_unique<RankConsole>(io_.get_executor(), fd_.get(), options);
  }
  RankStream& add(int rank, const std::string& label) {
    auto& added = *streams_.emplace_back(std::make_unique<RankStream>());
    added.rank = rank;
    added.prefix = label;
    console_->open_stream(added);
    return added;
  }
  std::string end() {
    for (auto& stream : streams_) console_->close_stream(*stream);
    console_->close();
    return read_file(path_);
  }
  RankConsole& operator*() { return *console_; }

 private:
  TemporaryDirectory directory_;
  boost::asio::io_context io_;
  std::string path_;
  UniqueFd fd_;
  std::unique_ptr<RankConsole> console_;
  std::vector<std::unique_ptr<RankStream>> streams_;
};

/// Calls `on_frame(type, payload)` for each frame; true if nothing is left.
template <class OnFrame>
bool split_frames(std::string_view bytes, OnFrame&& on_frame) {
  while (bytes.size() >= 5) {
    const auto size = bytes::load<std::uint32_t, std::endian::big>(bytes.data());
    if (bytes.size() - 5 < size) return false;
    on_frame(static_cast<std::uint8_t>(bytes[4]), bytes.substr(5, size));
    bytes.remove_prefix(5 + size);
  }
  return bytes.empty();
}

std::string drawn_bytes(std::mt19937& random) {
  std::string bytes;
  for (unsigned parts = 1 + static_cast<unsigned>(random()) % 6; parts > 0; --parts) {
    switch (random() % 7) {
      case 0: bytes += '\n'; break;
      case 1: bytes += '\r'; break;
      case 2: bytes += "\r\n"; break;
      case 3: bytes += "\033[31mred\033[m"; break;
      case 4: bytes.append(random() % 40 == 0 ? 200'000 : 3, 'x'); break;
      case 5: bytes += std::string("\0\xff", 2); break;
      default: bytes += "line\n";
    }
  }
  return bytes;
}

}  // namespace

TEST_CASE("a worker is named once, and its lines follow as pieces of 64 KiB at most") {
  FileConsole host(true);
  RankStream& stream = host.add(11, "[11] ");
  (*host).feed(stream, "50%\rx\nunfinished");
  (*host).add_text("ddrun: error: one\n  two\n");
  const std::string long_line(150'000, 'y');
  (*host).feed(host.add(11, "[11] "), long_line + "\n");
  std::vector<std::string> seen;
  CHECK(split_frames(host.end(), [&](std::uint8_t type, std::string_view payload) {
    if (type == worker_frame) {
      const auto worker = decode_worker(payload);
      REQUIRE(worker);
      seen.push_back(concat("worker ", worker->key, " ", worker->rank, " '", worker->label, "'"));
      return;
    }
    REQUIRE(type == piece_frame);
    const auto got = decode_piece(payload);
    REQUIRE(got);
    const std::string text =
        got->piece.text.size() > 100 ? concat(got->piece.text.size()) : std::string(got->piece.text);
    seen.push_back(concat(got->key, got->piece.continues ? " +" : " ", text, "/", static_cast<int>(got->piece.end)));
  }));
  CHECK(seen == std::vector<std::string>{"worker 1 11 '[11] '", "1 50%\r/0", "1 x\n/0", "0 ddrun: error: one\n/0",
                                         "0   two\n/0", "1 65536/2", "1 +65536/2", "1 +18929/0", "1 unfinished/1"});
}

TEST_CASE("what workers write looks the same through frames as without") {
  std::mt19937 random(7);  // NOLINT: the same each time
  for (int seed = 0; seed < 150; ++seed) {
    FileConsole direct(false), host(true), head(false);
    std::vector<RankStream*> here, there;
    for (int rank = 0; rank < ranks; ++rank) {
      here.push_back(&direct.add(rank, concat("[", rank, "] ")));
      there.push_back(&host.add(rank, concat("[", rank, "] ")));
    }
    for (int chunk = 0; chunk < 60; ++chunk) {
      const std::size_t rank = random() % ranks;
      const std::string bytes = drawn_bytes(random);
      (*direct).feed(*here[rank], bytes);
      (*host).feed(*there[rank], bytes);
    }
    std::map<std::uint32_t, RankStream*> streams;
    CHECK(split_frames(host.end(), [&](std::uint8_t type, std::string_view payload) {
      if (type == worker_frame) {
        const auto worker = decode_worker(payload);
        REQUIRE(worker);
        streams[worker->key] = &head.add(worker->rank, std::string(worker->label));
      } else {
        const auto got = decode_piece(payload);
        REQUIRE(got);
        (*head).feed(*streams.at(got->key), got->piece);
      }
    }));
    CAPTURE(seed);
    const bool same = direct.end() == head.end();
    CHECK(same);
  }
}

TEST_CASE("frames that are none are refused") {
  for (const std::string& payload :
       {std::string(), std::string(5, '\0'), std::string("\1\0\0\0\0\3", 6), std::string("\1\0\0\0\0\x83", 6)}) {
    CHECK_FALSE(decode_piece(payload));
    CHECK_FALSE(decode_worker(payload));
  }
  CHECK_FALSE(decode_worker(std::string("\1\0\0\0\0\0\0\x80\1", 9)));
  CHECK(decode_worker(std::string("\1\0\0\0\7\0\0\0\1[7] ", 13))->label == "[7] ");
}
