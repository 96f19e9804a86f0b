#include "evidence.hpp"

#include <fcntl.h>
#include <sys/stat.h>

#include <nlohmann/json.hpp>

#include "ddrun/test/catch.hpp"
#include "ddrun/test/files.hpp"

using namespace ddrun;
using namespace ddrun::agent;
using test::read_file;
using test::TemporaryDirectory;

namespace {

const std::string recorded =
    R"({"message": {"message": "ValueError: boom", "extraInfo": {"py_callstack": "Traceback\n  x", "timestamp": "17"}}})";

}  // namespace

TEST_CASE("both forms of PyTorch's error file are read") {
  const TemporaryDirectory dir;
  const auto recorded_error = read_error_file(dir.file("a", recorded));
  REQUIRE(recorded_error);
  CHECK(recorded_error->message == "ValueError: boom");
  CHECK(recorded_error->traceback == "Traceback\n  x");
  CHECK(recorded_error->file == dir.path() + "/a");

  const auto plain = read_error_file(dir.file("b", R"({"message": "just text", "timestamp": 1795223473})"));
  REQUIRE(plain);
  CHECK(plain->message == "just text");
  CHECK(plain->traceback.empty());

  const auto only_trace = read_error_file(
      dir.file("c", R"({"message": {"message": "", "extraInfo": {"py_callstack": "a\nKeyError: 'x'\n"}}})"));
  REQUIRE(only_trace);
  CHECK(only_trace->message == "KeyError: 'x'");
}

