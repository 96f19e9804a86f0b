// Lines of MPI ranks: any bytes, as two ranks of one of two machines send them, between ends and exchanges.
//
// The input is events for a PmiServer. Checks: each answer is one line, and below 1024 bytes unless it has a value that
// a rank has put; a rank is cut off at most once and is not answered after that; one failure at most, with a status
// above 0. A line's words are pieces of it.
#include <cstdint>
#include <string>
#include <string_view>

#include "ddrun/pmi/pmi_server.hpp"
#include "input.hpp"
#include "wire/pmi_line.hpp"

using namespace ddrun;
using namespace ddrun::pmi;
using ddrun::fuzz::Input;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Input input(data, size);
  const int nodes = input.byte() % 2 + 1;
  World world{.size = 2 * nodes, .ranks = {0, 1}, .nodes = nodes, .random = {}};
  world.random.resize(16, 'r');
  PmiServer server(world);
  Clock::time_point now{};
  int failures = 0;
  bool cut_off[2] = {false, false};
  const auto step = [&](const PmiEvent& event) {
    for (const auto& action : server.step(event, now)) {
      if (const auto* answer = std::get_if<pmi_action::Answer>(&action)) {
        DDRUN_FUZZ_CHECK(!cut_off[answer->slot]);
        DDRUN_FUZZ_CHECK(answer->text.find('\n') == answer->text.size() - 1);
        DDRUN_FUZZ_CHECK(answer->text.size() < 1024 || answer->text.starts_with("cmd=get_result rc=0"));
      } else if (const auto* cut = std::get_if<pmi_action::CutOff>(&action)) {
        DDRUN_FUZZ_CHECK(!cut_off[cut->slot]);
        cut_off[cut->slot] = true;
      } else if (const auto* fail = std::get_if<pmi_action::Fail>(&action)) {
        DDRUN_FUZZ_CHECK(++failures == 1 && fail->code > 0 && fail->code < 256 && !fail->why.empty());
      } else if (std::holds_alternative<pmi_action::Contribute>(action)) {
        DDRUN_FUZZ_CHECK(nodes == 2);
      }
    }
  };
  step(pmi_event::Start{});
  while (!input.empty()) {
    const auto what = input.byte();
    const int slot = what % 2;
    switch (what / 32) {
      case 0: step(pmi_event::Ended{slot, what % 4 < 2}); break;
      case 1: step(pmi_event::Garbage{slot, "a long line"}); break;
      case 2: {
        const std::uint32_t tag = input.byte() % 4;
        std::string own(input.bytes(input.byte())), other(input.bytes(input.byte()));
        step(pmi_event::Exchanged{tag, 0, {std::move(own), std::move(other)}, true});
        break;
      }
      case 3:
        now += std::chrono::seconds(what % 32);
        step(pmi_event::TimeIsUp{});
        break;
      default: {
        std::string text;
        while (!input.empty()) {
          const auto c = static_cast<char>(input.byte());
          if (c == '\n') break;
          text += c;
        }
        if (const auto line = PmiLine::parse(text)) {
          const auto key = line->find("key");
          DDRUN_FUZZ_CHECK(!key || text.find(*key) != std::string::npos);
        }
        step(pmi_event::Line{slot, std::move(text)});
      }
    }
  }
  return 0;
}
