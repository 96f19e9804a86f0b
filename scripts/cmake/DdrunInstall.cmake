# Manual pages, completions, documents and packages; programs are installed where they are declared.

# The program writes its own completions, so they cannot disagree with its options.
set(completion_dir "${CMAKE_BINARY_DIR}/completions")
set(completion_files "")
foreach(shell IN ITEMS bash zsh fish)
  set(file "${completion_dir}/ddrun.${shell}")
  add_custom_command(OUTPUT "${file}" VERBATIM
    COMMAND "${CMAKE_COMMAND}" -E make_directory "${completion_dir}"
    COMMAND "${CMAKE_COMMAND}" "-DPROGRAM=$<TARGET_FILE:ddrun_program>" -DSHELL=${shell} "-DOUTPUT=${file}"
      -P "${CMAKE_CURRENT_LIST_DIR}/DdrunCompletion.cmake"
    DEPENDS ddrun_program "${CMAKE_CURRENT_LIST_DIR}/DdrunCompletion.cmake"
    COMMENT "Writing the completions for ${shell}")
  list(APPEND completion_files "${file}")
endforeach()
add_custom_target(ddrun_completions ALL DEPENDS ${completion_files})
add_custom_target(ddrun_programs DEPENDS ddrun_completions ddrun_program ddrun_allreduce_program) # all that is installed
install(FILES "${completion_dir}/ddrun.bash" RENAME ddrun COMPONENT programs
  DESTINATION "${CMAKE_INSTALL_DATADIR}/bash-completion/completions")
install(FILES "${completion_dir}/ddrun.zsh" RENAME _ddrun COMPONENT programs
  DESTINATION "${CMAKE_INSTALL_DATADIR}/zsh/site-functions")
install(FILES "${completion_dir}/ddrun.fish" COMPONENT programs
  DESTINATION "${CMAKE_INSTALL_DATADIR}/fish/vendor_completions.d")

install(FILES docs/ddrun.1 docs/ddrun-allreduce.1 COMPONENT programs DESTINATION "${CMAKE_INSTALL_MANDIR}/man1")
install(FILES README.md CHANGELOG.md COMPONENT programs DESTINATION "${CMAKE_INSTALL_DOCDIR}")
install(DIRECTORY docs/ COMPONENT programs DESTINATION "${CMAKE_INSTALL_DOCDIR}" FILES_MATCHING PATTERN "*.md")

# cpack --config build/release/CPackConfig.cmake: a .deb and a .tar.gz of what is installed, without debug symbols.
set(CPACK_PACKAGE_CONTACT "ddrun")
set(CPACK_GENERATOR DEB TGZ)
set(CPACK_COMPONENTS_ALL programs)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_ARCHIVE_COMPONENT_INSTALL ON)
set(CPACK_COMPONENTS_GROUPING ALL_COMPONENTS_IN_ONE)
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "${PROJECT_DESCRIPTION}")
set(CPACK_PACKAGE_DIRECTORY "${CMAKE_BINARY_DIR}/packages")
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_VERBATIM_VARIABLES ON)
include(CPack)
