message(STATUS "ddrun ${PROJECT_VERSION}: ${CMAKE_CXX_COMPILER_ID} ${CMAKE_CXX_COMPILER_VERSION}, ${CMAKE_BUILD_TYPE}, "
  "linked ${DDRUN_LINK}, Boost ${Boost_VERSION}, tests ${DDRUN_BUILD_TESTS}, gloo ${DDRUN_HAVE_GLOO}, sanitizers '${DDRUN_SANITIZE}'")
if(DDRUN_NVCC_MISSING)
  message(STATUS "kernels for GPUs: none, ${DDRUN_NVCC_MISSING}")
else()
  message(STATUS "kernels for GPUs: nvcc ${DDRUN_NVCC_VERSION}, architectures ${DDRUN_CUDA_ARCHITECTURES}")
endif()
