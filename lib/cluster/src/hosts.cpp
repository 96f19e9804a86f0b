#include "ddrun/cluster/hosts.hpp"

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>

#include "ddrun/base/duration.hpp"
#include "ddrun/base/text.hpp"

namespace ddrun::cluster {

namespace {

/// A host name pattern: a sequence of parts with alternatives.
struct Parts {
  std::vector<std::vector<std::string>> texts;
  std::size_t last_group = 0;  ///< the last part in brackets
};

tl::unexpected<Error> bad(std::string_view text, std::string_view why) {
  return fail(Errc::invalid_argument, concat("'", text, "' is no host list: ", why));
}

bool is_separator(char c) { return c == ',' || c == ' ' || c == '\t' || c == '\n'; }

constexpr std::int64_t highest_number = 999'999'999'999;

/// Expands "001-003" or "7", with leading zeros.
Result<void> add_range(std::vector<std::string>& to, std::string_view range, std::string_view whole,
                       std::size_t limit) {
  const std::size_t dash = range.find('-');
  const std::string_view low_text = range.substr(0, dash);
  const auto low = parse_integer(low_text, 0, highest_number);
  const auto high = dash == std::string_view::npos ? low : parse_integer(range.substr(dash + 1), 0, highest_number);
  if (!low || !high) return bad(whole, concat("'", range, "' is neither a number nor a range of numbers"));
  if (*high < *low) return bad(whole, concat("the range ", range, " goes down"));
  if (static_cast<std::uint64_t>(*high - *low) >= limit - std::min(limit, to.size())) {
    return bad(whole, concat("it names more than ", limit, " hosts"));
  }
  for (std::int64_t number = *low; number <= *high; ++number) {
    std::string digits = std::to_string(number);
    if (digits.size() < low_text.size()) digits.insert(0, low_text.size() - digits.size(), '0');
    to.push_back(std::move(digits));
  }
  return {};
}

/// Parses one name pattern.
Result<Parts> parse_name(std::string_view name, std::string_view whole, std::size_t limit) {
  Parts parts;
  while (!name.empty()) {
    const std::size_t open = name.find('[');
    if (open != 0) {
      parts.texts.push_back({std::string(name.substr(0, open))});
      name.remove_prefix(std::min(open, name.size()));
      continue;
    }
    const std::size_t close = name.find(']');
    std::vector<std::string> numbers;
    for (const std::string& range : split(name.substr(1, close - 1), ',')) TRY(add_range(numbers, range, whole, limit));
    parts.last_group = parts.texts.size();
    parts.texts.push_back(std::move(numbers));
    name.remove_prefix(close + 1);
  }
  return parts;
}

/// Adds all combinations in Slurm's order, that of its node ranks: the last group varies fastest, then the first, the
/// second, and so on.
Result<void> add_names(std::vector<std::string>& to, const Parts& from, std::string_view whole, std::size_t limit) {
  const auto& [parts, last_group] = from;
  std::size_t count = 1;
  for (const auto& part : parts) {
    if (part.size() > limit / count) return bad(whole, concat("it names more than ", limit, " hosts"));
    count *= part.size();
  }
  if (count > limit - std::min(limit, to.size())) return bad(whole, concat("it names more than ", limit, " hosts"));
  std::vector<std::size_t> chosen(parts.size());
  for (std::size_t number = 0; number < count; ++number) {
    chosen[last_group] = number % parts[last_group].size();
    std::size_t rest = number / parts[last_group].size();
    std::string name;
    for (std::size_t i = 0; i < parts.size(); ++i) {
      if (i != last_group) {
        chosen[i] = rest % parts[i].size();
        rest /= parts[i].size();
      }
      name += parts[i][chosen[i]];
    }
    to.push_back(std::move(name));
  }
  return {};
}

/// The end of the name at the start of `text`; nullopt for unbalanced brackets.
std::optional<std::size_t> name_end(std::string_view text) {
  bool inside = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '[') {
      if (inside) return std::nullopt;
      inside = true;
    } else if (text[i] == ']') {
      if (!inside) return std::nullopt;
      inside = false;
    } else if (!inside && is_separator(text[i])) {
      return i;
    }
  }
  if (inside) return std::nullopt;
  return text.size();
}

}  // namespace

Result<std::vector<std::string>> expand_hostlist(std::string_view text, std::size_t limit) {
  std::vector<std::string> hosts;
  std::string_view rest = text;
  while (!rest.empty()) {
    if (is_separator(rest.front())) {
      rest.remove_prefix(1);
      continue;
    }
    const auto end = name_end(rest);
    if (!end) return bad(text, "its brackets do not match");
    const auto parts = TRY(parse_name(rest.substr(0, *end), text, limit));
    TRY(add_names(hosts, parts, text, limit));
    rest.remove_prefix(*end);
  }
  if (hosts.empty()) return bad(text, "it names no host");
  return hosts;
}

