# Manual pages, completions, documents and the store's client library; programs are installed where they are
# declared.

# The program writes its own completions, so they cannot disagree with its options.
set(completion_dir "${CMAKE_BINARY_DIR}/completions")
set(completion_files "")
foreach(shell IN ITEMS bash zsh fish)
  set(file "${completion_dir}/ddrun.${shell}")
  add_custom_command(OUTPUT "${file}" VERBATIM
    COMMAND "${CMAKE_COMMAND}" -E make_directory "${completion_dir}"
    COMMAND "${CMAKE_COMMAND}" "-DEMULATOR=${CMAKE_CROSSCOMPILING_EMULATOR}" "-DPROGRAM=$<TARGET_FILE:ddrun_program>"
      -DSHELL=${shell} "-DOUTPUT=${file}" -P "${CMAKE_CURRENT_LIST_DIR}/DdrunCompletion.cmake"
    DEPENDS ddrun_program "${CMAKE_CURRENT_LIST_DIR}/DdrunCompletion.cmake"
    COMMENT "Writing the completions for ${shell}")
  list(APPEND completion_files "${file}")
endforeach()
add_custom_target(ddrun_completions ALL DEPENDS ${completion_files})
# All that is installed.
add_custom_target(ddrun_programs DEPENDS ddrun_completions ddrun_program ddrun_allreduce_program ddrun_store)
if(TARGET ddrun_allreduce_static_program)
  add_dependencies(ddrun_programs ddrun_allreduce_static_program)
endif()
# bash looks for a file of each program's name.
foreach(program IN ITEMS ddrun ddrun-allreduce)
  install(FILES "${completion_dir}/ddrun.bash" RENAME ${program} COMPONENT programs
    DESTINATION "${CMAKE_INSTALL_DATADIR}/bash-completion/completions")
endforeach()
install(FILES "${completion_dir}/ddrun.zsh" RENAME _ddrun COMPONENT programs
  DESTINATION "${CMAKE_INSTALL_DATADIR}/zsh/site-functions")
install(FILES "${completion_dir}/ddrun.fish" COMPONENT programs
  DESTINATION "${CMAKE_INSTALL_DATADIR}/fish/vendor_completions.d")

install(FILES docs/ddrun.1 docs/ddrun-allreduce.1 COMPONENT programs DESTINATION "${CMAKE_INSTALL_MANDIR}/man1")
# In the folders of the source tree, so that links between pages, and to what they name, lead somewhere.
install(FILES README.md CHANGELOG.md CONTRIBUTING.md SECURITY.md LICENSE NOTICE COMPONENT programs DESTINATION "${CMAKE_INSTALL_DOCDIR}")
install(DIRECTORY docs COMPONENT programs DESTINATION "${CMAKE_INSTALL_DOCDIR}" FILES_MATCHING
  PATTERN "*.md" PATTERN "*.schema.json" PATTERN "notebook.*" PATTERN "pictures/*.svg" PATTERN "licenses/*"
  PATTERN examples EXCLUDE)
# Debian looks for this name in each package.
file(READ LICENSE license)
file(READ NOTICE notice)
file(CONFIGURE OUTPUT "${CMAKE_BINARY_DIR}/package/copyright" @ONLY CONTENT
  "SPDX-License-Identifier: BSD-3-Clause\n\n@license@\n@notice@")
install(FILES "${CMAKE_BINARY_DIR}/package/copyright" COMPONENT programs DESTINATION "${CMAKE_INSTALL_DOCDIR}")
install(FILES "${CMAKE_BINARY_DIR}/package/copyright" COMPONENT development
  DESTINATION "${CMAKE_INSTALL_DATADIR}/doc/libddrun-dev")
install(DIRECTORY configs COMPONENT programs DESTINATION "${CMAKE_INSTALL_DOCDIR}")
foreach(module IN ITEMS lease rendezvous store)
  install(FILES lib/${module}/PROTOCOL.md COMPONENT programs DESTINATION "${CMAKE_INSTALL_DOCDIR}/lib/${module}")
endforeach()
install(FILES lib/lease/src/etcd.sh COMPONENT programs DESTINATION "${CMAKE_INSTALL_DOCDIR}/lib/lease/src")
install(PROGRAMS scripts/each-host COMPONENT programs DESTINATION "${CMAKE_INSTALL_DOCDIR}/scripts")

# find_package(ddrun) and ddrun::store for programs in C++ (docs/store.md). Of ddrun::base only those headers that
# the store's own include; tests/e2e/build/example_project.sh notices one too few or too many.
set(package_dir "${CMAKE_INSTALL_LIBDIR}/cmake/ddrun")
target_compile_features(ddrun_base INTERFACE cxx_std_20)
set_target_properties(ddrun_base PROPERTIES EXPORT_NAME base)
set_target_properties(ddrun_store PROPERTIES EXPORT_NAME store)
install(TARGETS ddrun_base ddrun_store EXPORT ddrunTargets COMPONENT development
  ARCHIVE DESTINATION "${CMAKE_INSTALL_LIBDIR}" INCLUDES DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}")
install(DIRECTORY lib/store/include/ COMPONENT development DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}")
install(FILES lib/base/include/ddrun/base/duration.hpp lib/base/include/ddrun/base/result.hpp COMPONENT development
  DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}/ddrun/base")

include(CMakePackageConfigHelpers)
configure_package_config_file(scripts/cmake/ddrunConfig.cmake.in "${CMAKE_BINARY_DIR}/package/ddrunConfig.cmake"
  INSTALL_DESTINATION "${package_dir}")
write_basic_package_version_file("${CMAKE_BINARY_DIR}/package/ddrunConfigVersion.cmake"
  COMPATIBILITY SameMinorVersion) # while the major one is 0, a minor version may change anything
install(EXPORT ddrunTargets NAMESPACE ddrun:: COMPONENT development DESTINATION "${package_dir}")
install(FILES "${CMAKE_BINARY_DIR}/package/ddrunConfig.cmake" "${CMAKE_BINARY_DIR}/package/ddrunConfigVersion.cmake"
  COMPONENT development DESTINATION "${package_dir}")

# The same for programs that are built without CMake.
file(RELATIVE_PATH pc_prefix "/${CMAKE_INSTALL_LIBDIR}/pkgconfig" "/")
string(REGEX REPLACE "/$" "" pc_prefix "${pc_prefix}")
configure_file(scripts/cmake/ddrun-store.pc.in "${CMAKE_BINARY_DIR}/package/ddrun-store.pc" @ONLY)
install(FILES "${CMAKE_BINARY_DIR}/package/ddrun-store.pc" COMPONENT development
  DESTINATION "${CMAKE_INSTALL_LIBDIR}/pkgconfig")

install(DIRECTORY docs/examples/store-client COMPONENT development DESTINATION "${CMAKE_INSTALL_DOCDIR}/docs/examples")
