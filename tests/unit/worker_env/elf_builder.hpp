#pragma once

#include <elf.h>

#include <cstdint>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

namespace ddrun::test {

struct ElfLayout {
  std::uint64_t names_address = 0;  ///< 0: their real address
  std::uint64_t names_size = 0;     ///< 0: the real size
  std::uint64_t first_name = 0;     ///< 0: its real position
  std::uint16_t headers = 2;
  std::uint16_t machine = EM_NONE;
  std::uint16_t type = ET_DYN;
};

/// A 64-bit ELF file with these entries in its dynamic section, such as {DT_NEEDED, "libc.so.6"}: header, two program
/// headers, dynamic section, names.
inline std::string elf_file(const std::vector<std::pair<Elf64_Sxword, std::string>>& strings,
                            const ElfLayout& layout = {}) {
  const auto append = [](std::string& to, const auto& what) {
    to.append(reinterpret_cast<const char*>(&what), sizeof what);
  };
  constexpr std::uint64_t base = 0x400000;
  const std::uint64_t dynamic_at = sizeof(Elf64_Ehdr) + 2 * sizeof(Elf64_Phdr);
  const std::uint64_t names_at = dynamic_at + (strings.size() + 3) * sizeof(Elf64_Dyn);
  std::string names(1, '\0');
  std::string dynamic;
  for (const auto& [tag, text] : strings) {
    Elf64_Dyn entry{};
    entry.d_tag = tag;
    entry.d_un.d_val = layout.first_name != 0 && dynamic.empty() ? layout.first_name : names.size();
    append(dynamic, entry);
    names += text + '\0';
  }
  Elf64_Dyn table{};
  table.d_tag = DT_STRTAB;
  table.d_un.d_ptr = layout.names_address != 0 ? layout.names_address : base + names_at;
  append(dynamic, table);
  Elf64_Dyn size{};
  size.d_tag = DT_STRSZ;
  size.d_un.d_val = layout.names_size != 0 ? layout.names_size : names.size();
  append(dynamic, size);
  append(dynamic, Elf64_Dyn{});

  Elf64_Ehdr head{};
  std::memcpy(head.e_ident, ELFMAG, SELFMAG);
  head.e_ident[EI_CLASS] = ELFCLASS64;
  head.e_ident[EI_DATA] = ELFDATA2LSB;
  head.e_type = layout.type;
  head.e_machine = layout.machine;
  head.e_phoff = sizeof head;
  head.e_phentsize = sizeof(Elf64_Phdr);
  head.e_phnum = layout.headers;
  Elf64_Phdr load{};
  load.p_type = PT_LOAD;
  load.p_vaddr = base;
  load.p_filesz = names_at + names.size();
  Elf64_Phdr part{};
  part.p_type = PT_DYNAMIC;
  part.p_offset = dynamic_at;
  part.p_filesz = dynamic.size();
  std::string file;
  append(file, head);
  append(file, load);
  append(file, part);
  return file + dynamic + names;
}

}  // namespace ddrun::test
