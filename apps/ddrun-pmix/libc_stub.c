// For the linker: what ddrun-pmix needs of libc.so.6, without versions.
#define STUB(name) \
  void name(void) {}
STUB(_exit) STUB(calloc) STUB(free) STUB(geteuid) STUB(getegid) STUB(malloc) STUB(memcpy) STUB(memset) STUB(prctl)
STUB(pthread_mutex_lock) STUB(pthread_mutex_unlock) STUB(read) STUB(realloc) STUB(setenv) STUB(strcmp) STUB(strcpy)
STUB(snprintf) STUB(strlen) STUB(syscall) STUB(unsetenv) STUB(write) STUB(__errno_location)
