# What CPack makes of an installation, and the list of what is linked in. scripts/package calls it for all packages.

# Versions that no package file of CMake tells.
set(probe "${CMAKE_BINARY_DIR}/package/versions.cpp")
file(WRITE "${probe}" "#include <features.h>\n#if __has_include(<zlib.h>)\n#include <zlib.h>\n#include <zstd.h>\n#endif\n"
  "glibc;__GLIBC__.__GLIBC_MINOR__;zlib;ZLIB_VERSION;zstd;ZSTD_VERSION_MAJOR.ZSTD_VERSION_MINOR.ZSTD_VERSION_RELEASE\n")
set(sysroot "")
if(CMAKE_SYSROOT)
  set(sysroot "--sysroot=${CMAKE_SYSROOT}")
endif()
execute_process(COMMAND "${CMAKE_CXX_COMPILER}" ${sysroot} -E -P "${probe}" OUTPUT_VARIABLE output COMMAND_ERROR_IS_FATAL ANY)
string(REGEX MATCH "glibc;.*" output "${output}")
string(REGEX REPLACE "[ \n\"]" "" output "${output}")
list(GET output 1 glibc_version)
list(GET output 3 zlib_version)
list(GET output 5 zstd_version)

# The software bill of materials, in CycloneDX's form (https://cyclonedx.org/docs/1.6/json/); NOTICE names the same works.
set(linked "Boost|boost|${Boost_VERSION}|BSL-1.0" "CLI11|cli11|${CLI11_VERSION}|BSD-3-Clause"
  "nlohmann-json|nlohmann-json|${nlohmann_json_VERSION}|MIT" "toml++|toml%2B%2B|${tomlplusplus_VERSION}|MIT"
  "tl-expected|tl-expected|${tl-expected_VERSION}|CC0-1.0" "OpenSSL|openssl|${OPENSSL_VERSION}|Apache-2.0"
  "libstdc++|libstdc%2B%2B|${CMAKE_CXX_COMPILER_VERSION}|GPL-3.0-or-later WITH GCC-exception-3.1"
  "GNU C Library|glibc|${glibc_version}|LGPL-2.1-or-later")
if(uses_zstd)
  list(APPEND linked "zstd|zstd|${zstd_version}|BSD-3-Clause" "zlib|zlib|${zlib_version}|Zlib")
endif()
set(components "")
foreach(work IN LISTS linked)
  string(REGEX REPLACE "(.*)[|](.*)[|](.*)[|](.*)" "    {\"type\": \"library\", \"name\": \"\\1\", \"version\": \"\\3\",
     \"licenses\": [{\"expression\": \"\\4\"}], \"purl\": \"pkg:generic/\\2@\\3\"}" work "${work}")
  list(APPEND components "${work}")
endforeach()
list(JOIN components ",\n" components)
file(CONFIGURE OUTPUT "${CMAKE_BINARY_DIR}/package/ddrun-${PROJECT_VERSION}-${CMAKE_SYSTEM_PROCESSOR}.cdx.json" @ONLY CONTENT [[{
  "bomFormat": "CycloneDX",
  "specVersion": "1.6",
  "version": 1,
  "metadata": {
    "component": {"type": "application", "name": "ddrun", "version": "@PROJECT_VERSION@",
     "licenses": [{"expression": "BSD-3-Clause"}], "purl": "pkg:pypi/ddrun@@PROJECT_VERSION@"}
  },
  "components": [
@components@
  ]
}
]])

set(debian_arch "${CMAKE_SYSTEM_PROCESSOR}")
if(debian_arch STREQUAL "x86_64")
  set(debian_arch amd64)
elseif(debian_arch STREQUAL "aarch64")
  set(debian_arch arm64)
endif()

set(CPACK_PACKAGE_CONTACT "ddrun")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "${PROJECT_DESCRIPTION}")
set(CPACK_RESOURCE_FILE_LICENSE "${CMAKE_CURRENT_SOURCE_DIR}/LICENSE")
set(CPACK_PACKAGE_DIRECTORY "${CMAKE_BINARY_DIR}/packages")
set(CPACK_GENERATOR DEB RPM TGZ)
set(CPACK_COMPONENTS_GROUPING IGNORE) # one package of each component
set(CPACK_PROJECT_CONFIG_FILE "${CMAKE_CURRENT_LIST_DIR}/DdrunPackageKind.cmake")
set(CPACK_PRE_BUILD_SCRIPTS "${CPACK_PROJECT_CONFIG_FILE}")
set(CPACK_DDRUN_STATIC_WORKER "${CMAKE_BINARY_DIR}/bin/ddrun-allreduce-static")

string(TOLOWER "ddrun-${PROJECT_VERSION}-${CMAKE_SYSTEM_NAME}-${CMAKE_SYSTEM_PROCESSOR}" CPACK_ARCHIVE_PROGRAMS_FILE_NAME)
set(CPACK_ARCHIVE_COMPONENT_INSTALL ON)

set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_ARCHITECTURE "${debian_arch}")
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_COMPRESSION_TYPE xz)
set(CPACK_DEBIAN_PROGRAMS_PACKAGE_NAME ddrun)
set(CPACK_DEBIAN_PROGRAMS_PACKAGE_DEPENDS "libc6 (>= ${glibc_version})") # of ddrun-allreduce
set(CPACK_DEBIAN_PROGRAMS_PACKAGE_SUGGESTS "libpmix2 | libpmix2t64") # for programs of Open MPI
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_NAME libddrun-dev)
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_SECTION libdevel)
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_DEPENDS libexpected-dev)
set(CPACK_COMPONENT_DEVELOPMENT_DESCRIPTION "Client library of ddrun's store, for programs in C++")

set(CPACK_RPM_COMPONENT_INSTALL ON)
set(CPACK_RPM_FILE_NAME RPM-DEFAULT)
set(CPACK_RPM_PACKAGE_ARCHITECTURE "${CMAKE_SYSTEM_PROCESSOR}")
set(CPACK_RPM_PACKAGE_LICENSE "BSD-3-Clause")
set(CPACK_RPM_PROGRAMS_PACKAGE_NAME ddrun)
set(CPACK_RPM_PACKAGE_AUTOREQ OFF) # static programs
set(CPACK_RPM_COMPRESSION_TYPE xz)
# Folders of other packages.
foreach(folder IN ITEMS man man/man1 bash-completion bash-completion/completions zsh zsh/site-functions fish fish/vendor_completions.d)
  list(APPEND CPACK_RPM_EXCLUDE_FROM_AUTO_FILELIST_ADDITION "/usr/share/${folder}")
endforeach()
# Files as they are, and nothing of this machine and hour.
set(CPACK_RPM_SPEC_MORE_DEFINE "%define _build_id_links none
%define __os_install_post %{nil}
%define _buildhost localhost
%define use_source_date_epoch_as_buildtime 1
%define clamp_mtime_to_source_date_epoch 1")
set(CPACK_VERBATIM_VARIABLES ON)
include(CPack)