namespace {

constexpr int max_slots = 100'000;

tl::unexpected<Error> bad(std::string message) { return fail(Errc::invalid_argument, std::move(message)); }

Result<int> parse_slots(std::string_view text, std::string_view host) {
  const auto slots = parse_integer(text, 1, max_slots);
  if (!slots) return bad(concat("'", text, "' behind ", host, " is not a number of slots from 1 to ", max_slots));
  return static_cast<int>(*slots);
}

Result<void> check_name(std::string_view name, std::string_view word) {
  if (name.empty()) return bad(concat("'", word, "' names no host"));
  if (name.front() == '-') return bad(concat("'", word, "': a host's name does not begin with '-'"));
  for (const char c : name) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte <= 0x20 || byte == 0x7f ||
        std::string_view("[]=,;'\"\\$`|&<>(){}*?!#/").find(c) != std::string_view::npos) {
      return bad(concat("'", word, "' is not the name or address of a host"));
    }
  }
  const std::size_t at = name.find('@');
  if (at != std::string_view::npos && (at == 0 || at + 1 == name.size() || name[at + 1] == '-')) {
    return bad(concat("'", word, "' is not USER@HOST"));
  }
  return {};
}

/// "a", "a:4", "fd00::1", "[fd00::1]:4", "u@[fd00::1]:4", "n[1-4]:8"
Result<std::vector<Host>> parse_host_entry(std::string_view word) {
  std::string_view name = word;
  int slots = 0;
  const std::size_t user_end = word.find('@');
  const std::size_t host_start = user_end == std::string_view::npos ? 0 : user_end + 1;
  if (word.substr(host_start).starts_with('[')) {
    const std::size_t close = word.find(']');
    if (close == std::string_view::npos) return bad(concat("'", word, "': the bracket of the address is not closed"));
    const std::string_view address = word.substr(host_start + 1, close - host_start - 1);
    const std::string_view rest = word.substr(close + 1);
    if (address.find(':') == std::string_view::npos) return bad(concat("'", word, "' has no IPv6 address in brackets"));
    if (!rest.empty()) {
      if (rest.front() != ':') return bad(concat("'", word, "': only :SLOTS may follow the bracket"));
      slots = TRY(parse_slots(rest.substr(1), address));
    }
    Host host{concat(word.substr(0, host_start), address), slots};
    TRY(check_name(host.name, word));
    return std::vector<Host>{std::move(host)};
  }
  const std::size_t colon = word.rfind(':');
  // Two colons: an IPv6 address, which has slots only with brackets.
  if (colon != std::string_view::npos && word.find(':') == colon) {
    name = word.substr(0, colon);
    slots = TRY(parse_slots(word.substr(colon + 1), name));
  }
  std::vector<std::string> names{std::string(name)};
  if (name.find_first_of("[]") != std::string_view::npos) names = TRY(expand_hostlist(name));
  std::vector<Host> hosts;
  for (std::string& one : names) {
    TRY(check_name(one, word));
    hosts.push_back({std::move(one), slots});
  }
  return hosts;
}

/// Collects hosts and adds up their slots by name.
class HostList {
 public:
  Result<void> add(const Host& host) {
    const auto [at, is_new] = index_.emplace(host.name, hosts_.size());
    if (is_new) {
      if (hosts_.size() == max_hosts) return bad(concat("more than ", max_hosts, " hosts"));
      hosts_.push_back(host);
      return {};
    }
    int& slots = hosts_[at->second].slots;
    const std::int64_t sum = std::int64_t{std::max(slots, 1)} + std::max(host.slots, 1);
    if (sum > max_slots) return bad(concat(host.name, " would have ", sum, " slots, more than ", max_slots));
    slots = static_cast<int>(sum);
    return {};
  }
  std::vector<Host> take_hosts() { return std::move(hosts_); }

 private:
  std::map<std::string, std::size_t> index_;
  std::vector<Host> hosts_;
};

/// Splits at commas outside brackets.
std::vector<std::string_view> split_outside_brackets(std::string_view text) {
  std::vector<std::string_view> words;
  std::size_t start = 0;
  int depth = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '[') ++depth;
    if (text[i] == ']') --depth;
    if (text[i] == ',' && depth <= 0) {
      words.push_back(text.substr(start, i - start));
      start = i + 1;
    }
  }
  words.push_back(text.substr(start));
  return words;
}

