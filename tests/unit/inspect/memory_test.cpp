#include "memory.hpp"

#include <dlfcn.h>
#include <unistd.h>

#include <cstdint>
#include <string>

#include "ddrun/test/catch.hpp"

using namespace ddrun::inspect;

namespace {
const Mapping* mapping_of(const std::vector<Mapping>& mappings, const std::string& part) {
  for (const Mapping& mapping : mappings) {
    if (mapping.module->path.find(part) != std::string::npos) return &mapping;
  }
  return nullptr;
}
}  // namespace

TEST_CASE("a dynamic symbol is found in memory where the loader has put it") {
  const auto mappings = read_mappings(::getpid());
  const Mapping* const libc = mapping_of(mappings, "libc.so");
  REQUIRE(libc != nullptr);
  const auto memory = ProcessMemory::open(::getpid());
  REQUIRE(memory);
  const CachedMemory cached(*memory);
  const auto image = ElfImage::read(cached, base_of(mappings, *libc));
  REQUIRE(image);
  void* const loaded = ::dlopen("libc.so.6", RTLD_LAZY | RTLD_NOLOAD);
  REQUIRE(loaded != nullptr);
  CHECK(image->symbol("stdout") == reinterpret_cast<std::uint64_t>(::dlsym(loaded, "stdout")));
  ::dlclose(loaded);
  CHECK(image->symbol("no_such_symbol") == 0);
  CHECK(image->symbol("stdou") == 0);
}
