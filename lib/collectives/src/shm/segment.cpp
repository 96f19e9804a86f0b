#include "shm/segment.hpp"

#include <fcntl.h>
#include <linux/memfd.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <map>
#include <mutex>
#include <vector>

#include "ddrun/base/proc.hpp"
#include "ddrun/base/text.hpp"

namespace ddrun::collectives {

namespace {

#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 0x0008U
#endif

constexpr int seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

int make_memfd(unsigned flags) {
  // Some systems require the first form; kernels before 6.3 accept only the second.
  const int fd = memfd_create("ddrun-allreduce", MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_NOEXEC_SEAL | flags);
  if (fd >= 0 || errno != EINVAL) return fd;
  return memfd_create("ddrun-allreduce", MFD_CLOEXEC | MFD_ALLOW_SEALING | flags);
}

constexpr std::size_t huge_page_bytes = std::size_t{2} << 20;

/// Whether the kernel may use large pages for a memfd without reserved ones: "always within_size advise [never] …".
bool large_pages_allowed() {
  const auto choices = read_small_file("/sys/kernel/mm/transparent_hugepage/shmem_enabled").value_or("");
  return choices.find('[') != std::string::npos && choices.find("[never]") == std::string::npos &&
         choices.find("[deny]") == std::string::npos;
}

/// Segments of this process, so that ranks that are threads share one mapping.
struct Registry {
  std::mutex mutex;
  std::map<std::string, std::weak_ptr<Segment>> segments;
};

Registry& registry() {
  static Registry instance;
  return instance;
}

/// "pid fd device inode bytes huge"
struct Location {
  std::uint64_t pid = 0, fd = 0, device = 0, inode = 0, bytes = 0, huge = 0;

  static Result<Location> parse(const std::string& text) {
    Location location;
    const std::vector<std::string> fields = split(text, ' ');
    std::uint64_t* const targets[] = {&location.pid,   &location.fd,    &location.device,
                                      &location.inode, &location.bytes, &location.huge};
    bool good = fields.size() == std::size(targets);
    for (std::size_t i = 0; good && i < fields.size(); ++i) {
      const auto number = whole_number<std::uint64_t>(fields[i]);
      *targets[i] = number.value_or(0);
      good = number.has_value();
    }
    if (!good) return fail(Errc::protocol, concat("rank 0 described its shared memory as '", text, "'"));
    return location;
  }
};

}  // namespace

Result<void> Segment::map(std::size_t bytes) {
  struct stat info {};
  if (fstat(fd_.get(), &info) != 0) return fail_errno(Errc::unavailable, "cannot ask for shared memory's pages", errno);
  page_ = static_cast<std::size_t>(info.st_blksize);
  // With MFD_HUGETLB this reserves the pages and fails if there are too few.
  void* const memory = mmap(nullptr, round_up(bytes, page_), PROT_READ | PROT_WRITE, MAP_SHARED, fd_.get(), 0);
  if (memory == MAP_FAILED) {
    return fail_errno(Errc::unavailable, concat("cannot map ", bytes, " bytes of shared memory"), errno);
  }
  data_ = static_cast<std::byte*>(memory);
  size_ = bytes;
  // Large pages, where allowed for shared memory, save most page faults.
  madvise(memory, bytes, MADV_HUGEPAGE);
  return {};
}

Segment::~Segment() {
  if (data_ != nullptr) munmap(data_, round_up(size_, page_));
}

bool Segment::make(std::size_t bytes, bool huge) {
  fd_.reset(make_memfd(huge ? MFD_HUGETLB | MFD_HUGE_2MB : 0));
  const std::size_t whole = huge ? round_up(bytes, huge_page_bytes) : bytes;
  return fd_ && ftruncate(fd_.get(), static_cast<off_t>(whole)) == 0 && fcntl(fd_.get(), F_ADD_SEALS, seals) == 0;
}

std::string Segment::pages() const {
  if (huge_) return "2 MiB pages";
  return large_pages_allowed() ? "4 KiB pages, or 2 MiB where the system finds some" : "4 KiB pages";
}

bool Segment::has_huge_pages(const std::string& location) { return location.ends_with(" 1"); }

Result<std::shared_ptr<Segment>> Segment::create(std::size_t bytes, std::size_t reserved, bool may_be_huge) {
  std::shared_ptr<Segment> segment(new Segment);
  // A small segment would waste most of a large page.
  segment->huge_ = may_be_huge && bytes >= huge_page_bytes;
  const auto reserve = [&] { return segment->reserve(0, reserved); };
  if (!segment->huge_ || !segment->make(bytes, true) || !segment->map(bytes).and_then(reserve)) {
    segment.reset(new Segment);
    if (!segment->make(bytes, false)) {
      return fail_errno(Errc::unavailable, concat("cannot create ", bytes, " bytes of shared memory"), errno);
    }
    TRY(segment->map(bytes).and_then(reserve));
  }
  struct stat info {};
  if (fstat(segment->fd_.get(), &info) != 0) return fail_errno(Errc::unavailable, "cannot see shared memory", errno);
  segment->location_ = concat(getpid(), ' ', segment->fd_.get(), ' ', info.st_dev, ' ', info.st_ino, ' ', bytes, ' ',
                              segment->huge_ ? 1 : 0);
  Registry& known = registry();
  const std::lock_guard lock(known.mutex);
  std::erase_if(known.segments, [](const auto& entry) { return entry.second.expired(); });
  known.segments[segment->location_] = segment;
  return segment;
}

Result<std::shared_ptr<Segment>> Segment::open(const std::string& text) {
  const auto location = TRY(Location::parse(text));
  if (location.pid == static_cast<std::uint64_t>(getpid())) {
    Registry& known = registry();
    const std::lock_guard lock(known.mutex);
    const auto found = known.segments.find(text);
    if (found != known.segments.end()) {
      if (auto segment = found->second.lock()) return segment;
    }
  }
  const std::string path = concat("/proc/", location.pid, "/fd/", location.fd);
  std::shared_ptr<Segment> segment(new Segment);
  segment->location_ = text;
  segment->huge_ = location.huge != 0;
  segment->fd_.reset(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  struct stat info {};
  if (!segment->fd_ || fstat(segment->fd_.get(), &info) != 0) {
    return fail_errno(Errc::unavailable, concat("cannot open rank 0's shared memory at ", path), errno);
  }
  // In another pid namespace this process id may name another process.
  if (info.st_dev != location.device || info.st_ino != location.inode ||
      static_cast<std::uint64_t>(info.st_size) < location.bytes) {
    return fail(Errc::unavailable, concat(path, " is not rank 0's shared memory: another process id namespace?"));
  }
  TRY(segment->map(location.bytes));
  return segment;
}

Result<void> Segment::reserve(std::size_t offset, std::size_t bytes) const {
  if (bytes == 0) return {};
  int done = 0;
  do {
    done = fallocate(fd_.get(), 0, static_cast<off_t>(offset), static_cast<off_t>(bytes));
  } while (done != 0 && errno == EINTR);
  if (done == 0 || (errno == EOPNOTSUPP && !huge_)) return {};
  return fail_errno(Errc::unavailable,
                    concat("cannot reserve ", bytes >> 20, " MiB of shared memory for this rank's buffers"), errno);
}

}  // namespace ddrun::collectives
