#include "ddrun/base/text.hpp"

#include <cstdint>
#include <span>

#include "ddrun/test/catch.hpp"

using namespace ddrun;

TEST_CASE("ranks are folded into ranges") {
  CHECK(fold_ranks({}) == "");
  CHECK(fold_ranks({5}) == "5");
  CHECK(fold_ranks({0, 1}) == "0,1");
  CHECK(fold_ranks({7, 0, 1, 2, 4, 5, 6, 4}) == "0-2,4-7");
}

TEST_CASE("the nearest candidate is suggested, a distant one is not") {
  const std::vector<std::string> options = {"--nproc-per-node", "--nnodes", "--tee", "--timeout"};
  CHECK(nearest("--nproc-per-nod", options) == "--nproc-per-node");
  CHECK(nearest("--nprocs-per-node", options) == "--nproc-per-node");
  CHECK(nearest("--nproc", options) == "--nproc-per-node");
  CHECK(nearest("--completely-different", options) == "");
  // Any two short words are near each other.
  CHECK(nearest("nope", {"role"}).empty());
  CHECK(nearest("cpu", {"ci"}).empty());
  CHECK(nearest("evn", {"role", "env"}) == "env");
  CHECK(nearest("log", {"role", "log-dir"}) == "log-dir");
}

TEST_CASE("the edit distance counts a swap of two letters as one edit") {
  CHECK(edit_distance("", "") == 0);
  CHECK(edit_distance("", "abc") == 3);
  CHECK(edit_distance("abc", "") == 3);
  CHECK(edit_distance("train", "trian") == 1);
  CHECK(edit_distance("train", "tran") == 1);
  CHECK(edit_distance("train", "traain") == 1);
  CHECK(edit_distance("kitten", "sitting") == 3);
  CHECK(edit_distance("ab", "ba") == 1);
  CHECK(edit_distance("abcd", "badc") == 2);
}

TEST_CASE("shell quoting gives back the word") {
  CHECK(shell_quote("plain-1.2/x") == "plain-1.2/x");
  CHECK(shell_quote("") == "''");
  CHECK(shell_quote("a b") == "'a b'");
  CHECK(shell_quote("it's") == "'it'\\''s'");
}

TEST_CASE("a line that is too long loses folders of its longest path before its end") {
  const std::string frame =
      "  File \"/opt/conda/lib/python3.11/site-packages/torch/nn/modules/module.py\", line 1775, in f";
  CHECK(cut_in_path(frame, frame.size()) == frame);
  CHECK(cut_in_path(frame, frame.size() - 1) ==
        "  File \".../conda/lib/python3.11/site-packages/torch/nn/modules/module.py\", line 1775, in f");
  CHECK(cut_in_path(frame, 50) == "  File \".../nn/modules/module.py\", line 1775, in f");
  CHECK(cut_in_path(frame, 40) == "  File \".../module.py\", line 1775, in f");
  CHECK(cut_in_path(frame, 30) == "  File \".../module.py\", line 1...");  // what is left is cut like others
  CHECK(cut_in_path("at g (/usr/äöü/src/main.js:10:5) of a/b", 30) == "at g (.../main.js:10:5) of a/b");
  CHECK(cut_in_path("RuntimeError: [/w/gloo/buffer.cc:78] late", 37) == "RuntimeError: [.../buffer.cc:78] late");
  CHECK(cut_in_path("a line without a path", 6) == "a line...");
  CHECK(cut_in_path("/bin and more", 4) == "/bin...");
}

TEST_CASE("split keeps empty parts, trim takes blanks off both ends") {
  CHECK(split("a,,b", ',') == std::vector<std::string>{"a", "", "b"});
  CHECK(split("", ',') == std::vector<std::string>{""});
  CHECK(trim("  x y\t") == "x y");
  CHECK(trim(" ") == "");
}

TEST_CASE("only a whole text that fits is a number") {
  CHECK(whole_number<int>("-12") == -12);
  CHECK(whole_number<std::uint8_t>("ff", 16) == 255);
  for (const char* text : {"", " 1", "1 ", "+1", "1x", "0x1", "2147483648"}) CHECK_FALSE(whole_number<int>(text));
}

TEST_CASE("typed input is trimmed of byte order mark, blanks and newlines") {
  CHECK(trim_typed("\xef\xbb\xbf a b\r\n") == "a b");
  CHECK(trim_typed("\xef\xbb\xbf").empty());
}

TEST_CASE("an address has no short name, and a name with a domain is the same host") {
  CHECK(short_host_name("node1.cluster.net") == "node1");
  for (const char* whole : {"10.0.0.1", "fd00::1", "12.cluster", "node1"}) CHECK(short_host_name(whole) == whole);
  CHECK(names_same_host("node1", "node1.cluster.net"));
  CHECK(names_same_host("w.1.net", "w.1"));
  CHECK_FALSE(names_same_host("w.1.net", "w.2.net"));
  CHECK_FALSE(names_same_host("10", "10.0.0.1"));
  CHECK_FALSE(names_same_host("", "a"));
}

TEST_CASE("bytes are shown as two hexadecimal digits each") {
  const std::vector<unsigned char> bytes{0x00, 0x0f, 0xa5, 0xff};
  CHECK(in_hex(std::as_bytes(std::span(bytes))) == "000fa5ff");
  CHECK(in_hex({}).empty());
}
