#include "variable.hpp"

#include <stdlib.h>

#include <string>

std::optional<std::string_view> variable(std::string_view name) {
  const char* value = ::getenv(std::string(name).c_str());
  if (value == nullptr || *value == '\0') return std::nullopt;
  return value;
}
