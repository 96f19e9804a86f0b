# cmake -DSOURCE_DIR=… -DOUTPUT=… -P DdrunCommit.cmake
#
# Writes a header with DDRUN_COMMIT: what git says, else what `git archive` put into commit.txt, else "unknown".
# The file is touched only when its content changes, so that nothing is compiled again without need.
cmake_minimum_required(VERSION 3.25)
set(commit "")
if(EXISTS "${SOURCE_DIR}/.git")
  find_program(git git)
  if(git)
    # The building user may not own the checkout (a container, root); reading the commit's name is harmless.
    execute_process(COMMAND "${git}" --no-optional-locks -c safe.directory=* -C "${SOURCE_DIR}" describe --always --dirty=+changes
        --exclude=* --abbrev=12
      OUTPUT_VARIABLE commit OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  endif()
endif()
if(commit STREQUAL "" AND EXISTS "${CMAKE_CURRENT_LIST_DIR}/commit.txt")
  file(STRINGS "${CMAKE_CURRENT_LIST_DIR}/commit.txt" lines)
  list(GET lines 0 commit)
  if(commit MATCHES "Format")
    set(commit "") # not from an archive
  endif()
endif()
if(NOT commit MATCHES "^[0-9A-Za-z.+_-]+$")
  set(commit "unknown")
endif()
set(content "#define DDRUN_COMMIT \"${commit}\"\n")
set(present "")
if(EXISTS "${OUTPUT}")
  file(READ "${OUTPUT}" present)
endif()
if(NOT content STREQUAL present)
  file(WRITE "${OUTPUT}" "${content}")
endif()
