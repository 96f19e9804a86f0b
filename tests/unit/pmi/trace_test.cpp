// Recorded conversations of MPICH and Intel MPI: what the server answers is what they went on with.

#include <filesystem>
#include <fstream>

#include "ddrun/test/catch.hpp"
#include "node.hpp"

using namespace ddrun;
using namespace ddrun::test;

namespace {

/// Lines "SLOT < what a rank sent" and "SLOT > what it was answered", in order; "SLOT ." its end with status 0.
int replay(const std::filesystem::path& file) {
  Node node = Node::with(2);
  node.init(0);
  const std::string reply = node.ask(0, "cmd=get_my_kvsname");
  const std::string name = reply.substr(reply.rfind('=') + 1);
  node = Node::with(2);
  std::ifstream in(file);
  int lines = 0;
  std::vector<pmi::pmi_action::Answer> expected;
  for (std::string line; std::getline(in, line); ++lines) {
    const int slot = line.at(0) - '0';
    std::string text = line.size() > 4 ? line.substr(4) : "";
    if (const auto at = text.find("KVSNAME"); at != std::string::npos) text.replace(at, 7, name);
    CAPTURE(line);
    if (line.at(2) == '>') {
      REQUIRE_FALSE(node.answers.empty());
      CHECK(node.answers.front().slot == slot);
      CHECK(node.answers.front().text == text + "\n");
      node.answers.erase(node.answers.begin());
      continue;
    }
    CHECK(node.answers.empty());
    if (line.at(2) == '<') node.step(pmi::pmi_event::Line{slot, text});
    else node.end(slot);
  }
  CHECK(node.answers.empty());
  CHECK(node.failure().empty());
  CHECK(node.notices.empty());
  return lines;
}

}  // namespace

TEST_CASE("recorded conversations of MPI libraries are answered as they were") {
  int traces = 0;
  for (const auto& entry : std::filesystem::directory_iterator(DDRUN_TRACES)) {
    CAPTURE(entry.path());
    CHECK(replay(entry.path()) > 20);
    ++traces;
  }
  CHECK(traces >= 5);
}
