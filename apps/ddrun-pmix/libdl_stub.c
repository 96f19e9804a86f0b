// For the linker, as stub_libc.c: libdl.so.2, which since glibc 2.34 has what is part of libc.so.6 then.
#define STUB(name) \
  void name(void) {}
STUB(dlopen) STUB(dlsym) STUB(dlerror)
