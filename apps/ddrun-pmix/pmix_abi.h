// What this program uses of the PMIx standard (PMIx 4.1, appendix A: the binary interface of libpmix.so.2, from
// OpenPMIx 3 to 6), written from it: no header of a library is needed to build. All is passed to and from the library
// as declared; a library that knows more members of the module finds zeros behind these.
#ifndef DDRUN_PMIX_ABI_H
#define DDRUN_PMIX_ABI_H

#include <stddef.h>
#include <stdint.h>

typedef int pmix_status;
enum { pmix_success = 0, pmix_error = -1, pmix_not_supported = -47, pmix_done_already = -157 };

enum { pmix_rank_all = 0xfffffffe };
enum { pmix_group_construct = 0 };

typedef struct {
  char nspace[256];
  uint32_t rank;
} pmix_proc;

enum {
  pmix_bool = 1,
  pmix_string = 3,
  pmix_size = 4,
  pmix_uint16 = 13,
  pmix_uint32 = 14,
  pmix_proc_type = 22,
  pmix_info_type = 24,
  pmix_array_type = 39,
  pmix_rank_type = 40
};

typedef struct {
  uint16_t type;
  size_t size;
  void* array;
} pmix_array;

typedef struct {
  uint16_t type;
  union {
    _Bool flag;
    const char* string;
    uint16_t uint16;
    uint32_t uint32;  ///< and a rank
    size_t size;
    int32_t status;
    pmix_array* array;
    void* widest[3];
  } data;
} pmix_value;

typedef struct {
  char key[512];
  uint32_t flags;
  pmix_value value;
} pmix_info;

_Static_assert(sizeof(pmix_proc) == 260 && sizeof(pmix_value) == 32 && sizeof(pmix_info) == 552, "as in libpmix");

typedef void (*pmix_on_done)(pmix_status status, void* data);
typedef void (*pmix_on_released)(void* data);
typedef void (*pmix_on_fence)(pmix_status status, const char* blob, size_t size, void* data,
                              pmix_on_released on_released, void* released);
typedef void (*pmix_on_info)(pmix_status status, pmix_info* info, size_t count, void* data,
                             pmix_on_released on_released, void* released);

/// What the library calls, on its progress thread.
typedef struct {
  pmix_status (*client_connected)(const pmix_proc*, void*, pmix_on_done, void*);
  pmix_status (*client_finalized)(const pmix_proc*, void*, pmix_on_done, void*);
  pmix_status (*abort)(const pmix_proc*, void*, int status, const char* text, pmix_proc[], size_t, pmix_on_done, void*);
  pmix_status (*fence)(const pmix_proc[], size_t, const pmix_info[], size_t, char* blob, size_t size, pmix_on_fence,
                       void*);
  void* direct_modex_to_allocate[15];
  pmix_status (*job_control)(const pmix_proc*, const pmix_proc[], size_t, const pmix_info[], size_t, pmix_on_info,
                             void*);
  void* monitor_to_push_stdin[5];
  pmix_status (*group)(int operation, char* name, const pmix_proc[], size_t, const pmix_info[], size_t,
                       pmix_on_info, void*);
  void* fabric;
  pmix_status (*client_connected2)(const pmix_proc*, void*, pmix_info[], size_t, pmix_on_done, void*);
  void* unknown[100];
} pmix_server_module;

_Static_assert(offsetof(pmix_server_module, job_control) == 152 && offsetof(pmix_server_module, client_connected2) == 216,
               "as in libpmix");

#endif
