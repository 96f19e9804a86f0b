#include "opcode_name.hpp"

#include <iterator>

namespace ddrun::store {

std::string_view opcode_name(wire::Opcode op) {
  static constexpr std::string_view names[] = {"VALIDATE",  "SET",       "COMPARE_SET", "GET",        "ADD",
                                               "CHECK",     "WAIT",      "GETNUMKEYS",  "DELETE_KEY", "APPEND",
                                               "MULTI_GET", "MULTI_SET", "CANCEL_WAIT", "PING",       "QUEUE_PUSH",
                                               "QUEUE_POP", "QUEUE_LEN", "LIST_KEYS",   "BARRIER",    "WATCH_KEY"};
  static_assert(std::size(names) == wire::opcode_count);
  const auto index = static_cast<std::size_t>(op);
  return index < std::size(names) ? names[index] : "?";
}

}  // namespace ddrun::store
