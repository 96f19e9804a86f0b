#include "pmi_line.hpp"

#include <algorithm>

#include "ddrun/base/bytes.hpp"

namespace ddrun::pmi {

namespace {

/// The end of the word that begins at `begin`: an escaped blank is part of it.
std::size_t end_of_word(std::string_view text, std::size_t begin) {
  if (text.substr(begin).starts_with("message=")) return text.size();
  std::size_t end = begin;
  while (end < text.size() && text[end] != ' ') end += text[end] == '\\' ? 2 : 1;
  return std::min(end, text.size());
}

bool is_text(std::string_view bytes) {
  return std::none_of(bytes.begin(), bytes.end(), [](char c) {
    const auto byte = static_cast<unsigned char>(c);
    return (byte < 0x20 && c != '\t') || byte == 0x7f;
  });
}

}  // namespace

bool is_storable(std::string_view key, std::string_view value) {
  return !key.empty() && key.size() <= max_key_bytes && value.size() <= max_value_bytes && !key.starts_with("PMI_") &&
         is_text(key) && is_text(value);
}

std::optional<PmiLine> PmiLine::parse(std::string_view text) {
  PmiLine line;
  line.text_ = text;
  if (!text.starts_with("cmd=") || !is_text(text)) return std::nullopt;
  for (std::size_t at = 0; (at = text.find_first_not_of(' ', at)) != std::string_view::npos;) {
    const std::size_t end = end_of_word(text, at);
    const std::string_view word = text.substr(at, end - at);
    const std::size_t name = std::min(word.find('='), word.size());
    line.words_.emplace_back(word.substr(0, name), word.substr(std::min(name + 1, word.size())));
    at = end;
  }
  return line;
}

std::optional<std::string_view> PmiLine::find(std::string_view name) const {
  const auto found = std::find_if(words_.begin(), words_.end(), [&](const auto& word) { return word.first == name; });
  return found == words_.end() ? std::nullopt : std::optional(found->second);
}

void append_put(std::string& batch, std::string_view key, std::string_view value) {
  bytes::put_text(batch, key);
  bytes::put_text(batch, value);
}

Result<std::vector<std::pair<std::string_view, std::string_view>>> decode_puts(std::string_view batch) {
  std::vector<std::pair<std::string_view, std::string_view>> puts;
  bool valid = batch.size() <= max_batch_bytes;
  for (bytes::Reader reader(batch); valid && !reader.left().empty();) {
    const std::string_view key = reader.text();
    const std::string_view value = reader.text();
    valid = reader.ok() && is_storable(key, value);
    puts.emplace_back(key, value);
  }
  if (!valid) return fail(Errc::protocol, "malformed keys");
  return puts;
}

}  // namespace ddrun::pmi
