#include "shm_segment.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstdint>
#include <map>
#include <mutex>
#include <vector>

#include "ddrun/base/text.hpp"

namespace ddrun::collectives {

namespace {

#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 0x0008U
#endif

constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

int make_memfd() {
  // Some systems insist on the first form, kernels before 6.3 know only the second.
  const int fd = memfd_create("ddrun-allreduce", MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_NOEXEC_SEAL);
  if (fd >= 0 || errno != EINVAL) return fd;
  return memfd_create("ddrun-allreduce", MFD_CLOEXEC | MFD_ALLOW_SEALING);
}

/// Segments of this process, so that threads acting as ranks share one mapping.
struct Registry {
  std::mutex mutex;
  std::map<std::string, std::weak_ptr<Segment>> segments;
};

Registry& registry() {
  static Registry instance;
  return instance;
}

/// "pid fd device inode bytes"
struct Where {
  std::uint64_t pid = 0, fd = 0, device = 0, inode = 0, bytes = 0;

  static Result<Where> parse(const std::string& text) {
    Where where;
    const std::vector<std::string> fields = split(text, ' ');
    std::uint64_t* const targets[] = {&where.pid, &where.fd, &where.device, &where.inode, &where.bytes};
    bool good = fields.size() == std::size(targets);
    for (std::size_t i = 0; good && i < fields.size(); ++i) {
      const char* const end = fields[i].data() + fields[i].size();
      const auto [stop, error] = std::from_chars(fields[i].data(), end, *targets[i]);
      good = error == std::errc() && stop == end;
    }
    if (!good) return fail(Errc::protocol, concat("rank 0 described its shared memory as '", text, "'"));
    return where;
  }
};

}  // namespace

Result<void> Segment::map(std::size_t bytes) {
  void* const memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd_.get(), 0);
  if (memory == MAP_FAILED) {
    return fail_errno(Errc::unavailable, concat("cannot map ", bytes, " bytes of shared memory"), errno);
  }
  data_ = static_cast<std::byte*>(memory);
  size_ = bytes;
  // Where the system allows large pages for shared memory, they save most of the page faults.
  madvise(memory, bytes, MADV_HUGEPAGE);
  return {};
}

Segment::~Segment() {
  if (data_ != nullptr) munmap(data_, size_);
}

Result<std::shared_ptr<Segment>> Segment::create(std::size_t bytes) {
  std::shared_ptr<Segment> segment(new Segment);
  segment->fd_.reset(make_memfd());
  struct stat info {};
  if (!segment->fd_ || ftruncate(segment->fd_.get(), static_cast<off_t>(bytes)) != 0 ||
      fcntl(segment->fd_.get(), F_ADD_SEALS, kSeals) != 0 || fstat(segment->fd_.get(), &info) != 0) {
    return fail_errno(Errc::unavailable, concat("cannot create ", bytes, " bytes of shared memory"), errno);
  }
  if (auto mapped = segment->map(bytes); !mapped) return tl::unexpected(mapped.error());
  segment->where_ = concat(getpid(), ' ', segment->fd_.get(), ' ', info.st_dev, ' ', info.st_ino, ' ', bytes);
  Registry& known = registry();
  const std::lock_guard lock(known.mutex);
  std::erase_if(known.segments, [](const auto& entry) { return entry.second.expired(); });
  known.segments[segment->where_] = segment;
  return segment;
}

Result<std::shared_ptr<Segment>> Segment::open(const std::string& text) {
  const auto where = Where::parse(text);
  if (!where) return tl::unexpected(where.error());
  if (where->pid == static_cast<std::uint64_t>(getpid())) {
    Registry& known = registry();
    const std::lock_guard lock(known.mutex);
    const auto found = known.segments.find(text);
    if (found != known.segments.end()) {
      if (auto segment = found->second.lock()) return segment;
    }
  }
  const std::string path = concat("/proc/", where->pid, "/fd/", where->fd);
  std::shared_ptr<Segment> segment(new Segment);
  segment->where_ = text;
  segment->fd_.reset(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  struct stat info {};
  if (!segment->fd_ || fstat(segment->fd_.get(), &info) != 0) {
    return fail_errno(Errc::unavailable, concat("cannot open rank 0's shared memory at ", path), errno);
  }
  // The process id may mean somebody else in this rank's container.
  if (info.st_dev != where->device || info.st_ino != where->inode ||
      static_cast<std::uint64_t>(info.st_size) != where->bytes) {
    return fail(Errc::unavailable, concat(path, " is not rank 0's shared memory: another process id namespace?"));
  }
  if (auto mapped = segment->map(where->bytes); !mapped) return tl::unexpected(mapped.error());
  return segment;
}

Result<void> Segment::reserve(std::size_t offset, std::size_t bytes) const {
  if (bytes == 0) return {};
  int done = 0;
  do {
    done = fallocate(fd_.get(), 0, static_cast<off_t>(offset), static_cast<off_t>(bytes));
  } while (done != 0 && errno == EINTR);
  if (done == 0 || errno == EOPNOTSUPP) return {};
  return fail_errno(Errc::unavailable,
                    concat("cannot reserve ", bytes >> 20, " MiB of shared memory for this rank's buffers"), errno);
}

}  // namespace ddrun::collectives
