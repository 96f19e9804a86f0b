// The worker for measurements of launchers. It has no C library, so that its own start costs almost nothing: one page
// fault, no dynamic linking. Built with -nostdlib -static -ffreestanding.
//
//   bench_worker               ends at once
//   bench_worker line          writes a line to stdout and one to stderr, marked with a '~', then sleeps until killed
//   bench_worker stamp FILE    appends 16 bytes to FILE (CLOCK_MONOTONIC nanoseconds at its first instruction, process
//                              id), then sleeps until it is killed
//   bench_worker stamp FILE STOPPED   the same, and on SIGTERM appends such 16 bytes to STOPPED and exits
//   bench_worker lines BYTES   writes BYTES to stdout in lines of 100 bytes, 650 to a write, the same in each worker
//   bench_worker lines BYTES different   the same, with process id and number in each line
//   bench_worker lines BYTES stamp FILE  as `lines BYTES`, then appends such 16 bytes to FILE and sleeps
#include <asm/unistd.h>

namespace {

#if defined(__x86_64__)
long call(long number, long a = 0, long b = 0, long c = 0, long d = 0) {
  long result;
  register long r10 asm("r10") = d;
  asm volatile("syscall" : "=a"(result) : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10) : "rcx", "r11", "memory");
  return result;
}
#elif defined(__aarch64__)
long call(long number, long a = 0, long b = 0, long c = 0, long d = 0) {
  register long x8 asm("x8") = number;
  register long x0 asm("x0") = a;
  register long x1 asm("x1") = b;
  register long x2 asm("x2") = c;
  register long x3 asm("x3") = d;
  asm volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3) : "memory");
  return x0;
}
#else
#error "bench_worker makes its system calls itself and knows x86-64 and AArch64"
#endif

constexpr long line_bytes = 100;
constexpr long block_lines = 650;
char block[line_bytes * block_lines];

long address(const void* pointer) { return reinterpret_cast<long>(pointer); }

[[noreturn]] void leave(int code) {
  while (true) call(__NR_exit_group, code);
}

[[noreturn]] void sleep_forever() {
  while (true) call(__NR_ppoll);
}

bool same(const char* a, const char* b) {
  while (*a != '\0' && *a == *b) ++a, ++b;
  return *a == *b;
}

void stamp(const char* file, const long (&now)[2]) {
  constexpr long at_cwd = -100;
  constexpr long write_append_create = 01 | 02000 | 0100;
  const long entry[2] = {now[0] * 1'000'000'000 + now[1], call(__NR_getpid)};
  const long fd = call(__NR_openat, at_cwd, address(file), write_append_create, 0600);
  if (fd < 0 || call(__NR_write, fd, address(entry), sizeof entry) != sizeof entry) leave(1);
  call(__NR_close, fd);
}

[[noreturn]] void stamp_at_sigterm(const char* file) {
  constexpr long clock_monotonic = 1;
  constexpr long block_signals = 0;
  const unsigned long sigterm = 1UL << (15 - 1);
  call(__NR_rt_sigprocmask, block_signals, address(&sigterm), 0, sizeof sigterm);
  while (call(__NR_rt_sigtimedwait, address(&sigterm), 0, 0, sizeof sigterm) != 15) {
  }
  long now[2];
  call(__NR_clock_gettime, clock_monotonic, address(now));
  stamp(file, now);
  leave(143);
}

void write_hex(char* to, long value) {
  for (int digit = 0; digit < 8; ++digit) to[digit] = "0123456789abcdef"[value >> (28 - 4 * digit) & 15];
}

void write_lines(const char* number, bool different) {
  const long pid = call(__NR_getpid);
  long left = 0, line = 0;
  for (; *number >= '0' && *number <= '9'; ++number) left = left * 10 + (*number - '0');
  for (long i = 0; i < line_bytes * block_lines; ++i) {
    block[i] = i % line_bytes == line_bytes - 1 ? '\n' : static_cast<char>('a' + i % 26);
  }
  while (left > 0) {
    const long size = left < line_bytes * block_lines ? left : line_bytes * block_lines;
    for (long i = 0; different && i < block_lines; ++i) {
      write_hex(block + i * line_bytes, pid);
      write_hex(block + i * line_bytes + 8, line++);
    }
    for (long done = 0; done < size;) {
      const long n = call(__NR_write, 1, address(block + done), size - done);
      if (n <= 0) leave(1);
      done += n;
    }
    left -= size;
  }
}

}  // namespace

extern "C" [[noreturn]] void run(const long* stack) {
  constexpr long clock_monotonic = 1;
  const long count = stack[0];
  if (count < 2) leave(0);
  long now[2];
  call(__NR_clock_gettime, clock_monotonic, address(now));
  const auto* arguments = reinterpret_cast<const char* const*>(stack + 1);
  if (same(arguments[1], "line")) {
    call(__NR_write, 1, address("out~\n"), 5);
    call(__NR_write, 2, address("err~\n"), 5);
    sleep_forever();
  }
  if (count < 3) leave(2);
  if (same(arguments[1], "stamp")) {
    stamp(arguments[2], now);
    if (count > 3) stamp_at_sigterm(arguments[3]);
    sleep_forever();
  }
  if (!same(arguments[1], "lines")) leave(2);
  write_lines(arguments[2], count > 3 && same(arguments[3], "different"));
  if (count < 5 || !same(arguments[3], "stamp")) leave(0);
  call(__NR_clock_gettime, clock_monotonic, address(now));
  stamp(arguments[4], now);
  sleep_forever();
}

#if defined(__x86_64__)
asm(".globl _start\n_start:\n  mov %rsp, %rdi\n  and $-16, %rsp\n  call run\n");
#else
asm(".globl _start\n_start:\n  mov x0, sp\n  bl run\n");
#endif
