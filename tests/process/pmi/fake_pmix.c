// A libpmix.so.2 for tests of ddrun-pmix: instead of ranks, a thread acts by the words of FAKE_PMIX, in order. It says
// on standard output what reaches it.
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "pmix_abi.h"

static pmix_server_module module;
static char nspace[256];
static int answered[2];

static void say(const char* what, int number, const char* text, size_t size) {
  printf("%s %d %.*s\n", what, number, (int)size, text);
  fflush(stdout);
}

const char* PMIx_Get_version(void) { return "fake 1.0"; }
const char* PMIx_Error_string(pmix_status status) { return status == pmix_error ? "ERROR" : "other"; }

pmix_status PMIx_server_init(pmix_server_module* given, pmix_info* info, size_t count) {
  module = *given;
  for (size_t i = 0; i < count; ++i) say(info[i].key, info[i].value.type, info[i].value.data.string, 255);
  return strcmp(getenv("FAKE_PMIX"), "no init") == 0 ? pmix_error : pmix_success;
}

pmix_status PMIx_generate_regex(const char* input, char** output) {
  *output = strdup(input);
  return pmix_success;
}
pmix_status PMIx_generate_ppn(const char* input, char** output) { return PMIx_generate_regex(input, output); }

static void describe(const pmix_info* info) {
  const pmix_value* value = &info->value;
  if (value->type == pmix_string) say(info->key, 0, value->data.string, 255);
  if (value->type == pmix_uint32 || value->type == pmix_rank_type) say(info->key, (int)value->data.uint32, "", 0);
  if (value->type == pmix_uint16) say(info->key, value->data.uint16, "", 0);
  if (value->type == pmix_bool) say(info->key, value->data.flag, "", 0);
  for (size_t i = 0; value->type == pmix_array_type && i < value->data.array->size; ++i)
    describe((const pmix_info*)value->data.array->array + i);
}

pmix_status PMIx_server_register_nspace(const char* name, int local, pmix_info* info, size_t count, pmix_on_done on_done,
                                        void* data) {
  strcpy(nspace, name);
  say("nspace", local, name, 255);
  for (size_t i = 0; i < count; ++i) describe(&info[i]);
  on_done(pmix_success, data);
  return pmix_success;
}

pmix_status PMIx_server_register_client(const pmix_proc* proc, uid_t user, gid_t group, void* object,
                                        pmix_on_done on_done, void* data) {
  (void)user, (void)group, (void)object, (void)on_done, (void)data;
  say("client", (int)proc->rank, "", 0);
  return pmix_done_already;
}

static void on_done(pmix_status status, void* data) {
  say("done", status, data, 255);
}

static void on_fenced(pmix_status status, const char* blob, size_t size, void* data, pmix_on_released on_released,
                      void* released) {
  (void)data;
  say("fenced", status, blob, size);
  on_released(released);
  if (write(answered[1], "", 1) != 1) abort();
}

static void* act(void* unused) {
  (void)unused;
  pmix_proc proc;
  memset(&proc, 0, sizeof proc);
  strcpy(proc.nspace, nspace);
  char* place = NULL;
  for (char* word = strtok_r(strdup(getenv("FAKE_PMIX")), " ", &place); word; word = strtok_r(NULL, " ", &place)) {
    const int number = atoi(word + 1);
    proc.rank = (uint32_t)number;
    char byte;
    if (*word == 'c') module.client_connected2(&proc, NULL, NULL, 0, NULL, NULL);
    if (*word == 'f') module.client_finalized(&proc, NULL, NULL, NULL);
    if (*word == 'a') module.abort(&proc, NULL, 37, "", NULL, 0, on_done, "abort");
    if (*word == 'b') {  // a barrier with so many bytes
      proc.rank = (uint32_t)pmix_rank_all;
      char* blob = malloc((size_t)number + 1);
      memset(blob, 'x', (size_t)number);
      module.fence(&proc, 1, NULL, 0, blob, (size_t)number, on_fenced, NULL);
      if (read(answered[0], &byte, 1) != 1) abort();
    }
    if (*word == 'k') _exit(3);
  }
  return NULL;
}

pmix_status PMIx_server_setup_fork(const pmix_proc* proc, char*** variables) {
  *variables = calloc(3, sizeof **variables);
  char text[64];
  snprintf(text, sizeof text, "PMIX_RANK=%u", proc->rank);
  (*variables)[0] = strdup(text);
  (*variables)[1] = strdup("PMIX_FAKE=1");
  static int started;
  pthread_t thread;
  if (proc->rank == 1 && !started++ && (pipe(answered) != 0 || pthread_create(&thread, NULL, act, NULL) != 0)) abort();
  return pmix_success;
}

void PMIx_server_deregister_client(const pmix_proc* proc, pmix_on_done done, void* data) {
  say("gone", (int)proc->rank, "", 0);
  done(pmix_success, data);
}

void PMIx_server_deregister_nspace(const char* name, pmix_on_done done, void* data) {
  say("end", 0, name, 255);
  done(pmix_success, data);
}
