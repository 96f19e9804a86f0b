#include "frames.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

// Numbers travel as they lie in memory: both ends run on this machine.

static const int agent = 0;  ///< the socket to it, this program's standard input
static const size_t max_payload = 512u * 1024 * 1024;
static const size_t head_size = sizeof(uint32_t) + 1;

void* allocate(size_t size) {
  void* memory = calloc(1, size == 0 ? 1 : size);
  if (memory == NULL) _exit(125);
  return memory;
}

// ---- reading

static const char* take(struct reader* reader, size_t size) {
  if (size > (size_t)(reader->end - reader->next)) {
    reader->broken = 1;
    reader->next = reader->end;
    return NULL;
  }
  const char* taken = reader->next;
  reader->next += size;
  return taken;
}

int64_t read_number(struct reader* reader) {
  int64_t number = 0;
  const char* bytes = take(reader, sizeof number);
  if (bytes != NULL) memcpy(&number, bytes, sizeof number);
  return number;
}

const char* read_bytes(struct reader* reader, size_t* size) {
  uint32_t length = 0;
  const char* bytes = take(reader, sizeof length);
  if (bytes != NULL) memcpy(&length, bytes, sizeof length);
  bytes = take(reader, length);
  *size = bytes == NULL ? 0 : length;
  return bytes;
}

char* read_text(struct reader* reader) {
  size_t size = 0;
  const char* bytes = read_bytes(reader, &size);
  char* text = allocate(size + 1);
  if (size > 0) memcpy(text, bytes, size);
  return text;
}

static int receive(char* to, size_t size) {
  while (size > 0) {
    const ssize_t got = read(agent, to, size);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return 0;
    to += got;
    size -= (size_t)got;
  }
  return 1;
}

int receive_frame(int* type, struct reader* payload, char** memory) {
  char head[sizeof(uint32_t) + 1];
  uint32_t size = 0;
  if (!receive(head, head_size)) return 0;
  memcpy(&size, head, sizeof size);
  if (size > max_payload) return 0;
  *type = (unsigned char)head[sizeof size];
  *memory = allocate(size);
  payload->next = *memory;
  payload->end = *memory + size;
  payload->broken = 0;
  return receive(*memory, size);
}

// ---- writing

static void put_bytes(struct frame* frame, const void* bytes, size_t size) {
  if (frame->size + size > frame->room) {
    frame->room = 2 * (frame->size + size);
    frame->bytes = realloc(frame->bytes, frame->room);
    if (frame->bytes == NULL) _exit(125);
  }
  if (size > 0) memcpy(frame->bytes + frame->size, bytes, size);
  frame->size += size;
}

struct frame begin_frame(int type) {
  struct frame frame = {NULL, 0, 0};
  const char head[sizeof(uint32_t) + 1] = {0, 0, 0, 0, (char)type};
  put_bytes(&frame, head, head_size);
  return frame;
}

void put_number(struct frame* frame, int64_t number) { put_bytes(frame, &number, sizeof number); }

void put_text(struct frame* frame, const char* text, size_t size) {
  const uint32_t length = (uint32_t)size;
  put_bytes(frame, &length, sizeof length);
  put_bytes(frame, text, size);
}

void send_frame(struct frame* frame) {
  static pthread_mutex_t one_at_a_time = PTHREAD_MUTEX_INITIALIZER;
  const uint32_t payload = (uint32_t)(frame->size - head_size);
  memcpy(frame->bytes, &payload, sizeof payload);
  pthread_mutex_lock(&one_at_a_time);
  for (size_t sent = 0; sent < frame->size;) {
    const ssize_t written = write(agent, frame->bytes + sent, frame->size - sent);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) _exit(0);
    sent += (size_t)written;
  }
  pthread_mutex_unlock(&one_at_a_time);
  free(frame->bytes);
}
