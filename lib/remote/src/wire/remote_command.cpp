#include "remote_command.hpp"

#include <elf.h>
#include <link.h>

#include <algorithm>
#include <cctype>
#include <span>

#include "ddrun/base/text.hpp"
#include "ddrun/remote/bootstrap.hpp"

namespace ddrun::remote {

namespace {

/// Whether the path is safe in double quotes within single quotes in any shell.
bool is_plain(std::string_view path) {
  return !path.empty() && std::all_of(path.begin(), path.end(), [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 ||
           std::string_view("/._-+,:=@% ").find(c) != std::string_view::npos;
  });
}

}  // namespace

Result<std::vector<std::string>> split_command(std::string_view text) {
  std::vector<std::string> words;
  std::string word;
  bool in_word = false;
  char quote = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (quote == 0 && (c == ' ' || c == '\t' || c == '\n')) {
      if (in_word) words.push_back(std::move(word));
      word.clear();
      in_word = false;
      continue;
    }
    in_word = true;
    if (c == quote) quote = 0;
    else if (quote == 0 && (c == '\'' || c == '"')) quote = c;
    else if (c == '\\' && quote != '\'' && i + 1 < text.size()) word += text[++i];
    else word += c;
  }
  if (quote != 0) return fail(Errc::invalid_argument, concat("'", text, "' has a ", quote, " without its second one"));
  if (in_word) words.push_back(std::move(word));
  if (words.empty()) return fail(Errc::invalid_argument, "the command to reach other hosts by is empty");
  return words;
}

bool is_openssh(const std::vector<std::string>& command) { return command[0] == "ssh" || command[0].ends_with("/ssh"); }

bool closed_by_proxy(std::string_view errors) {
  for (const std::string& line : split(errors, '\n')) {
    const auto says = [&line](const char* words) { return line.find(words) != std::string::npos; };
    const bool is_remark = trim(line).empty() || line.starts_with("Warning: ") || line.starts_with("** ");
    const bool is_end = says("kex_exchange_identification") || says("banner exchange") ||
                        says("Connection closed by") || says("reset by");
    if (!is_remark && !is_end) return false;
  }
  return errors.find("UNKNOWN port 65535") != std::string_view::npos;  // ssh's words for a peer that is a pipe
}

std::string frames_marker(std::string_view build_id) { return concat("ddrun-agent-", build_id, "-runs\n"); }
std::string copy_marker(std::string_view build_id) { return concat("ddrun-agent-", build_id, "-missing\n"); }

// The script below is parsed by any login shell within single quotes, so it contains no ' \ ! or newline; /bin/sh may
// be dash, bash, busybox or ksh.

namespace {

// Its variables begin with '_', so that exported variables of the host reach the workers unchanged.

/// "trusted NAME" sets `_p` to the program's path; false unless the file and all directories above it are owned by root
/// or this user and not writable by others, who could replace the program. Allowed are a sticky directory such as /tmp,
/// where only the owner can replace a file, and write access of the group with the user's own number.
constexpr std::string_view trusted =
    "_o=$(id -u); _x=$(id -g); [ \"$_x\" = \"$_o\" ] || _x=none; "
    "trusted() { _p=$(command -v \"$1\") && _p=$(readlink -f \"$_p\") || return 1; "
    "case $_p in /*) ;; *) return 1;; esac; "
    "set --; _q=$_p; until [ -z \"$_q\" ]; do set -- \"$_q\" \"$@\"; _q=${_q%/*}; done; "
    "ls -ldn / \"$@\" 2>/dev/null | (while read m l u g r; do "
    "case $u in 0|$_o) ;; *) exit 1;; esac; "
    "case $m in d????????[tT]*) ;; ????????w*) exit 1;; ?????w*) [ \"$g\" = \"$_x\" ] || exit 1;; esac; "
    "done); }; ";

}  // namespace

