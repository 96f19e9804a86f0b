# How a module, a program and a test are declared. Flags live in two interface targets that are linked
# privately by our own code and never exported.

include(CheckLinkerFlag)

add_library(ddrun_settings INTERFACE)
add_library(ddrun_warnings INTERFACE)
target_compile_options(ddrun_warnings INTERFACE -Wall -Wextra $<$<BOOL:${DDRUN_WERROR}>:-Werror>)
target_compile_definitions(ddrun_settings INTERFACE
  BOOST_ASIO_SEPARATE_COMPILATION BOOST_ASIO_NO_DEPRECATED BOOST_ALL_NO_LIB)
if(DDRUN_SANITIZE)
  target_compile_definitions(ddrun_settings INTERFACE DDRUN_SANITIZED) # the compilers have no word in common for it
  target_compile_options(ddrun_settings INTERFACE
    -fsanitize=${DDRUN_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  if(DDRUN_SANITIZE MATCHES thread AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    target_compile_options(ddrun_settings INTERFACE -Wno-tsan)
  endif()
  if(DDRUN_SANITIZE MATCHES undefined)
    # Its check of virtual tables opens a pipe to see whether memory can be read, and takes "no descriptors left",
    # which some tests bring about, for a broken object.
    target_compile_options(ddrun_settings INTERFACE -fno-sanitize=vptr)
    if(CMAKE_CXX_COMPILER_ID MATCHES "Clang")
      target_compile_options(ddrun_settings INTERFACE
        "-fsanitize-ignorelist=${CMAKE_CURRENT_LIST_DIR}/ubsan_ignore.txt" -D_GLIBCXX_ASSERTIONS)
    endif()
  endif()
  target_link_options(ddrun_settings INTERFACE -fsanitize=${DDRUN_SANITIZE})
  # UndefinedBehaviorSanitizer describes each check in data with pointers: to relocate a million of them takes half of the
  # time in which ddrun starts and ends.
  target_link_options(ddrun_settings INTERFACE $<$<STREQUAL:$<TARGET_PROPERTY:TYPE>,EXECUTABLE>:-no-pie>)
endif()
if(DDRUN_BUILD_FUZZERS)
  target_compile_options(ddrun_settings INTERFACE -fsanitize=fuzzer-no-link)
endif()
# Programs with debug symbols or sanitizers are large, and each test links some: lld takes a fifth of ld's time.
if(CMAKE_BUILD_TYPE STREQUAL "Debug")
  find_program(DDRUN_LLD ld.lld)
  mark_as_advanced(DDRUN_LLD)
  if(DDRUN_LLD)
    target_link_options(ddrun_settings INTERFACE -fuse-ld=lld)
  endif()
endif()
# In every build: symbols that are bound late leave registers, and what they hold of a secret, on the stack.
target_link_options(ddrun_settings INTERFACE -Wl,-z,relro,-z,now,-z,noexecstack)
if(CMAKE_BUILD_TYPE STREQUAL "RelWithDebInfo" AND NOT DDRUN_SANITIZE)
  # What the OpenSSF's guide for compilers and linkers asks of a release; SECURITY.md says what for.
  set(hardening -U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=3 -D_GLIBCXX_ASSERTIONS -fstack-protector-strong -fstack-clash-protection
    -ftrivial-auto-var-init=zero)
  if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64)$")
    list(APPEND hardening -fcf-protection=full)
  elseif(CMAKE_SYSTEM_PROCESSOR MATCHES "^(aarch64|arm64)$")
    list(APPEND hardening -mbranch-protection=standard)
  endif()
  target_compile_options(ddrun_settings INTERFACE ${hardening})
  # The same programs from every folder.
  target_compile_options(ddrun_settings INTERFACE "-ffile-prefix-map=${CMAKE_SOURCE_DIR}=." "-ffile-prefix-map=${CMAKE_BINARY_DIR}=.")
endif()

include(DdrunPrecompiled)

# A preset that is built as a whole or not at all compiles a module as one file, and tests eight files at a time: two
# thirds of the time of a build are headers and templates that each file would go through again. scripts/test --full
# compiles each file alone and so finds what one takes from another without knowing.
set(CMAKE_UNITY_BUILD ${DDRUN_UNITY})
set(CMAKE_UNITY_BUILD_BATCH_SIZE 0)
if(DDRUN_UNITY AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # It takes a file that is included for a header, whose types others could see.
  target_compile_options(ddrun_warnings INTERFACE -Wno-subobject-linkage)
  # In kilobytes. Below that it frees no memory, which would take a tenth of the time of such a file, and saves a fifth of
  # its 1.5 GB.
  target_compile_options(ddrun_settings INTERFACE --param=ggc-min-heapsize=1048576)
endif()

# ddrun_apart(a.cpp …)   these files of the directory's target have names of their own that another one has as well:
# never compile them as one with others.
function(ddrun_apart)
  set_source_files_properties(${ARGN} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
endfunction()

# ddrun_cold(TARGET COLD|STARTUP)   its code runs once in a start, an end or a meeting of machines: -O1 is as fast there,
# and the compiler needs a fifth of its time less. Without g++'s two passes it is smaller, too. STARTUP: all of it before
# the workers start. -Og saves the compiler another sixth, for code that is a sixth larger.
function(ddrun_cold target when)
  set(gnu $<CXX_COMPILER_ID:GNU>)
  set(options -O1 $<${gnu}:-fno-tree-pta> $<${gnu}:-fno-guess-branch-probability>)
  if(when STREQUAL "STARTUP")
    list(APPEND options $<${gnu}:-Og>)
  endif()
  target_compile_options(${target} PRIVATE "$<$<CONFIG:RelWithDebInfo>:${options}>")
endfunction()

# The part of ddrun_module() for its DECIDERS. Their objects lie in the module's library.
macro(ddrun_deciders target)
  add_library(${target}_deciders OBJECT ${arg_DECIDERS})
  target_include_directories(${target}_deciders PRIVATE include)
  foreach(decider IN LISTS arg_DECIDERS)
    cmake_path(GET decider PARENT_PATH folder)
    target_include_directories(${target}_deciders PRIVATE ${folder})
  endforeach()
  foreach(dep IN LISTS arg_DECIDER_DEPS)
    target_include_directories(${target}_deciders PRIVATE "${PROJECT_SOURCE_DIR}/lib/${dep}/include")
  endforeach()
  target_link_libraries(${target}_deciders PRIVATE ddrun_warnings ddrun_settings tl::expected)
  if(arg_COLD)
    ddrun_cold(${target}_deciders COLD)
  endif()
  ddrun_precompiled(${target}_deciders module)
  target_sources(${target} PRIVATE $<TARGET_OBJECTS:${target}_deciders>)
  list(TRANSFORM arg_DECIDERS PREPEND "${CMAKE_CURRENT_SOURCE_DIR}/")
  set_property(GLOBAL APPEND PROPERTY DDRUN_DECIDERS ${arg_DECIDERS})
endmacro()

# ddrun_module(store [COLD|STARTUP] SOURCES src/a.cpp … DEPS base [DECIDERS src/b.cpp … DECIDER_DEPS base])
#
# One static library `ddrun_store`, alias `ddrun::store`, with its own public include directory
# (`include/ddrun/store/…`). What is not in DEPS cannot be included: that is how the arrows of the
# architecture are kept. COLD, STARTUP: see ddrun_cold(). DECIDERS: sources that read their own members and the event;
# they are compiled apart, with the headers of their folder and of DECIDER_DEPS, but not of what these depend on, and
# tests/e2e/build reads what they include.
function(ddrun_module name)
  cmake_parse_arguments(arg "COLD;STARTUP" "" "SOURCES;DEPS;LIBRARIES;DECIDERS;DECIDER_DEPS" ${ARGN})
  set(target ddrun_${name})
  if(arg_SOURCES)
    add_library(${target} STATIC ${arg_SOURCES})
    target_include_directories(${target} PUBLIC "$<BUILD_INTERFACE:${CMAKE_CURRENT_SOURCE_DIR}/include>" PRIVATE src)
    target_link_libraries(${target} PRIVATE $<BUILD_INTERFACE:ddrun_warnings> $<BUILD_INTERFACE:ddrun_settings>)
    if(arg_COLD)
      ddrun_cold(${target} COLD)
    elseif(arg_STARTUP)
      ddrun_cold(${target} STARTUP)
    endif()
    ddrun_precompiled(${target} module)
    set(scope PUBLIC)
    if(arg_DECIDERS)
      ddrun_deciders(${target})
    endif()
  else()
    add_library(${target} INTERFACE)
    target_include_directories(${target} INTERFACE include)
    set(scope INTERFACE)
  endif()
  add_library(ddrun::${name} ALIAS ${target})
  foreach(dep IN LISTS arg_DEPS)
    target_link_libraries(${target} ${scope} ddrun::${dep})
  endforeach()
  target_link_libraries(${target} ${scope} ${arg_LIBRARIES})
endfunction()

# ddrun_program(ddrun SOURCES main.cpp DEPS cli agent)   — installed into bin/
#
# The target is `<name>_program` with '-' as '_'; it may call ddrun::build_info(). LINK: another way than DDRUN_LINK.
# NO_INSTALL: only in the build's bin/.
function(ddrun_program name)
  cmake_parse_arguments(arg "NO_INSTALL" "LINK" "SOURCES;DEPS;LIBRARIES" ${ARGN})
  if(NOT arg_LINK)
    set(arg_LINK "${DDRUN_LINK}")
  endif()
  string(REPLACE "-" "_" target "${name}_program")
  add_executable(${target} ${arg_SOURCES})
  set_target_properties(${target} PROPERTIES OUTPUT_NAME ${name} RUNTIME_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/bin")
  target_link_libraries(${target} PRIVATE ddrun_warnings ddrun_settings ddrun::build_info ${arg_LIBRARIES})
  foreach(dep IN LISTS arg_DEPS)
    target_link_libraries(${target} PRIVATE ddrun::${dep})
  endforeach()
  # By this note two hosts know that they have the same program.
  target_link_options(${target} PRIVATE -Wl,--build-id=sha1)
  if(arg_LINK STREQUAL "partial")
    target_link_options(${target} PRIVATE -static-libstdc++ -static-libgcc -Wl,--gc-sections)
  elseif(arg_LINK STREQUAL "static")
    # Everything in it must be position-independent: our code is, and so are the distributions' static libraries.
    target_link_options(${target} PRIVATE -static-pie -Wl,--gc-sections "-Wl,-T,${PROJECT_SOURCE_DIR}/scripts/cmake/startup.ld")
    # A relocation in two bits instead of 24 bytes.
    check_linker_flag(CXX -Wl,-z,pack-relative-relocs DDRUN_HAS_PACKED_RELOCATIONS)
    if(DDRUN_HAS_PACKED_RELOCATIONS)
      target_link_options(${target} PRIVATE -Wl,-z,pack-relative-relocs)
    endif()
  endif()
  if(DDRUN_SPLIT_DEBUG)
    # Part of the link itself, so a program never lies beside the symbols of an older one.
    set(debug_file "${CMAKE_BINARY_DIR}/bin/${name}.debug")
    add_custom_command(TARGET ${target} POST_BUILD VERBATIM BYPRODUCTS "${debug_file}"
      COMMAND ${CMAKE_OBJCOPY} --only-keep-debug $<TARGET_FILE:${target}> "${debug_file}"
      COMMAND ${CMAKE_OBJCOPY} --strip-unneeded "--add-gnu-debuglink=${debug_file}" $<TARGET_FILE:${target}>)
    # In .debug/ a debugger finds the file under any prefix, and it is out of the way of a search along PATH.
    if(NOT arg_NO_INSTALL)
      install(FILES "${debug_file}" DESTINATION "${CMAKE_INSTALL_BINDIR}/.debug" COMPONENT debug)
    endif()
  endif()
  if(NOT arg_NO_INSTALL)
    install(TARGETS ${target} RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT programs)
  endif()
endfunction()

# ddrun_test(store_unit LABEL unit [THREADS] SOURCES a.cpp … DEPS store [TIMEOUT seconds])
#
# One Catch2 program of tests; every TEST_CASE becomes a CTest test of its own, with a time limit. Cases with the tag
# [full] have the label `<label>_full`: scripts/test leaves them out unless it is asked for --full.
# THREADS: what it tests has threads. In a build with ThreadSanitizer such programs are built by `ninja
# ddrun_tests_threads`, and their tests have the label `threads`. One label only: with two, Catch's script would write a
# property list that CTest misreads.
function(ddrun_test name)
  cmake_parse_arguments(arg "THREADS" "LABEL;TIMEOUT" "SOURCES;DEPS;LIBRARIES;DEFINITIONS" ${ARGN})
  set(target ddrun_test_${name})
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 60)
  endif()
  add_executable(${target} ${arg_SOURCES})
  set_target_properties(${target} PROPERTIES UNITY_BUILD_BATCH_SIZE 8)
  target_link_libraries(${target} PRIVATE ddrun_warnings ddrun_settings ddrun_test_support ${arg_LIBRARIES})
  foreach(dep IN LISTS arg_DEPS)
    target_link_libraries(${target} PRIVATE ddrun::${dep})
  endforeach()
  target_compile_definitions(${target} PRIVATE ${arg_DEFINITIONS})
  ddrun_precompiled(${target} test)
  if(arg_THREADS AND DDRUN_SANITIZE STREQUAL "thread")
    set(arg_LABEL threads)
    if(NOT TARGET ddrun_tests_threads)
      add_custom_target(ddrun_tests_threads)
    endif()
    add_dependencies(ddrun_tests_threads ${target})
  endif()
  catch_discover_tests(${target} TEST_SPEC "~[full]" TEST_PREFIX "${name}: "
    PROPERTIES TIMEOUT ${arg_TIMEOUT} LABELS "${arg_LABEL}" SKIP_REGULAR_EXPRESSION "SKIPPED:")
  catch_discover_tests(${target} TEST_SPEC "[full]" TEST_PREFIX "${name}: "
    PROPERTIES TIMEOUT ${arg_TIMEOUT} LABELS "${arg_LABEL}_full" SKIP_REGULAR_EXPRESSION "SKIPPED:")
endfunction()

include(DdrunBuildInfo) # ddrun::build_info, for programs that print the version
