#include "evidence.hpp"

#include "ddrun/test/catch.hpp"

using ddrun::agent::is_peer_failure_message;

TEST_CASE("messages of libraries for a lost peer are recognized") {
  for (const char* words : {
           "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer "
           "[10.0.0.3]:33441",
           "RuntimeError: [gloo/transport/tcp/pair.cc:553] Read error [10.0.0.3]:1: Connection reset by peer",
           "RuntimeError: [gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 1800000ms for recv operation to "
           "complete",
           "RuntimeError: Gloo connectFullMesh failed with [gloo/transport/tcp/pair.cc:144] no error",
           "torch.distributed.DistNetworkError: failed to recv, got 0 bytes",
           "torch.distributed.DistStoreError: wait timeout after 300000ms, keys: /default_pg/0//0",
           "torch.distributed.DistStoreError: Timed out waiting for clients",
           "torch.distributed.DistBackendError: NCCL error in: ../ProcessGroupNCCL.cpp:1970, remote process exited or "
           "there was a network error, NCCL version 2.21.5",
           "ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.",
           "[rank1]:[E1] [PG ID 0 Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=3)",
           "what():  [Rank 0] NCCL communicator was aborted on rank 0.",
           "ConnectionResetError: [Errno 104] Connection reset by peer",
           "BrokenPipeError: [Errno 32] Broken pipe",
           "ConnectionRefusedError: [Errno 111] Connection refused",
           "ddrun-allreduce: error: rank 0: rank 2 is gone",
       }) {
    INFO(words);
    CHECK(is_peer_failure_message(words));
  }
}

TEST_CASE("a worker's own failure is no message about a peer") {
  for (const char* words :
       {"", "ValueError: the real cause: shard 17 is corrupt", "torch.OutOfMemoryError: CUDA out of memory.",
        "RuntimeError: CUDA error: device-side assert triggered", "KeyError: 'peer'", "MemoryError", "TimeoutError",
        "FileNotFoundError: [Errno 2] No such file or directory: 'x'", "connection is a word", "the parcel is gone",
        "RuntimeError: NCCL error: invalid usage (run with NCCL_DEBUG=WARN for details)", "Segmentation fault"}) {
    INFO(words);
    CHECK_FALSE(is_peer_failure_message(words));
  }
}