std::string remote_command(std::string_view build_id, const std::string& program, std::uint64_t size,
                           std::chrono::milliseconds limit) {
  std::string script =
      concat("_i=", build_id, "; _n=", size, "; _s=", std::chrono::ceil<std::chrono::seconds>(limit).count(), "; ",
             trusted, "for _p in ");
  if (is_plain(program)) script += concat("\"", program, "\" ");
  script +=
      "ddrun; do if trusted \"$_p\" && \"$_p\" relay --check=$_i </dev/null >/dev/null 2>&1; "
      "then exec \"$_p\" relay; fi; done; "
      "_t=\"${TMPDIR:-/tmp}\"; _d=$(mktemp -d \"$_t/ddrun.XXXXXXXXXX\") || exit 1; c() { rm -rf \"$_d\"; }; "
      "trap c EXIT; trap \"exit 1\" HUP INT TERM PIPE; echo ddrun-agent-$_i-missing; "
      // sshd may wait for days on a dead connection. (Old busybox has a timeout with another syntax.)
      "_b=; timeout 1 true 2>/dev/null && _b=\"timeout $_s\"; "
      "if $_b head -c $_n >\"$_d/ddrun\" && [ $(wc -c <\"$_d/ddrun\") -eq $_n ] && chmod 700 \"$_d/ddrun\"; then "
      // The file system may be mounted noexec.
      "if \"$_d/ddrun\" relay --check=$_i </dev/null >/dev/null; then exec \"$_d/ddrun\" relay --private; fi; "
      "for _t in \"$HOME\" /dev/shm; do _e=$(mktemp -d \"$_t/ddrun.XXXXXXXXXX\") || continue; "
      "if cp \"$_d/ddrun\" \"$_e/ddrun\" && \"$_e/ddrun\" relay --check=$_i </dev/null >/dev/null 2>&1; then "
      "c; _d=$_e; exec \"$_d/ddrun\" relay --private; fi; rm -rf \"$_e\"; done; fi; exit 1";
  return concat("exec /bin/sh -c '", script, "'");
}

namespace {

constexpr std::size_t aligned(std::size_t size) { return (size + 3U) & ~std::size_t{3}; }

/// The linker's build id in hexadecimal, as `file` and `readelf -n` show it; empty if there is none.
std::string note_of_program() {
  std::string id;
  const auto look = [](dl_phdr_info* info, std::size_t, void* to) {
    auto& text = *static_cast<std::string*>(to);
    for (int i = 0; i < info->dlpi_phnum; ++i) {
      const auto& segment = info->dlpi_phdr[i];
      if (segment.p_type != PT_NOTE) continue;
      const char* at = reinterpret_cast<const char*>(info->dlpi_addr + segment.p_vaddr);  // NOLINT: that is its address
      const char* const end = at + segment.p_memsz;
      while (at + sizeof(ElfW(Nhdr)) <= end) {
        const auto* note = reinterpret_cast<const ElfW(Nhdr)*>(at);
        const char* name = at + sizeof *note;
        const char* content = name + aligned(note->n_namesz);
        at = content + aligned(note->n_descsz);
        if (at > end || note->n_type != NT_GNU_BUILD_ID ||
            std::string_view(name, note->n_namesz) != std::string_view("GNU", 4))
          continue;
        text = in_hex(std::as_bytes(std::span(content, note->n_descsz)));
        return 1;
      }
    }
    return 1;  // stop after the first: the program itself
  };
  ::dl_iterate_phdr(look, &id);
  return id;
}

}  // namespace

std::string build_id(const char* version, const char* commit) {
  const std::string note = note_of_program();
  std::string id = concat(version, "-", note.empty() ? std::string_view(commit) : std::string_view(note));
  for (char& c : id) {
    if (std::isalnum(static_cast<unsigned char>(c)) == 0 && std::string_view(".+-").find(c) == std::string_view::npos)
      c = '.';
  }
  return id;
}

}  // namespace ddrun::remote