TEST_CASE("the time of an error file is the one in it, or its own if that is near") {
  const TemporaryDirectory dir;
  const auto timed = [&](const std::string& timestamp, std::int64_t seconds, std::int64_t nanoseconds) {
    const std::string path =
        dir.file("timed", R"({"message": {"message": "x", "extraInfo": {"timestamp": )" + timestamp + "}}}");
    const timespec times[2] = {{0, UTIME_OMIT}, {seconds, nanoseconds}};
    REQUIRE(::utimensat(AT_FDCWD, path.c_str(), times, 0) == 0);
    const auto since = read_error_file(path).value().at.time_since_epoch();
    return std::chrono::duration_cast<std::chrono::milliseconds>(since).count();
  };
  CHECK(timed("\"1795223473\"", 1795223473, 250'000'000) == 1795223473'250);
  CHECK(timed("1795223473", 1795223474, 0) == 1795223474'000);
  CHECK(timed("1795223473", 1795223600, 0) == 1795223473'999);
  CHECK(timed("1795223473", 1795223400, 0) == 1795223473'999);
  CHECK(timed("\"soon\"", 1795223400, 0) == 1795223400'000);
  CHECK(timed("null", 1795223400, 500'000'000) == 1795223400'500);
  // Outside of the clock's range, in the file and as the file's own time.
  for (const char* late : {"9200000001", "50000000000", "1e308", "-1e308", "\"inf\"", "\"nan\""}) {
    CHECK(timed(late, 1795223400, 0) == 1795223400'000);
  }
  // Not every file system keeps such a time.
  CHECK(timed("null", std::int64_t{1} << 40, 0) <= 9'000'000'000'000);
  CHECK(timed("null", std::int64_t{1} << 40, 0) > 0);
  const auto top = read_error_file(dir.file("top", R"({"message": "text", "timestamp": 17})"));
  REQUIRE(top);
  CHECK(std::chrono::duration_cast<std::chrono::seconds>(top->at.time_since_epoch()).count() == 17);
}

TEST_CASE("a half written error file gives what is there") {
  const TemporaryDirectory dir;
  int found = 0;
  for (std::size_t size = 0; size <= recorded.size(); ++size) {
    const auto error = read_error_file(dir.file("half", recorded.substr(0, size)));
    const std::size_t begin = recorded.find("ValueError");
    INFO(size);
    CHECK(error.has_value() == (size > begin));
    if (error) CHECK(error->message == recorded.substr(begin, std::min<std::size_t>(size - begin, 16)));
    found += error ? 1 : 0;
  }
  CHECK(found > 50);
}

TEST_CASE("a huge error file is read in part and cut") {
  const TemporaryDirectory dir;
  const std::string huge = R"({"message": {"message": "MemoryError", "extraInfo": {"py_callstack": ")" +
                           std::string(std::size_t{6} << 20U, 'x') + R"("}}})";
  const auto error = read_error_file(dir.file("huge", huge));
  REQUIRE(error);
  CHECK(error->message == "MemoryError");
  CHECK(error->traceback.starts_with("xxx"));
  CHECK(error->traceback.size() < 100'000);
  const auto message = read_error_file(dir.file("message", R"({"message": ")" + std::string(1U << 20U, 'x')));
  REQUIRE(message);
  CHECK(message->message.starts_with("xxx"));
  CHECK(message->message.size() < 100'000);
  REQUIRE(::truncate(dir.file("sparse", "").c_str(), std::int64_t{1} << 40U) == 0);
  CHECK_FALSE(read_error_file(dir.path() + "/sparse"));
  CHECK_FALSE(read_error_file(dir.file("deep", std::string(1 << 20U, '['))));
}

TEST_CASE("an error file is read to a break inside a text, and over bytes that JSON forbids") {
  const TemporaryDirectory dir;
  const auto message = [&](const std::string& text) {
    const auto error = read_error_file(dir.file("odd", text));
    return error ? error->message : "none";
  };
  for (const char* end : {"", "\\", "\\u", "\\u00", "\xc3"})
    CHECK(message(R"({"message": "a)" + std::string(end)).starts_with("a"));
  CHECK(message(R"({"message": "a\q rest"})") == "a");
  CHECK(message(R"({"message": "a\n and \\)") == "a\n and ");
  CHECK(message("{\"message\": \"a\xff"
                "b\nc\"}") ==
        "a\xef\xbf\xbd"
        "b c");
}

TEST_CASE("half a surrogate pair is the byte that Python made it of, and what follows it is kept") {
  const TemporaryDirectory dir;
  const std::string unknown = "\xef\xbf\xbd";
  for (const auto& [written, read] : std::vector<std::pair<std::string, std::string>>{
           {R"(caf\udce9)", "caf" + unknown},
           {R"(caf\uDCE9.)", "caf" + unknown + "."},
           {R"(caf\udcc3\udca9)", "caf\xc3\xa9"},  // a name in UTF-8, read in the C locale
           {R"(a\ud83d)", "a" + unknown},
           {R"(a\ud83d b)", "a" + unknown + " b"},
           {R"(a\ud83d \ude00 b)", "a" + unknown + " " + unknown + " b"},
           {R"(a\ude00\ud83d b)", "a" + unknown + unknown + " b"},
           {R"(a\ud83d\ud83d\ude00 b)", "a" + unknown + "\xf0\x9f\x98\x80 b"},
           {R"(a\ud83d\\ude00 b)", "a" + unknown + "\\ude00 b"},
           {R"(a\\udce9 b)", R"(a\udce9 b)"},
           {R"(a\\\udce9 b)", "a\\" + unknown + " b"},
           {R"(a\udc7f\udd00 b)", "a" + unknown + unknown + " b"},
           {"a\xed\xb3\xa9 b", "a" + unknown + unknown + unknown + " b"}}) {
    CAPTURE(written);
    const auto error = read_error_file(
        dir.file("error", R"({"o)" + written + R"(":"x","message":{"message":")" + written +
                              R"(","extraInfo":{"py_callstack":"Traceback\n )" + written + R"(","timestamp":"17"}}})"));
    REQUIRE(error);
    CHECK(error->message == read);
    CHECK(error->traceback == "Traceback\n " + read);
    const std::string to = dir.file("to", "");
    REQUIRE(forward_error_file(error->file, Exited{1}, to));
    CHECK(nlohmann::json::parse(read_file(to))["message"]["message"] == read);
  }
  // Cut off behind half of it.
  for (const char* end : {R"(\ud83d)", R"(\ud83d\)", R"(\ud83d\ude)"}) {
    CHECK(read_error_file(dir.file("half", R"({"message":"a)" + std::string(end)))->message == "a" + unknown);
  }
}

TEST_CASE("bytes that JSON forbids in a traceback leave it in place") {
  const TemporaryDirectory dir;
  const auto error = read_error_file(
      dir.file("error", "{\"message\":{\"message\":\"m\",\"extraInfo\":{\"py_callstack\":\"a\xe9 b\nc\"}}}"));
  REQUIRE(error);
  CHECK(error->traceback == "a\xef\xbf\xbd b c");
}

TEST_CASE("what is no error file gives nothing and does not block") {
  const TemporaryDirectory dir;
  CHECK_FALSE(read_error_file(dir.path() + "/none"));
  CHECK_FALSE(read_error_file(dir.path()));
  CHECK_FALSE(read_error_file("/dev/zero"));
  for (const char* text : {"", "{}", "[]", "null", "\"message\"", "{\"message\": 3}", "{\"message\": [\"x\"]",
                           "garbage", "{\"other\": {\"message\": \"x\"}}"}) {
    INFO(text);
    CHECK_FALSE(read_error_file(dir.file("x", text)));
  }
  REQUIRE(::mkfifo((dir.path() + "/fifo").c_str(), 0600) == 0);
  CHECK_FALSE(read_error_file(dir.path() + "/fifo"));
}

TEST_CASE("the first failure's file is forwarded with the error code added") {
  const TemporaryDirectory dir;
  const std::string from = dir.file("from.json", recorded);
  const std::string to = dir.file("to.json", "old and longer than the new one? no matter");
  REQUIRE(forward_error_file(from, Exited{5}, to));
  auto json = nlohmann::json::parse(read_file(to));
  CHECK(json["message"]["errorCode"] == 5);
  CHECK(json["message"]["message"] == "ValueError: boom");
  CHECK(json["message"]["extraInfo"]["timestamp"] == "17");
  REQUIRE(forward_error_file(from, Signaled{11}, to));
  CHECK(nlohmann::json::parse(read_file(to))["message"]["errorCode"] == -11);
  CHECK(std::distance(std::filesystem::directory_iterator(dir.path()), {}) == 2);  // no temporary file is left
}

TEST_CASE("an error file that cannot be forwarded is an error with its reason") {
  const TemporaryDirectory dir;
  const auto half = forward_error_file(dir.file("half", recorded.substr(0, 50)), Exited{1}, dir.path() + "/to");
  REQUIRE_FALSE(half);
  CHECK(half.error().message == dir.path() + "/half is not complete JSON");
  CHECK_FALSE(std::filesystem::exists(dir.path() + "/to"));
  const auto nowhere = forward_error_file(dir.file("good", recorded), Exited{1}, "/none/to");
  REQUIRE_FALSE(nowhere);
  CHECK(nowhere.error().message == "cannot write /none/to: No such file or directory");
}