/// The words of a line; blanks around '=' are ignored.
std::vector<std::string> host_words(std::string_view line) {
  std::string joined;
  for (std::size_t i = 0; i < line.size(); ++i) {
    if (line[i] != ' ' && line[i] != '\t') {
      joined += line[i];
      continue;
    }
    const std::size_t next = line.find_first_not_of(" \t", i);
    const bool beside_equals = (!joined.empty() && joined.back() == '=') || (next != line.npos && line[next] == '=');
    if (!beside_equals && !joined.empty() && joined.back() != ' ') joined += ' ';
  }
  std::vector<std::string> words = split(joined, ' ');
  std::erase_if(words, [](const std::string& word) { return word.empty(); });
  return words;
}

/// "slots=4", "max_slots=8": the attributes of a host in Open MPI's format.
Result<void> parse_setting(Host& host, std::optional<int>& max, std::string_view word) {
  const std::size_t equals = word.find('=');
  if (equals == std::string_view::npos) {
    return bad(concat("'", word, "' behind ", host.name, " is not understood; one host on each line"));
  }
  std::string key(word.substr(0, equals));
  std::replace(key.begin(), key.end(), '_', '-');
  const auto number = parse_slots(word.substr(equals + 1), concat(host.name, " ", key));
  if (key == "slots" || key == "cpus" || key == "cpu" || key == "count") {
    if (!number) return tl::unexpected<Error>(number.error());
    if (host.slots != 0) return bad(concat("the slots of ", host.name, " are given twice on one line"));
    host.slots = *number;
  } else if (key == "max-slots" || key == "slots-max" || key == "cpus-max" || key == "count-max") {
    if (!number) return tl::unexpected<Error>(number.error());
    max = *number;
  } else {
    return bad(concat("'", key, "' is not understood; known are slots=N and max-slots=N",
                      key == "user" || key == "username" ? "; write USER@HOST" : ""));
  }
  return {};
}

/// "a 4 all.q@a UNDEFINED": host, slots, queue and processors, as in SGE's PE_HOSTFILE.
bool is_sge_line(const std::vector<std::string>& words) {
  return words.size() == 4 && words[1].find_first_not_of("0123456789") == std::string::npos;
}

Result<std::vector<Host>> parse_line(const std::vector<std::string>& words) {
  auto hosts = TRY(parse_host_entry(words.front()));
  if (is_sge_line(words)) {
    const auto slots = TRY(parse_slots(words[1], words.front()));
    for (Host& host : hosts) host.slots = slots;
    return hosts;
  }
  for (Host& host : hosts) {
    std::optional<int> max;
    for (std::size_t i = 1; i < words.size(); ++i) TRY(parse_setting(host, max, words[i]));
    if (max && host.slots > *max) {
      return bad(concat(host.name, " has slots=", host.slots, ", more than its max-slots=", *max));
    }
  }
  return hosts;
}

}  // namespace

Result<std::vector<Host>> parse_hosts(std::string_view text) {
  HostList list;
  for (const std::string_view word : split_outside_brackets(text)) {
    if (trim(word).empty()) {
      return bad(trim(text).empty() ? std::string("no host is named; write for example a,b:4,c")
                                    : concat("'", text, "' has an empty place between its commas"));
    }
    const auto hosts = TRY(parse_host_entry(trim(word)));
    for (const Host& host : hosts) TRY(list.add(host));
  }
  return list.take_hosts();
}

Result<std::vector<Host>> parse_hostfile(std::string_view text, std::string_view file_name) {
  HostList list;
  std::size_t number = 0;
  bool any = false;
  for (const std::string& line : split(text, '\n')) {
    ++number;
    std::string_view content = line;
    content = trim_typed(content.substr(0, content.find('#')));
    if (content.empty()) continue;
    any = true;
    const auto at = [&](const Error& error) { return bad(concat(file_name, ":", number, ": ", error.message)); };
    const auto hosts = parse_line(host_words(content));
    if (!hosts) return at(hosts.error());
    for (const Host& host : *hosts) {
      if (auto added = list.add(host); !added) return at(added.error());
    }
  }
  if (!any) return bad(concat(file_name, ": no host is named in it"));
  return list.take_hosts();
}

std::string compare_count(std::span<const Host> hosts, int count) {
  const auto differs =
      std::find_if(hosts.begin(), hosts.end(), [&](const Host& host) { return host.slots > 0 && host.slots != count; });
  if (differs == hosts.end()) return {};
  long long sum = 0;
  for (const Host& host : hosts) sum += std::max(host.slots, 1);
  const auto size = static_cast<long long>(hosts.size());
  return concat("--nproc-per-node=", count, " starts ", counted(count, "worker"), " on ",
                size == 1 ? hosts[0].name : concat("each of ", size, " hosts, ", size * count, " in all"), ", not the ",
                differs->slots, " of ", differs->name, "; without it the hosts' own numbers count, ", sum, " in all");
}

}  // namespace ddrun::cluster
