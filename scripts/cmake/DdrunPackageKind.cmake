# Read by CPack for each kind of package, and once more when its files are there but not packed yet.
if(CPACK_GENERATOR STREQUAL "DEB")
  set(CPACK_COMPONENTS_ALL programs development)
else()
  set(CPACK_COMPONENTS_ALL programs) # the C++ library is for Debian's compilers
  # Only Debian's package has the ddrun-allreduce that can open NCCL: it needs a glibc as new as the one it was linked
  # with. The others have the one that needs no C library.
  set(workers "")
  if(CPACK_TEMPORARY_DIRECTORY)
    file(GLOB_RECURSE workers "${CPACK_TEMPORARY_DIRECTORY}/ddrun-allreduce")
    list(FILTER workers INCLUDE REGEX "/bin/")
  endif()
  foreach(worker IN LISTS workers)
    file(COPY_FILE "${CPACK_DDRUN_STATIC_WORKER}" "${worker}")
  endforeach()
endif()
if(CPACK_GENERATOR STREQUAL "TGZ")
  set(CPACK_COMPONENT_INCLUDE_TOPLEVEL_DIRECTORY ON)
endif()
