#pragma once

namespace ddrun {

/// Version and build options of this program. All strings are static and never null.
struct BuildInfo {
  const char* version;     ///< "0.1.0"
  const char* commit;      ///< short hash, "+changes" behind it if files differed from it; "unknown" without git
  const char* build_type;  ///< CMake's: "RelWithDebInfo"
  const char* compiler;    ///< "g++ 12.2.0"
  const char* link;        ///< "dynamic", "partial" (only the C library is shared) or "static"
  const char* sanitize;    ///< "address,undefined"; empty as a rule
  const char* boost;       ///< "1.81.0"
  const char* libraries;   ///< "Boost 1.81.0, CLI11 2.1.2, …"
};

/// Needs ddrun::build_info (programs link it already), separate from ddrun::base so that a new commit does not relink
/// every test.
[[nodiscard]] const BuildInfo& build_info();

}  // namespace ddrun
