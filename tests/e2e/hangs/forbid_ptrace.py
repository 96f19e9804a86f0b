"""Executes its arguments where ptrace(2), process_vm_readv(2) and perf_event_open(2) are refused, as hardened containers
do (seccomp(2))."""
import ctypes
import os
import platform
import struct
import sys

NUMBERS = {"x86_64": (101, 310, 298), "aarch64": (117, 270, 241)}[platform.machine()]
PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 38, 22, 2
LOAD, JUMP_IF_EQUAL, RETURN = 0x20, 0x15, 0x06
ALLOW, EPERM = 0x7fff0000, 0x00050001


def instruction(code, value, if_true=0, if_false=0):
    return struct.pack("HBBI", code, if_true, if_false, value)


program = b"".join([
    instruction(LOAD, 0),  # the number of the system call
    *(instruction(JUMP_IF_EQUAL, number, len(NUMBERS) - i) for i, number in enumerate(NUMBERS)),
    instruction(RETURN, ALLOW),
    instruction(RETURN, EPERM),
])
instructions = ctypes.create_string_buffer(program)
header = struct.pack("HxxxxxxP", len(program) // 8, ctypes.addressof(instructions))
libc = ctypes.CDLL(None, use_errno=True)
if libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) or libc.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, header, 0, 0):
    sys.exit(f"seccomp: {os.strerror(ctypes.get_errno())}")
os.execvp(sys.argv[1], sys.argv[1:])
