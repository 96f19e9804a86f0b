#include "victim_words.hpp"

#include <algorithm>
#include <array>

namespace ddrun::agent {

namespace {

/// Parts of messages, with who says them. Longer than need be rather than too short: the program's own failure must
/// not look like one of these.
constexpr std::array phrases{
    // Gloo
    std::string_view("Connection closed by peer"),
    std::string_view("Connection reset by peer"),
    std::string_view("Application timeout caused pair closure"),
    std::string_view("Timed out waiting"),  // "… 1800000ms for recv operation to complete", and TCPStore's clients
    std::string_view("Gloo connectFullMesh failed"),
    std::string_view("Socket closed"),
    // the C library's words for a lost connection, through anybody
    std::string_view("Broken pipe"),
    std::string_view("Connection refused"),
    std::string_view("Connection aborted"),
    std::string_view("Connection timed out"),
    std::string_view("Software caused connection abort"),
    std::string_view("Transport endpoint is not connected"),
    std::string_view("No route to host"),
    // Python's exceptions for the same
    std::string_view("ConnectionResetError"),
    std::string_view("ConnectionAbortedError"),
    std::string_view("ConnectionRefusedError"),
    std::string_view("BrokenPipeError"),
    // TCPStore
    std::string_view("Connection was likely closed"),
    std::string_view("failed to recv, got 0 bytes"),
    std::string_view("Failed to recv, got 0 bytes"),
    std::string_view("wait timeout after "),
    std::string_view("DistNetworkError"),
    std::string_view("The client socket has timed out"),
    std::string_view("recvValue failed on SocketImpl"),
    std::string_view("sendBytes failed on SocketImpl"),
    std::string_view("Stop_waiting response is expected"),
    // PyTorch's process groups
    std::string_view("Watchdog caught collective operation timeout"),
    std::string_view("Some NCCL operations have failed or timed out"),
    std::string_view("NCCL communicator was aborted"),
    std::string_view("Another rank reported timeout"),
    std::string_view("Observed flight recorder dump signal from another rank"),
    std::string_view("failed to pass monitoredBarrier"),
    std::string_view("monitoredBarrier in"),
    // NCCL and RCCL
    std::string_view("ncclRemoteError"),
    std::string_view("remote process exited or there was a network error"),
    std::string_view("a remote process exiting prematurely"),
    std::string_view("Connection closed by remote peer"),
    std::string_view("peer closed the connection"),
    // UCX, libfabric, MPI
    std::string_view("Connection reset by remote peer"),
    std::string_view("Endpoint timeout"),
    std::string_view("Endpoint is not connected"),
    std::string_view("MPI_ERR_PROC_FAILED"),
    std::string_view("MPIX_ERR_PROC_FAILED"),
};

bool contains(std::string_view text, std::string_view part) { return text.find(part) != std::string_view::npos; }

}  // namespace

bool is_victims_words(std::string_view text) {
  if (text.starts_with("ddrun-allreduce: error: ")) return contains(text, " is gone");
  return std::any_of(phrases.begin(), phrases.end(), [&](std::string_view phrase) { return contains(text, phrase); });
}

}  // namespace ddrun::agent
