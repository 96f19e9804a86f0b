# cmake [-DEMULATOR=…] -DPROGRAM=… -DSHELL=bash|zsh|fish -DOUTPUT=… -P DdrunCompletion.cmake
cmake_minimum_required(VERSION 3.25)
execute_process(COMMAND ${EMULATOR} "${PROGRAM}" completion ${SHELL}
  OUTPUT_VARIABLE text ERROR_VARIABLE message RESULT_VARIABLE status)
if(NOT status EQUAL 0 OR text STREQUAL "")
  message(FATAL_ERROR "`${PROGRAM} completion ${SHELL}` ended with ${status} and wrote no completions: ${message}")
endif()
file(WRITE "${OUTPUT}" "${text}")
