// OpenPMIx's server for the ranks of one machine: opens the library that their MPI uses, gives each rank what it needs
// to connect, and tells the agent what they do. The agent's frames are read by the main thread; the library calls from
// its progress thread, which writes frames too.
//
//   ddrun-pmix LIBRARY DIRECTORY LABEL    the library's path or name; a private directory for its files; this machine

#include <dlfcn.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "frames.h"
#include "pmix_abi.h"

// ---- the library

static struct {
  const char* (*get_version)(void);
  pmix_status (*server_init)(pmix_server_module*, pmix_info*, size_t);
  pmix_status (*generate_regex)(const char*, char**);
  pmix_status (*generate_ppn)(const char*, char**);
  pmix_status (*register_nspace)(const char*, int, pmix_info*, size_t, pmix_on_done, void*);
  pmix_status (*register_client)(const pmix_proc*, uid_t, gid_t, void*, pmix_on_done, void*);
  pmix_status (*setup_fork)(const pmix_proc*, char***);
  void (*deregister_client)(const pmix_proc*, pmix_on_done, void*);
  void (*deregister_nspace)(const char*, pmix_on_done, void*);
  const char* (*error_string)(pmix_status);
} library;

static const char* const functions[] = {
    "PMIx_Get_version",           "PMIx_server_init",           "PMIx_generate_regex",      "PMIx_generate_ppn",
    "PMIx_server_register_nspace", "PMIx_server_register_client", "PMIx_server_setup_fork", "PMIx_server_deregister_client",
    "PMIx_server_deregister_nspace", "PMIx_Error_string"};

_Static_assert(sizeof library == sizeof functions, "a name for each function");

static void fail(const char* what, const char* why) {
  char text[1024];
  struct frame frame = begin_frame(helper_frame_failed);
  put_text(&frame, text, (size_t)snprintf(text, sizeof text, "%.200s: %.800s", what, why));
  send_frame(&frame);
  _exit(125);
}

static void check(const char* what, pmix_status status) {
  if (status != pmix_success) fail(what, library.error_string(status));
}

// ---- waiting for the library's thread

struct wait {
  int done;
  pmix_status status;
};

