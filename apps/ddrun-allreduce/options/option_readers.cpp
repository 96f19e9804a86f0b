#include "options/option_readers.hpp"

namespace ddrun::allreduce {

OptionTable::Read text_into(std::string& to) {
  return [&to](const std::string& text) -> Result<void> {
    if (text.empty()) return fail(Errc::invalid_argument, "must not be empty");
    to = text;
    return {};
  };
}

OptionTable::Read size_into(std::uint64_t& to, std::uint64_t least) {
  return [&to, least](const std::string& text) -> Result<void> {
    const auto value = parse_size(text);
    if (!value) return tl::unexpected(value.error());
    if (*value < least) return fail(Errc::invalid_argument, concat("must be at least ", least, ", not ", text));
    to = *value;
    return {};
  };
}

OptionTable::Read size_into(std::optional<std::uint64_t>& to) {
  return [&to](const std::string& text) { return size_into(to.emplace())(text); };
}

OptionTable::Read number_into(int& to, int low, int high) {
  return [&to, low, high](const std::string& text) -> Result<void> {
    const auto value = parse_integer(text, low, high);
    if (!value) return tl::unexpected(value.error());
    to = static_cast<int>(*value);
    return {};
  };
}

OptionTable::Read switch_into(bool& to) {
  return [&to](const std::string& text) {
    int number = 0;
    auto read = number_into(number, 0, 1)(text);
    to = number != 0;
    return read;
  };
}

OptionTable::Read duration_into(Milliseconds& to) {
  return [&to](const std::string& text) -> Result<void> {
    const auto value = parse_duration(text);
    if (!value) return tl::unexpected(value.error());
    if (value->count() == 0) return fail(Errc::invalid_argument, "must be more than 0");
    to = *value;
    return {};
  };
}

OptionTable::Read duration_into(std::optional<Milliseconds>& to) {
  return [&to](const std::string& text) { return duration_into(to.emplace())(text); };
}

tl::unexpected<Error> none_of(const std::vector<std::string>& names, const std::string& text) {
  const std::vector<std::string> first(names.begin(), names.end() - 1);
  return fail(Errc::invalid_argument,
              concat("must be ", join(first, ", "), " or ", names.back(), ", not '", text, "'"));
}

}  // namespace ddrun::allreduce
