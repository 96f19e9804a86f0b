#include "ddrun/cli/values.hpp"

#include <signal.h>

#include <algorithm>
#include <cctype>
#include <charconv>

#include "ddrun/base/address.hpp"
#include "ddrun/base/exit_status.hpp"
#include "ddrun/base/text.hpp"

namespace ddrun::cli {

namespace {

/// Above any real rank; keeps "0-4000000000" from exhausting memory.
constexpr int highest_rank = 99'999;

struct Range {
  int first;
  int last;
};

/// Normalises a whole number in Python's int() syntax (" 2", "+2", "1_0") for parse_integer(). Other text is returned
/// unchanged and is rejected there.
std::string plain_number(std::string_view text) {
  const std::string_view word = trim(text);
  const bool is_signed = word.starts_with('+') || word.starts_with('-');
  std::string digits(word.substr(0, word.starts_with('-') ? 1 : 0));
  bool after_digit = false;
  for (const char c : word.substr(is_signed ? 1 : 0)) {
    const bool digit = std::isdigit(static_cast<unsigned char>(c)) != 0;
    if (!digit && (c != '_' || !after_digit)) return std::string(text);
    if (digit) digits += c;
    after_digit = digit;
  }
  return after_digit ? digits : std::string(text);
}

std::optional<Range> parse_range(std::string_view text, int highest) {
  const std::size_t dash = text.find('-');
  const auto first = parse_integer(text.substr(0, dash), 0, highest);
  if (!first) return std::nullopt;
  if (dash == std::string_view::npos) return Range{static_cast<int>(*first), static_cast<int>(*first)};
  const auto last = parse_integer(text.substr(dash + 1), *first, highest);
  if (!last) return std::nullopt;
  return Range{static_cast<int>(*first), static_cast<int>(*last)};
}

std::string did_you_mean(std::string_view word, const std::vector<std::string>& candidates) {
  const std::string near = nearest(word, candidates);
  return near.empty() ? std::string() : concat("; did you mean '", near, "'?");
}

}  // namespace

Result<bool> parse_bool(std::string_view text) {
  std::string word(text);
  std::transform(word.begin(), word.end(), word.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  for (const std::string_view yes : {"1", "true", "t", "yes", "y", "on"}) {
    if (word == yes) return true;
  }
  for (const std::string_view no : {"0", "false", "f", "no", "n", "off"}) {
    if (word == no) return false;
  }
  return bad(concat("'", text, "' is neither 0 nor 1"));
}

Result<int> parse_int(std::string_view text, int low, int high) {
  const auto number = parse_integer(plain_number(text), low, high);
  if (!number) return bad(concat("'", text, "' is not a whole number from ", low, " to ", high));
  return static_cast<int>(*number);
}

Result<double> parse_positive_number(std::string_view text) {
  double number = 0;
  const auto [end, err] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (err != std::errc() || end != text.data() + text.size() || !(number > 0) || number > 1e12) {
    return bad(concat("'", text, "' is not a number above 0"));
  }
  return number;
}

Result<std::uint64_t> parse_seed(std::string_view text) {
  if (const auto number = whole_number<std::uint64_t>(text)) return *number;
  return bad(concat("'", text, "' is not a whole number from 0 to 18446744073709551615"));
}

Result<std::string> parse_non_empty(std::string_view text) {
  if (text.empty()) return bad("must not be empty");
  return std::string(text);
}

Result<std::string> parse_choice(std::string_view text, std::string_view choices) {
  const std::vector<std::string> words = split(choices, ' ');
  if (std::find(words.begin(), words.end(), text) != words.end()) return std::string(text);
  return bad(concat("'", text, "' is not one of ", join(words, ", "), did_you_mean(text, words)));
}

Result<NprocSpec> parse_nproc(std::string_view text) {
  if (text == "auto") return NprocSpec{NprocSpec::Kind::automatic, 1};
  if (text == "cpu") return NprocSpec{NprocSpec::Kind::cpu, 1};
  if (text == "gpu") return NprocSpec{NprocSpec::Kind::gpu, 1};
  const auto count = parse_integer(plain_number(text), 1, 100'000);
  if (!count && (text == "xpu" || text == "npu" || text == "hpu" || text == "mps")) {
    return bad(concat("only PyTorch's own libraries count devices of the kind ", text, "; give their number"));
  }
  if (!count) return bad(concat("'", text, "' is not a number from 1 to 100000, auto, cpu or gpu"));
  return NprocSpec{NprocSpec::Kind::count, static_cast<int>(*count)};
}

Result<std::pair<int, int>> parse_nnodes(std::string_view text) {
  const std::size_t colon = text.find(':');
  const auto low = parse_integer(plain_number(text.substr(0, colon)), 1, 1'000'000);
  const auto high = colon == std::string_view::npos
                        ? low
                        : parse_integer(plain_number(text.substr(colon + 1)), low.value_or(1), 1'000'000);
  if (!low || !high) return bad(concat("'", text, "' is neither N nor MIN:MAX with 0 < MIN <= MAX"));
  return std::pair(static_cast<int>(*low), static_cast<int>(*high));
}

Result<StreamSelection> parse_streams(std::string_view text) {
  const auto wrong = [&] {
    return bad(concat("'", text,
                      "' is neither 0, 1, 2 or 3 (none, stdout, stderr, both) nor a list such as 0:3,12:1 "
                      "(local rank:stream)"));
  };
  const auto digit = [](std::string_view word) -> std::optional<Streams> {
    if (word.size() != 1 || word[0] < '0' || word[0] > '3') return std::nullopt;
    return static_cast<Streams>(word[0] - '0');
  };
  StreamSelection selection;
  if (text.find(':') == std::string_view::npos) {
    const auto all_ranks = digit(text);
    if (!all_ranks) return wrong();
    selection.all_ranks = *all_ranks;
    return selection;
  }
  for (const std::string& part : split(text, ',')) {
    const std::size_t colon = part.find(':');
    if (colon == std::string::npos) return wrong();
    const auto ranks = parse_range(std::string_view(part).substr(0, colon), highest_rank);
    const auto streams = digit(std::string_view(part).substr(colon + 1));
    if (!ranks || !streams) return wrong();
    for (int rank = ranks->first; rank <= ranks->last; ++rank) selection.by_local_rank[rank] = *streams;
  }
  return selection;
}

Result<std::set<int>> parse_number_set(std::string_view text, int highest, std::string_view what) {
  std::set<int> numbers;
  for (const std::string& part : split(text, ',')) {
    const auto range = parse_range(trim(part), std::min(highest, highest_rank));
    if (!range) {
      return bad(concat("'", part, "' is not ", what, " from 0 to ", std::min(highest, highest_rank),
                        "; give a list such as 1,3,8-15"));
    }
    for (int number = range->first; number <= range->last; ++number) numbers.insert(number);
  }
  return numbers;
}

Result<std::vector<std::string>> parse_filters(std::string_view text) {
  std::vector<std::string> filters;
  std::string current;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != ',') {
      current += text[i];
    } else if (i + 1 < text.size() && text[i + 1] == ',') {
      current += ',';
      ++i;
    } else {
      if (!current.empty()) filters.push_back(std::move(current));
      current.clear();
    }
  }
  if (!current.empty()) filters.push_back(std::move(current));
  return filters;
}

Result<std::map<std::string, std::string>> parse_pairs(std::string_view text) {
  std::map<std::string, std::string> pairs;
  if (trim(text).empty()) return pairs;
  for (const std::string& part : split(text, ',')) {
    const std::size_t equals = part.find('=');
    const std::string_view key = trim(std::string_view(part).substr(0, equals));
    const std::string_view value =
        equals == std::string::npos ? std::string_view() : trim(std::string_view(part).substr(equals + 1));
    if (key.empty() || value.empty()) {
      return bad(concat("'", trim(part), "' is not KEY=VALUE; give a list such as timeout=60,is_host=1"));
    }
    pairs[std::string(key)] = std::string(value);
  }
  return pairs;
}

Result<std::set<int>> parse_signals(std::string_view text) {
  std::set<int> signals;
  if (trim(text).empty()) return signals;
  for (const std::string& part : split(text, ',')) {
    const int number = signal_number(trim(part));
    if (number == 0) {
      std::vector<std::string> names;
      for (int known = 1; known < SIGRTMIN; ++known) {
        if (const std::string name = signal_name(known); name.starts_with("SIG")) names.push_back(name);
      }
      return bad(concat("'", trim(part), "' is not a signal; give names such as SIGTERM,SIGUSR1",
                        did_you_mean(trim(part), names)));
    }
    for (const int never : {SIGKILL, SIGSTOP, SIGCHLD, SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGTRAP, SIGSYS}) {
      if (number == never) return bad(concat(signal_name(number), " cannot be handled by a launcher"));
    }
    signals.insert(number);
  }
  return signals;
}

Result<StdinSpec> parse_stdin(std::string_view text) {
  if (text == "all") return StdinSpec{StdinSpec::Kind::all, 0};
  if (text == "none") return StdinSpec{StdinSpec::Kind::none, 0};
  const auto rank = parse_integer(text, 0, highest_rank);
  if (!rank) return bad(concat("'", text, "' is neither a rank (0, 1, ...) nor all or none"));
  return StdinSpec{StdinSpec::Kind::rank, static_cast<int>(*rank)};
}

Result<std::string> parse_host(std::string_view text) {
  text = trim_typed(text);
  if (text.empty()) return bad("must not be empty");
  const bool is_v4 = text.find_first_not_of("0123456789.") == std::string_view::npos;
  const bool is_v6 = text.find(':') != std::string_view::npos;
  if (text.starts_with('-')) return bad(concat("'", text, "' is not a host: a host's name does not begin with '-'"));
  if ((is_v4 || is_v6) && !IpAddress::parse(text)) return bad(concat("'", text, "' is not an IP address"));
  return std::string(text);
}

Result<std::string> parse_endpoint(std::string_view text) {
  text = trim_typed(text);
  const auto wrong = [&] { return bad(concat("'", text, "' is not HOST or HOST:PORT with a port from 0 to 65535")); };
  const auto parts = split_host_port(text);
  if (!parts || parts->host.empty() || parts->host.find_first_of(" /\t") != std::string::npos) return wrong();
  if (parts->port && !parse_integer(*parts->port, 0, 65535)) return wrong();
  TRY(parse_host(parts->host));
  return std::string(text);
}

Result<std::pair<std::string, std::string>> parse_assignment(std::string_view text) {
  const std::size_t equals = text.find('=');
  if (equals == 0 || equals == std::string_view::npos) return bad(concat("'", text, "' is not NAME=VALUE"));
  return std::pair(std::string(text.substr(0, equals)), std::string(text.substr(equals + 1)));
}

Result<Milliseconds> parse_time(std::string_view text) {
  auto duration = parse_duration(plain_number(text));
  // Now plus this must fit into 64 bits of nanoseconds.
  if (duration && *duration > std::chrono::hours(24 * 3660)) return bad(concat("'", text, "' is more than ten years"));
  return duration;
}

Result<Milliseconds> parse_positive_time(std::string_view text) {
  auto duration = parse_time(text);
  if (duration && duration->count() == 0) return bad("must be longer than 0");
  return duration;
}

std::string number_text(double number) {
  char buffer[400];
  const auto end = std::to_chars(buffer, buffer + sizeof buffer, number, std::chars_format::fixed).ptr;
  return std::string(buffer, end);
}

std::string number_set_text(const std::set<int>& numbers) { return fold_ranks({numbers.begin(), numbers.end()}); }

std::string streams_text(const StreamSelection& streams) {
  if (streams.by_local_rank.empty()) return std::to_string(static_cast<int>(streams.all_ranks));
  std::string text;
  for (const auto& [rank, which] : streams.by_local_rank) {
    text += concat(text.empty() ? "" : ",", rank, ":", static_cast<int>(which));
  }
  return text;
}

std::string filters_text(const std::vector<std::string>& filters) {
  std::string text;
  for (const std::string& filter : filters) {
    if (!text.empty()) text += ',';
    for (const char c : filter) text += c == ',' ? std::string(",,") : std::string(1, c);
  }
  return text;
}

std::string pairs_text(const std::map<std::string, std::string>& pairs) {
  std::string text;
  for (const auto& [key, value] : pairs) text += concat(text.empty() ? "" : ",", key, "=", value);
  return text;
}

std::string signals_text(const std::set<int>& signals) {
  std::string text;
  for (const int signal : signals) text += concat(text.empty() ? "" : ",", signal_name(signal));
  return text;
}

}  // namespace ddrun::cli