static void on_done(pmix_status status, void* data) {
  struct wait* wait = data;
  wait->status = status;
  __atomic_store_n(&wait->done, 1, __ATOMIC_RELEASE);
  syscall(SYS_futex, &wait->done, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}

static pmix_status wait_until_done(struct wait* wait) {
  while (!__atomic_load_n(&wait->done, __ATOMIC_ACQUIRE))
    syscall(SYS_futex, &wait->done, FUTEX_WAIT_PRIVATE, 0, NULL, NULL, 0);
  return wait->status;
}

static pmix_status wait_for(pmix_status begun, struct wait* wait) {
  if (begun == pmix_done_already) return pmix_success;
  return begun == pmix_success ? wait_until_done(wait) : begun;
}

// ---- the world of a round

struct slot {
  uint32_t rank, appnum;
  int gone;
};

/// Written by the main thread while no rank of it is connected.
static struct {
  char* nspace;
  uint32_t size, nodes, slots;
  size_t groups;  ///< that were made in this round
  struct slot* slot;
} world;

/// A rank's call that the agent has to answer. Its address is its number.
struct request {
  struct request* next;
  pmix_on_fence on_fence;
  pmix_on_done on_done;
  pmix_on_info on_group;
  void* data;
  struct group* group;  ///< for on_group
};

/// What the ranks of a group get, in one piece of memory.
struct group {
  pmix_info infos[2];
  pmix_array members;
  pmix_proc procs[];
};

static struct request* requests;
static pthread_mutex_t of_requests = PTHREAD_MUTEX_INITIALIZER;

static int64_t add_request(struct request given) {
  struct request* request = allocate(sizeof *request);
  *request = given;
  pthread_mutex_lock(&of_requests);
  request->next = requests;
  requests = request;
  pthread_mutex_unlock(&of_requests);
  return (int64_t)(intptr_t)request;
}

/// Ignored for a request that has its answer.
static void answer(int64_t id, pmix_status status, const char* bytes, size_t size) {
  pthread_mutex_lock(&of_requests);
  struct request** place = &requests;
  while (*place != NULL && (int64_t)(intptr_t)*place != id) place = &(*place)->next;
  struct request* request = *place;
  if (request != NULL) *place = request->next;
  pthread_mutex_unlock(&of_requests);
  if (request == NULL) return;
  if (request->on_fence != NULL) {
    char* blob = allocate(size);
    if (size > 0) memcpy(blob, bytes, size);
    request->on_fence(status, blob, size, request->data, free, blob);
  } else if (request->on_group != NULL) {
    // The same on all machines, which come to their groups in one order.
    request->group->infos[0].value.data.size = ++world.groups;
    request->on_group(status, request->group->infos, 2, request->data, free, request->group);
  } else if (request->on_done != NULL) {
    request->on_done(status, request->data);
  }
  free(request);
}

static pmix_proc proc_of(uint32_t slot) {
  pmix_proc proc;
  memset(&proc, 0, sizeof proc);
  strcpy(proc.nspace, world.nspace);
  proc.rank = world.slot[slot].rank;
  return proc;
}

/// -1: of another round, or of no rank here.
static int slot_of(const pmix_proc* proc) {
  if (world.nspace == NULL || strcmp(proc->nspace, world.nspace) != 0) return -1;
  for (uint32_t slot = 0; slot < world.slots; ++slot) {
    if (world.slot[slot].rank == proc->rank) return (int)slot;
  }
  return -1;
}

// ---- what the library calls

static void tell(int type, const pmix_proc* proc) {
  const int slot = slot_of(proc);
  if (slot < 0) return;
  struct frame frame = begin_frame(type);
  put_number(&frame, slot);
  send_frame(&frame);
}

static pmix_status on_connected(const pmix_proc* proc, void* object, pmix_on_done when_done, void* data) {
  (void)object, (void)when_done, (void)data;
  tell(helper_frame_connected, proc);
  return pmix_done_already;
}

static pmix_status on_connected2(const pmix_proc* proc, void* object, pmix_info* info, size_t count,
                                 pmix_on_done when_done, void* data) {
  (void)info, (void)count;
  return on_connected(proc, object, when_done, data);
}

/// Told before the rank goes on to its end.
static pmix_status on_finalized(const pmix_proc* proc, void* object, pmix_on_done when_done, void* data) {
  (void)object, (void)when_done, (void)data;
  tell(helper_frame_finalized, proc);
  return pmix_done_already;
}

/// The rank is blocked until it is answered, and ends with its code then.
static pmix_status on_abort(const pmix_proc* proc, void* object, int status, const char* text, pmix_proc* procs,
                            size_t count, pmix_on_done when_done, void* data) {
  (void)object, (void)text, (void)procs, (void)count;
  const int slot = slot_of(proc);
  if (slot < 0) return pmix_error;
  struct frame frame = begin_frame(helper_frame_aborted);
  put_number(&frame, slot);
  put_number(&frame, status);
  put_number(&frame, add_request((struct request){.on_done = when_done, .data = data}));
  send_frame(&frame);
  return pmix_success;
}

static int are_all(const pmix_proc* procs, size_t count) {
  return count == world.size || (count == 1 && procs[0].rank == (uint32_t)pmix_rank_all);
}

/// All ranks here have called it. With ranks here only the library asks just when one of them was lost.
static pmix_status on_fence(const pmix_proc* procs, size_t count, const pmix_info* info, size_t infos, char* blob,
                            size_t size, pmix_on_fence on_fence_done, void* data) {
  if (!are_all(procs, count) || strcmp(procs[0].nspace, world.nspace) != 0) return pmix_not_supported;
  for (size_t i = 0; i < infos; ++i) {
    const int is_status = strcmp(info[i].key, "pmix.loc.col.st") == 0;
    if (is_status && info[i].value.data.status != pmix_success) return info[i].value.data.status;
  }
  struct frame frame = begin_frame(helper_frame_fence);
  put_number(&frame, add_request((struct request){.on_fence = on_fence_done, .data = data}));
  put_text(&frame, blob, size);
  free(blob);
  send_frame(&frame);
  return pmix_success;
}

/// MPI_Comm_create_from_group: a fence of its ranks, which gives them a number. Between machines of all ranks only.
static pmix_status on_group(int operation, char* name, const pmix_proc* procs, size_t count, const pmix_info* info,
                            size_t infos, pmix_on_info when_done, void* data) {
  (void)name, (void)info, (void)infos;
  if (operation != pmix_group_construct) return pmix_done_already;
  if (world.nodes > 1 && !are_all(procs, count)) return pmix_not_supported;
  struct group* group = allocate(sizeof *group + count * sizeof *procs);
  memcpy(group->procs, procs, count * sizeof *procs);
  group->members = (pmix_array){pmix_proc_type, count, group->procs};
  strcpy(group->infos[0].key, "pmix.grp.ctxid");
  group->infos[0].value.type = pmix_size;
  strcpy(group->infos[1].key, "pmix.grp.mbrs");
  group->infos[1].value.type = pmix_array_type;
  group->infos[1].value.data.array = &group->members;
  struct frame frame = begin_frame(helper_frame_fence);
  put_number(&frame, add_request((struct request){.on_group = when_done, .data = data, .group = group}));
  put_text(&frame, "", 0);
  send_frame(&frame);
  return pmix_success;
}

/// Not NULL: else the library refuses PMIX_REGISTER_CLEANUP, which it does by itself, before it looks at it.
static pmix_status on_job_control(const pmix_proc* who, const pmix_proc* targets, size_t count, const pmix_info* info,
                                  size_t infos, pmix_on_info when_done, void* data) {
  (void)who, (void)targets, (void)count, (void)info, (void)infos, (void)when_done, (void)data;
  return pmix_not_supported;
}

static pmix_server_module module = {.client_connected = on_connected,
                                    .client_finalized = on_finalized,
                                    .abort = on_abort,
                                    .fence = on_fence,
                                    .job_control = on_job_control,
                                    .group = on_group,
                                    .client_connected2 = on_connected2};

// ---- a round begins and ends

struct infos {
  pmix_info* all;
  size_t count;
};

static pmix_value* add(struct infos* infos, const char* key, uint16_t type) {
  pmix_info* info = &infos->all[infos->count++];
  strcpy(info->key, key);
  info->value.type = type;
  return &info->value;
}

static void add_number(struct infos* infos, const char* key, uint32_t number) {
  add(infos, key, pmix_uint32)->data.uint32 = number;
}

static void add_string(struct infos* infos, const char* key, const char* string) {
  add(infos, key, pmix_string)->data.string = string;
}

static void add_flag(struct infos* infos, const char* key, int flag) {
  add(infos, key, pmix_bool)->data.flag = flag != 0;
}

enum { infos_of_world = 20, infos_of_rank = 5, max_ranks = 10000000 };

struct rank_place {
  uint32_t rank, local_rank, node, appnum;
};

/// `own`: room for infos_of_rank, zeroed.
static void add_rank(struct infos* infos, struct rank_place at, pmix_info* own, pmix_array* array) {
  struct infos of_rank = {own, 0};
  add(&of_rank, "pmix.rank", pmix_rank_type)->data.uint32 = at.rank;
  add(&of_rank, "pmix.lrank", pmix_uint16)->data.uint16 = (uint16_t)at.local_rank;
  add(&of_rank, "pmix.nrank", pmix_uint16)->data.uint16 = (uint16_t)at.local_rank;
  add_number(&of_rank, "pmix.nodeid", at.node);
  add_number(&of_rank, "pmix.appnum", at.appnum);
  *array = (pmix_array){pmix_info_type, of_rank.count, own};
  add(infos, "pmix.pdata", pmix_array_type)->data.array = array;
}

static uint32_t appnum_of(uint32_t rank) {
  for (uint32_t slot = 0; slot < world.slots; ++slot) {
    if (world.slot[slot].rank == rank) return world.slot[slot].appnum;
  }
  return 0;
}

static void register_clients(void) {
  struct frame ready = begin_frame(helper_frame_ready);
  put_text(&ready, world.nspace, strlen(world.nspace));
  put_number(&ready, world.slots);
  for (uint32_t slot = 0; slot < world.slots; ++slot) {
    const pmix_proc proc = proc_of(slot);
    struct wait wait = {0, pmix_success};
    check("register_client", wait_for(library.register_client(&proc, geteuid(), getegid(), NULL, on_done,
                                                              &wait),
                                      &wait));
    char** variables = NULL;
    check("setup_fork", library.setup_fork(&proc, &variables));
    uint32_t count = 0;
    while (variables != NULL && variables[count] != NULL) ++count;
    put_number(&ready, count);
    for (uint32_t i = 0; i < count; ++i) {
      put_text(&ready, variables[i], strlen(variables[i]));
      free(variables[i]);
    }
    free(variables);
  }
  send_frame(&ready);
}

static uint32_t read_uint32(struct reader* reader) { return (uint32_t)read_number(reader); }

static void add_ranks(struct infos* infos, struct reader* reader, pmix_info* own, pmix_array* arrays) {
  uint32_t* local_ranks = allocate(world.nodes * sizeof *local_ranks);
  uint32_t added = 0;
  for (uint32_t left = read_uint32(reader); left > 0 && !reader->broken; --left) {
    const uint32_t first = read_uint32(reader), count = read_uint32(reader), node = read_uint32(reader);
    if (node >= world.nodes || count > world.size - added) fail("START", "malformed");
    for (uint32_t i = 0; i < count; ++i, ++added) {
      const struct rank_place at = {first + i, local_ranks[node]++, node, appnum_of(first + i)};
      add_rank(infos, at, own + (size_t)added * infos_of_rank, arrays + added);
    }
  }
  free(local_ranks);
}

static void start(struct reader* reader) {
  char* texts[4];  // directory, labels, ranks of each machine, ranks here
  world.nspace = read_text(reader);
  for (int i = 0; i < 4; ++i) texts[i] = read_text(reader);
  world.size = read_uint32(reader);
  world.nodes = read_uint32(reader);
  const uint32_t node = read_uint32(reader), oversubscribed = read_uint32(reader);
  world.slots = read_uint32(reader);
  if (world.size > max_ranks || world.nodes > max_ranks || world.slots > world.size ||
      strlen(world.nspace) >= sizeof(((pmix_proc*)0)->nspace)) {
    fail("START", "malformed");
  }
  world.slot = allocate(world.slots * sizeof *world.slot);
  for (uint32_t slot = 0; slot < world.slots; ++slot) {
    world.slot[slot].rank = read_uint32(reader);
    world.slot[slot].appnum = read_uint32(reader);
  }

  char *node_map = NULL, *rank_map = NULL;
  check("generate_regex", library.generate_regex(texts[1], &node_map));
  check("generate_ppn", library.generate_ppn(texts[2], &rank_map));
  struct infos infos = {allocate((infos_of_world + world.size) * sizeof(pmix_info)), 0};
  add_number(&infos, "pmix.job.size", world.size);
  add_number(&infos, "pmix.max.size", world.size);
  add_number(&infos, "pmix.univ.size", world.size);
  add_number(&infos, "pmix.local.size", world.slots);
  add_number(&infos, "pmix.node.size", world.slots);
  add_number(&infos, "pmix.num.nodes", world.nodes);
  add_number(&infos, "pmix.nodeid", node);
  add_string(&infos, "pmix.nmap", node_map);
  add_string(&infos, "pmix.pmap", rank_map);
  add_string(&infos, "pmix.lpeers", texts[3]);
  add_string(&infos, "pmix.jobid", world.nspace);
  add_string(&infos, "pmix.tmpdir", texts[0]);
  add_string(&infos, "pmix.nsdir", texts[0]);
  add_flag(&infos, "pmix.tdir.rmclean", 1);
  add_flag(&infos, "pmix.spawned", 0);
  if (oversubscribed) add_flag(&infos, "pmix.ndosub", 1);
  pmix_info* own = allocate((size_t)world.size * infos_of_rank * sizeof *own);
  pmix_array* arrays = allocate(world.size * sizeof *arrays);
  add_ranks(&infos, reader, own, arrays);
  if (reader->broken) fail("START", "malformed");

  struct wait wait = {0, pmix_success};
  check("register_nspace", wait_for(library.register_nspace(world.nspace, (int)world.slots, infos.all, infos.count,
                                                            on_done, &wait),
                                    &wait));
  for (int i = 0; i < 4; ++i) free(texts[i]);
  for (void* const* part = (void* const[]){infos.all, own, arrays, node_map, rank_map, NULL}; *part; ++part) free(*part);
  register_clients();
}

static void forget_client(uint32_t slot) {
  if (slot >= world.slots || world.slot[slot].gone) return;
  world.slot[slot].gone = 1;
  // Removes what the rank has asked to be removed at its end: its segments in /dev/shm.
  const pmix_proc proc = proc_of(slot);
  struct wait wait = {0, pmix_success};
  library.deregister_client(&proc, on_done, &wait);
  wait_until_done(&wait);
}

static void end_round(void) {
  if (world.nspace == NULL) return;
  for (uint32_t slot = 0; slot < world.slots; ++slot) forget_client(slot);
  while (requests != NULL) answer((int64_t)(intptr_t)requests, pmix_error, NULL, 0);
  struct wait wait = {0, pmix_success};
  library.deregister_nspace(world.nspace, on_done, &wait);
  wait_until_done(&wait);
  free(world.nspace);
  free(world.slot);
  world.nspace = NULL;
  world.groups = 0;
  world.slots = 0;
}

static void open_library(const char* file, const char* directory, const char* label) {
  // Its topology is shown to no rank; plugins of hwloc would open OpenCL, CUDA and X11 here.
  setenv("HWLOC_SYNTHETIC", "pu:1", 1);
  setenv("HWLOC_PLUGINS_PATH", "/nonexistent", 1);
  setenv("PMIX_MCA_gds", "hash", 1);
  setenv("PMIX_MCA_psec", "native", 1);
  void* handle = dlopen(file, RTLD_NOW | RTLD_LOCAL);
  if (handle == NULL) fail(file, dlerror());
  for (size_t i = 0; i < sizeof functions / sizeof *functions; ++i) {
    void* function = dlsym(handle, functions[i]);
    if (function == NULL) fail(file, dlerror());
    memcpy((char*)&library + i * sizeof function, &function, sizeof function);
  }
  pmix_info info[2];
  memset(info, 0, sizeof info);
  struct infos infos = {info, 0};
  add_string(&infos, "pmix.srvr.tmpdir", directory);
  add_string(&infos, "pmix.hname", label);
  check("server_init", library.server_init(&module, info, infos.count));
  for (const char* const* name = (const char* const[]){"HWLOC_SYNTHETIC", "HWLOC_PLUGINS_PATH", "PMIX_MCA_gds", "PMIX_MCA_psec", NULL}; *name; ++name)
    unsetenv(*name);
  struct frame frame = begin_frame(helper_frame_opened);
  put_text(&frame, library.get_version(), strlen(library.get_version()));
  send_frame(&frame);
}

static int run(int argc, char** argv) {
  prctl(PR_SET_NAME, "ddrun-pmix");
  if (argc != 4) return 2;
  open_library(argv[1], argv[2], argv[3]);
  int type = 0;
  struct reader payload;
  for (char* memory = NULL; receive_frame(&type, &payload, &memory); free(memory)) {
    switch (type) {
      case helper_frame_start: start(&payload); break;
      case helper_frame_gone: forget_client(read_uint32(&payload)); break;
      case helper_frame_end: end_round(); break;
      case helper_frame_answer: {
        const int64_t request = read_number(&payload);
        const pmix_status status = (pmix_status)read_number(&payload);
        size_t size = 0;
        const char* bytes = read_bytes(&payload, &size);
        answer(request, status, bytes, size);
      }
    }
  }
  return 0;
}

// The program asks for no version of the C library, so that it runs with each: not for __libc_start_main either. The
// loader has initialised the library before.
__attribute__((used, noreturn)) void start_program(long* stack) { _exit(run((int)stack[0], (char**)(stack + 1))); }

#if defined(__x86_64__)
__asm__(".globl _start\n_start: xor %ebp, %ebp\n mov %rsp, %rdi\n and $-16, %rsp\n call start_program\n hlt\n");
#elif defined(__aarch64__)
__asm__(".globl _start\n_start: mov x29, #0\n mov x30, #0\n mov x0, sp\n bl start_program\n brk #1\n");
#else
#error "ddrun-pmix is built for x86-64 and aarch64"
#endif
