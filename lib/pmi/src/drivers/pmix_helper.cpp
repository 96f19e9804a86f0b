#include "ddrun/pmi/pmix_helper.hpp"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <utility>

#include "ddrun/base/bytes.hpp"
#include "ddrun/base/environment.hpp"
#include "ddrun/base/text.hpp"
#include "ddrun/base/unique_fd.hpp"
#include "ddrun/helper/run.hpp"
#include "helper_frames.hpp"

/// The bytes of ddrun-pmix (CMakeLists.txt).
extern "C" const char ddrun_pmix_program[], ddrun_pmix_program_end[];

namespace ddrun::pmi {

namespace {

constexpr std::size_t max_text = 1024;

#ifndef MFD_EXEC
constexpr unsigned MFD_EXEC = 0x10U;  // NOLINT: a name of Linux 6.3
#endif

std::string_view program() {
  return {ddrun_pmix_program, static_cast<std::size_t>(ddrun_pmix_program_end - ddrun_pmix_program)};
}

/// In memory; empty where the kernel refuses (vm.memfd_noexec=2).
UniqueFd program_in_memory() {
  UniqueFd fd(::memfd_create("ddrun-pmix", MFD_CLOEXEC | MFD_EXEC));
  if (!fd && errno == EINVAL) fd.reset(::memfd_create("ddrun-pmix", MFD_CLOEXEC));  // before Linux 6.3
  if (fd && !write_all(fd.get(), program().data(), program().size())) fd.reset();
  return fd;
}

/// In a file that has no name any more.
UniqueFd program_in_file() {
  std::string path = concat(variable("TMPDIR").value_or("/tmp"), "/ddrun-pmix.XXXXXX");
  UniqueFd written(::mkostemp(path.data(), O_CLOEXEC));
  if (!written) return {};
  const bool is_whole =
      write_all(written.get(), program().data(), program().size()) && ::fchmod(written.get(), 0700) == 0;
  // One that is open for writing cannot be executed.
  written.reset();
  UniqueFd fd(is_whole ? ::open(path.c_str(), O_RDONLY | O_CLOEXEC) : -1);
  ::unlink(path.c_str());
  return fd;
}

}  // namespace

PmixHelper::PmixHelper(boost::asio::any_io_executor executor, process::Launcher& launcher, Handlers handlers)
    : launcher_(launcher), handlers_(std::move(handlers)), in_(executor), out_(executor), output_(executor) {}

Result<void> PmixHelper::start(const std::string& library, const std::string& directory, const std::string& label,
                               std::vector<std::string> environment) {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
    return fail_errno(Errc::unavailable, "cannot make a socket for the PMIx server", errno);
  }
  UniqueFd ours(ends[0]), theirs(ends[1]);
  auto output = TRY(make_pipe());
  std::vector<std::string> words{"ddrun-pmix", library, directory, label};
  std::vector<char*> argv, entries;
  for (std::string& word : words) argv.push_back(word.data());
  for (std::string& entry : environment) entries.push_back(entry.data());
  for (auto* list : {&argv, &entries}) list->push_back(nullptr);
  process::SpawnPlan plan;
  plan.argv = argv.data();
  plan.environment = entries.data();
  plan.standard_in = theirs.get();
  plan.standard_out = plan.standard_err = output.write.get();
  plan.want_pidfd = false;
  pid_ = TRY(spawn(plan));
  helper::register_child(pid_);
  int error = out_.open(TRY(duplicate(ours.get())));
  if (error == 0) {
    error = in_.open(
        std::move(ours), [this](std::string_view bytes) { take_frames(bytes); },
        [this] { lose(text_.empty() ? "it exited or was killed" : std::string(trim(text_))); });
  }
  if (error == 0) {
    error = output_.open(
        std::move(output.read), [this](std::string_view bytes) { take_output(bytes); }, [] {});
  }
  if (error != 0) return fail_errno(Errc::unavailable, "cannot watch the PMIx server", error);
  return {};
}

/// The child's own copy of the descriptor is closed before it executes.
Result<pid_t> PmixHelper::spawn(process::SpawnPlan plan) {
  for (const auto make : {program_in_memory, program_in_file}) {
    const UniqueFd fd = make();
    if (!fd) continue;
    const std::string path = concat("/proc/", ::getpid(), "/fd/", fd.get());
    plan.program = path.c_str();
    auto spawned = launcher_.spawn(plan);
    if (spawned) return spawned->pid;
    if (spawned.error().code == Errc::unavailable) return tl::unexpected(spawned.error());
  }
  return fail(Errc::unavailable, concat("cannot start the PMIx server that Open MPI needs: it cannot be executed from "
                                        "memory (vm.memfd_noexec) nor from ",
                                        variable("TMPDIR").value_or("/tmp"),
                                        " (noexec?), or the C library is not glibc; set TMPDIR to another folder"));
}

void PmixHelper::drain() { in_.catch_up(); }

void PmixHelper::take_frames(std::string_view bytes) {
  received_ += bytes;
  while (in_.is_open() && received_.size() >= frame_head_bytes) {
    const auto size = bytes::load<std::uint32_t>(received_.data());
    if (size > max_helper_payload) return lose("it sent a frame that is too long");
    if (received_.size() - frame_head_bytes < size) return;
    pmix_event::Frame frame{static_cast<unsigned char>(received_[sizeof size]),
                            received_.substr(frame_head_bytes, size)};
    // Before the handler, which may drain.
    received_.erase(0, frame_head_bytes + size);
    handlers_.frame(std::move(frame));
  }
}

void PmixHelper::take_output(std::string_view bytes) {
  text_ += bytes;
  for (auto end = text_.find('\n'); end != std::string::npos || text_.size() > max_text; end = text_.find('\n')) {
    handlers_.said(std::string_view(text_).substr(0, end));
    text_.erase(0, std::max(end, end + 1));
  }
}

void PmixHelper::send(std::string_view frame) { out_.write(frame); }

void PmixHelper::lose(std::string why) {
  close();
  handlers_.lost(std::move(why));
}

void PmixHelper::close() {
  in_.close();
  out_.close();
  const auto children = helper::registered_children();
  if (std::ranges::find(children, pid_) != children.end()) ::kill(pid_, SIGKILL);
}

}  // namespace ddrun::pmi
