#include "ddrun/remote/bootstrap.hpp"

#include <elf.h>
#include <link.h>

#include <cctype>
#include <span>
#include <string_view>

#include "ddrun/base/text.hpp"

namespace ddrun::remote {

namespace {

constexpr std::size_t aligned(std::size_t size) { return (size + 3U) & ~std::size_t{3}; }

/// The linker's note in the hexadecimal digits that `file` and `readelf -n` show; empty if there is none.
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
    return 1;  // the first is the program itself; libraries follow
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
