# The kernels for GPUs, as far as there is an nvcc: DDRUN_WITH_CUDA=AUTO|ON|OFF.
#
# They are compiled to a file that the driver loads when the program runs, so nothing is linked against CUDA and no
# language is enabled: a build needs nvcc alone. Without it the back end nccl is there too, and lets the processor fill
# and compare what lies on the device.

# Flags for -fatbin: machine code of each architecture and, for GPUs to come, the last one's PTX. Compressed it is a sixth.
function(ddrun_nvcc_flags result)
  set(flags -fatbin -std=c++17 -O3 -Xfatbin -compress-all)
  if(DDRUN_CUDA_ARCHITECTURES MATCHES "^all(-major)?$")
    set(${result} ${flags} "-arch=${DDRUN_CUDA_ARCHITECTURES}" PARENT_SCOPE)
    return()
  endif()
  foreach(architecture IN LISTS DDRUN_NVCC_ARCHITECTURES)
    list(APPEND flags -gencode "arch=compute_${architecture},code=sm_${architecture}")
  endforeach()
  list(GET DDRUN_NVCC_ARCHITECTURES -1 last)
  list(APPEND flags -gencode "arch=compute_${last},code=compute_${last}")
  set(${result} ${flags} PARENT_SCOPE)
endfunction()

# Those of DDRUN_CUDA_ARCHITECTURES that nvcc supports: 13 has no 70, and 12.4 no 100. All, if it supports or lists none.
function(ddrun_nvcc_architectures result)
  execute_process(COMMAND "${DDRUN_NVCC}" --list-gpu-code OUTPUT_VARIABLE known ERROR_QUIET)
  set(architectures "")
  foreach(architecture IN LISTS DDRUN_CUDA_ARCHITECTURES)
    string(REGEX REPLACE "[a-z]$" "" number "${architecture}") # 90a is of 90, and not in every list
    if(known MATCHES "sm_${number}([^0-9]|$)")
      list(APPEND architectures "${architecture}")
    endif()
  endforeach()
  if(NOT architectures)
    set(architectures "${DDRUN_CUDA_ARCHITECTURES}")
  endif()
  set(${result} "${architectures}" PARENT_SCOPE)
endfunction()

# ddrun_gpu_kernels(ddrun_collectives SOURCE cuda/kernels.cu EMBED src/gpu/device_memory.cpp DEPENDS cuda/a.hpp …)
#
# Compiles SOURCE and defines DDRUN_GPU_KERNELS, the path of what came out, for EMBED. Does nothing without nvcc.
function(ddrun_gpu_kernels target)
  cmake_parse_arguments(arg "" "SOURCE;EMBED" "DEPENDS" ${ARGN})
  if(DDRUN_NVCC_MISSING)
    return()
  endif()
  get_filename_component(name "${arg_SOURCE}" NAME_WE)
  set(image "${CMAKE_CURRENT_BINARY_DIR}/${name}.fatbin")
  ddrun_nvcc_flags(flags)
  list(TRANSFORM arg_DEPENDS PREPEND "${CMAKE_CURRENT_SOURCE_DIR}/")
  add_custom_command(OUTPUT "${image}" VERBATIM
    COMMAND "${DDRUN_NVCC}" ${flags} "${CMAKE_CURRENT_SOURCE_DIR}/${arg_SOURCE}" -o "${image}"
    DEPENDS "${arg_SOURCE}" ${arg_DEPENDS}
    COMMENT "Compiling ${arg_SOURCE} for GPUs")
  set_property(SOURCE "${arg_EMBED}" APPEND PROPERTY OBJECT_DEPENDS "${image}")
  set_property(SOURCE "${arg_EMBED}" APPEND PROPERTY COMPILE_DEFINITIONS "DDRUN_GPU_KERNELS=\"${image}\"")
  target_sources(${target} PRIVATE "${image}")
endfunction()

set(DDRUN_NVCC_VERSION "")
set(DDRUN_NVCC_MISSING "")
if(DDRUN_WITH_CUDA STREQUAL "OFF")
  set(DDRUN_NVCC_MISSING "DDRUN_WITH_CUDA=OFF")
else()
  find_program(DDRUN_NVCC nvcc HINTS ENV CUDACXX ENV CUDA_HOME ENV CUDA_PATH PATHS /usr/local/cuda PATH_SUFFIXES bin)
  mark_as_advanced(DDRUN_NVCC)
  if(DDRUN_NVCC)
    ddrun_nvcc_architectures(DDRUN_NVCC_ARCHITECTURES)
  endif()
  if(NOT DDRUN_NVCC)
    set(DDRUN_NVCC_MISSING "no nvcc")
  elseif(NOT DDRUN_NVCC_WORKS STREQUAL "${DDRUN_NVCC} ${DDRUN_CUDA_ARCHITECTURES}")
    # A wrapper without a toolkit, or one that does not like this compiler or architecture, shows here and only once.
    file(WRITE "${CMAKE_BINARY_DIR}/nvcc/try.cu" "#include <cstdint>\n__global__ void nothing() {}\n")
    ddrun_nvcc_flags(flags)
    execute_process(COMMAND "${DDRUN_NVCC}" ${flags} "${CMAKE_BINARY_DIR}/nvcc/try.cu" -o "${CMAKE_BINARY_DIR}/nvcc/try.fatbin"
      RESULT_VARIABLE status OUTPUT_VARIABLE output ERROR_VARIABLE output)
    if(status EQUAL 0)
      set(DDRUN_NVCC_WORKS "${DDRUN_NVCC} ${DDRUN_CUDA_ARCHITECTURES}" CACHE INTERNAL "nvcc that has been tried")
    else()
      string(STRIP "${output}" output)
      set(DDRUN_NVCC_MISSING "${DDRUN_NVCC} does not work: ${output}")
    endif()
  endif()
  if(NOT DDRUN_NVCC_MISSING)
    execute_process(COMMAND "${DDRUN_NVCC}" --version OUTPUT_VARIABLE output)
    string(REGEX MATCH "V([0-9.]+)" output "${output}")
    set(DDRUN_NVCC_VERSION "${CMAKE_MATCH_1}")
  endif()
endif()
if(DDRUN_WITH_CUDA STREQUAL "ON" AND DDRUN_NVCC_MISSING)
  message(FATAL_ERROR "DDRUN_WITH_CUDA=ON: ${DDRUN_NVCC_MISSING}. Name nvcc with -DDDRUN_NVCC=…, or choose AUTO")
endif()
