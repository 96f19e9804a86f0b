// Types of the frames between the agent and ddrun-pmix, and what each has in it; also read by C.
#ifndef DDRUN_HELPER_FRAME_TYPES_H
#define DDRUN_HELPER_FRAME_TYPES_H

enum helper_frame_type {
  // To ddrun-pmix.
  /// A round: text name space, text directory for the ranks' session files, text labels of all machines "a,b", text
  /// ranks of each "0,1;2,3", text ranks of this machine "2,3", size of the world, number of machines, node rank of this
  /// one, 1 if it has more ranks than CPUs, number of slots here and of each its rank and appnum, number of ranges of
  /// the world's ranks and of each its first rank, their number and their node rank.
  helper_frame_start = 1,
  helper_frame_answer = 2,  ///< to ABORTED or FENCE: request, status, text blobs of all machines for a fence
  helper_frame_gone = 3,    ///< slot, whose process has ended
  helper_frame_end = 4,     ///< of the round; requests are answered with an error

  // From it.
  helper_frame_opened = 64,     ///< text version of the library
  helper_frame_failed = 65,     ///< text why, its last frame
  helper_frame_ready = 66,      ///< text name space, number of slots and of each the number of its variables and these
  helper_frame_connected = 67,  ///< slot
  helper_frame_finalized = 68,  ///< slot
  helper_frame_aborted = 69,    ///< slot, status, request
  helper_frame_fence = 70       ///< all its ranks of this machine have come to it: request, text blob
};

#endif
