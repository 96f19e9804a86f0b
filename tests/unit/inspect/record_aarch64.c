// Saves its own registers, code and stack within nested calls, in the format of recorded_memory.hpp. To be built and run
// on any machine, without a C library, so that the record is small:
//   aarch64-linux-gnu-gcc -O2 -fno-pie -no-pie -nostdlib -static -fasynchronous-unwind-tables -Wl,--eh-frame-hdr \
//     -Wl,-z,noseparate-code [-mbranch-protection=pac-ret] record_aarch64.c -o record
//   (aarch64-linux-gnu-nm -S record | awk '$3 == "T" {print "function", $4, $1, $2}'
//    qemu-aarch64-static -cpu max ./record) > recorded/aarch64[-pac-ret]
// The registers of DWARF's numbers 0 to 32 lie at address 0x1000. Lines with functions are no mappings, and are left out
// by those who read these.
typedef unsigned long u64;

#define NOINLINE __attribute__((noinline))

static u64 registers[33];

static long call(long number, long a, const void* b, long c) {
  register long x8 __asm__("x8") = number;
  register long x0 __asm__("x0") = a;
  register const void* x1 __asm__("x1") = b;
  register long x2 __asm__("x2") = c;
  __asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2) : "memory");
  return x0;
}

static void write_range(u64 address, const void* from, u64 size) {
  const u64 head[2] = {address, size};
  call(64, 1, head, sizeof head);
  call(64, 1, from, (long)size);
}

NOINLINE void record_self(void) {
  static const char mapping[] = "400000-401000 r-xp 0 00:00 0 /recorded\n\n";
  __asm__ volatile(
      "adr x9, .\n str x9, [%0, #256]\n mov x9, sp\n str x9, [%0, #248]\n stp x29, x30, [%0, #232]\n"
      "stp x19, x20, [%0, #152]\n stp x21, x22, [%0, #168]\n stp x23, x24, [%0, #184]\n"
      "stp x25, x26, [%0, #200]\n stp x27, x28, [%0, #216]\n" ::"r"(registers)
      : "x9", "memory");
  call(64, 1, mapping, sizeof mapping - 1);
  write_range(0x1000, registers, sizeof registers);
  write_range(0x400000, (const void*)0x400000, 0x1000);
  write_range(registers[31], (const void*)registers[31], 1024);
}

NOINLINE int recurse(int depth) {
  volatile char local[48] = {(char)depth};
  if (depth == 0) record_self();
  else recurse(depth - 1);
  return local[0] + 1;
}

NOINLINE int run(void) {
  volatile int result = recurse(2);
  return result;
}

void leave(void) {
  run();
  call(93, 0, 0, 0);
  __builtin_unreachable();
}

__asm__(
    ".globl _start\n .type _start, %function\n _start:\n .cfi_startproc\n .cfi_undefined x30\n bl leave\n brk 0\n"
    ".cfi_endproc\n .size _start, . - _start\n");
