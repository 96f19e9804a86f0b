# Toolchain of the preset aarch64: Debian's cross compiler, headers and libraries of a Debian arm64 in DDRUN_SYSROOT.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_LIBRARY_ARCHITECTURE aarch64-linux-gnu)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
set(CMAKE_SYSROOT "${DDRUN_SYSROOT}")
# The cross compiler brings a C library of its own, which gets no security updates, and would take that one first.
set(CMAKE_CXX_FLAGS_INIT "-B${DDRUN_SYSROOT}/usr/lib/aarch64-linux-gnu")
list(APPEND CMAKE_TRY_COMPILE_PLATFORM_VARIABLES DDRUN_SYSROOT)
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE ONLY)
# FindOpenSSL asks pkg-config, which otherwise answers for the build machine.
set(ENV{PKG_CONFIG_SYSROOT_DIR} "${DDRUN_SYSROOT}")
set(ENV{PKG_CONFIG_LIBDIR} "${DDRUN_SYSROOT}/usr/lib/aarch64-linux-gnu/pkgconfig")
find_program(CMAKE_CROSSCOMPILING_EMULATOR qemu-aarch64-static REQUIRED) # the build runs ddrun for its completions
