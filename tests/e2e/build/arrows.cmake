# What a module can include, by the folders that the compiler searches for it: those of the modules that it may include
# and of no other. `modules` and `lib` are set by the file that includes this one.
cmake_minimum_required(VERSION 3.25)

# check(MODULE MAY_INCLUDE INCLUDE_DIRS)
function(check module may_include include_dirs)
  foreach(dir IN LISTS include_dirs)
    if(NOT dir MATCHES "^${lib}/")
      continue() # of a library, or of the module that the file is in
    endif()
    string(REGEX REPLACE "^${lib}/([^/]+)/.*" "\\1" other "${dir}")
    if(NOT other STREQUAL module AND NOT other IN_LIST may_include)
      message(SEND_ERROR "${module} can include what is in ${dir}, against the arrows")
    elseif(NOT other STREQUAL module AND NOT dir STREQUAL "${lib}/${other}/include")
      message(SEND_ERROR "${module} can include what is private to ${other}, in ${dir}")
    endif()
  endforeach()
  # The control: its own headers are among what was looked at.
  if(module IN_LIST modules AND NOT "${lib}/${module}/include" IN_LIST include_dirs)
    message(SEND_ERROR "the folders of ${module} are not known: ${include_dirs}")
  endif()
endfunction()
