// Frames between ddrun's agent and this program (lib/pmi/src/wire/helper_frames.hpp).
#ifndef DDRUN_PMIX_FRAMES_H
#define DDRUN_PMIX_FRAMES_H

#include <stddef.h>
#include <stdint.h>

#include "helper_frame_types.h"

/// Of the heap, zeroed, or the end of the program.
void* allocate(size_t size);

/// A frame that is read. After the first field that does not fit, `broken` is set and all others are 0 or empty.
struct reader {
  const char* next;
  const char* end;
  int broken;
};

int64_t read_number(struct reader* reader);
/// Sets its size; in the frame, and not terminated.
const char* read_bytes(struct reader* reader, size_t* size);
/// A copy on the heap, terminated.
char* read_text(struct reader* reader);
/// Reads a whole frame; blocks. Its payload is on the heap. 0: the agent has closed its end, or died.
int receive_frame(int* type, struct reader* payload, char** memory);

/// A frame that is made.
struct frame {
  char* bytes;
  size_t size, room;
};

struct frame begin_frame(int type);
void put_number(struct frame* frame, int64_t number);
void put_text(struct frame* frame, const char* text, size_t size);
/// Sends and frees it. Blocks until the agent reads; from any thread. Ends the program if it has gone.
void send_frame(struct frame* frame);

#endif
