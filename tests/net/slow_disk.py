#!/usr/bin/env python3
"""A file system that can hang, as that of a network does whose server is away.

    slow_disk.py FOLDER BEHIND HOLD

Mounts on FOLDER what lies in the folder BEHIND and serves it until it is killed. While there is a file HOLD no request is
answered, whatever it asks; while one waits there is HOLD.waits. Speaks the kernel's protocol (FUSE 7.31, see
linux/fuse.h) on /dev/fuse, with nothing but the standard library. Nothing is kept in the kernel's caches: each open, look,
write and rename comes here. Needs root.
"""

import ctypes
import errno
import os
import stat
import struct
import sys
import time

IN = struct.Struct("<IIQQIIIHH")  # length, operation, number, node, uid, gid, pid, and two that do not matter
OUT = struct.Struct("<IiQ")
ATTRIBUTES = struct.Struct("<6Q10I")
ENTRY = struct.Struct("<4QII")
INIT = struct.Struct("<4I2HII2HI7I")
MOST = 1 << 17  # bytes of a write


class Files:
    """The operations. Each gets the node's number and the request's bytes, and returns those of the answer."""

    def __init__(self, behind):
        self.paths = {1: behind}  # of nodes
        self.nodes = {behind: 1}
        self.lists = {}  # of open folders

    def node(self, path):
        if path not in self.nodes:
            number = max(self.paths) + 1
            self.nodes[path], self.paths[number] = number, path
        return self.nodes[path]

    def under(self, node, name):
        return os.path.join(self.paths[node], os.fsdecode(name))

    @staticmethod
    def attributes(info):
        def whole(value):
            return int(value // 1_000_000_000)

        def rest(value):
            return int(value % 1_000_000_000)
        times = (info.st_atime_ns, info.st_mtime_ns, info.st_ctime_ns)
        return ATTRIBUTES.pack(info.st_ino, info.st_size, info.st_blocks, *map(whole, times), *map(rest, times), info.st_mode,
                               info.st_nlink, info.st_uid, info.st_gid, info.st_rdev, info.st_blksize, 0)

    def entry(self, path):
        return ENTRY.pack(self.node(path), 0, 0, 0, 0, 0) + self.attributes(os.lstat(path))

    def lookup(self, node, said):
        return self.entry(self.under(node, said.rstrip(b"\0")))

    def getattr(self, node, said):
        flags, _, handle = struct.unpack_from("<IIQ", said)
        info = os.fstat(handle) if flags & 1 else os.lstat(self.paths[node])
        return struct.pack("<QII", 0, 0, 0) + self.attributes(info)

    def setattr(self, node, said):
        valid, _, handle, size, _, atime, mtime, _, atime_ns, mtime_ns, _, mode, _, uid, gid, _ = struct.unpack_from(
            "<IIQQQQQQIIIIIIII", said)
        path = self.paths[node]
        if valid & 1:
            os.chmod(path, stat.S_IMODE(mode))
        if valid & 6:
            os.chown(path, uid if valid & 2 else -1, gid if valid & 4 else -1)
        if valid & 8:
            os.truncate(handle if valid & 64 else path, size)
        if valid & 0x30:
            now, info = time.time_ns(), os.lstat(path)
            at = now if valid & 0x80 else atime * 1_000_000_000 + atime_ns if valid & 0x10 else info.st_atime_ns
            changed = now if valid & 0x100 else mtime * 1_000_000_000 + mtime_ns if valid & 0x20 else info.st_mtime_ns
            os.utime(path, ns=(at, changed), follow_symlinks=False)
        return struct.pack("<QII", 0, 0, 0) + self.attributes(os.lstat(path))

    def readlink(self, node, _):
        return os.fsencode(os.readlink(self.paths[node]))

    def symlink(self, node, said):
        name, target = said.split(b"\0")[:2]
        os.symlink(target, os.fsencode(self.under(node, name)))
        return self.entry(self.under(node, name))

    def link(self, node, said):
        path = self.under(node, said[8:].rstrip(b"\0"))
        os.link(self.paths[struct.unpack_from("<Q", said)[0]], path, follow_symlinks=False)
        return self.entry(path)

    def mknod(self, node, said):
        mode, device = struct.unpack_from("<II", said)
        path = self.under(node, said[16:].rstrip(b"\0"))
        os.mknod(path, mode, device)
        return self.entry(path)

    def mkdir(self, node, said):
        path = self.under(node, said[8:].rstrip(b"\0"))
        os.mkdir(path, struct.unpack_from("<I", said)[0])
        return self.entry(path)

    def unlink(self, node, said, remove=os.unlink):
        path = self.under(node, said.rstrip(b"\0"))
        remove(path)
        self.nodes.pop(path, None)  # what has this name later is another node

    def rmdir(self, node, said):
        self.unlink(node, said, os.rmdir)

    def rename(self, node, said, begin=8):
        old, new = said[begin:].split(b"\0")[:2]
        was, becomes = self.under(node, old), self.under(struct.unpack_from("<Q", said)[0], new)
        os.rename(was, becomes)
        self.nodes.pop(becomes, None)
        for path, number in list(self.nodes.items()):
            if path == was or path.startswith(was + "/"):
                del self.nodes[path]
                self.paths[number] = becomes + path[len(was):]
                self.nodes[self.paths[number]] = number

    def rename2(self, node, said):
        if struct.unpack_from("<QI", said)[1]:
            raise OSError(errno.EINVAL, "flags of a rename")
        return self.rename(node, said, 16)

    @staticmethod
    def opened(handle):
        KEEP_NO_PAGES = 1  # FOPEN_DIRECT_IO
        return struct.pack("<QIi", handle, KEEP_NO_PAGES, 0)

    def open(self, node, said):
        # Where the kernel appends it says where that is.
        return self.opened(os.open(self.paths[node], struct.unpack_from("<I", said)[0] & ~(os.O_APPEND | os.O_NOFOLLOW)))

    def create(self, node, said):
        flags, mode = struct.unpack_from("<II", said)
        path = self.under(node, said[16:].rstrip(b"\0"))
        handle = os.open(path, flags & ~os.O_APPEND | os.O_CREAT, mode)
        return self.entry(path) + self.opened(handle)

    def read(self, _, said):
        handle, offset, size = struct.unpack_from("<QQI", said)
        return os.pread(handle, size, offset)

    def write(self, _, said):
        handle, offset, size = struct.unpack_from("<QQI", said)
        return struct.pack("<II", os.pwrite(handle, said[40:40 + size], offset), 0)

    def fsync(self, _, said):
        os.fsync(struct.unpack_from("<Q", said)[0])

    def release(self, _, said):
        os.close(struct.unpack_from("<Q", said)[0])

    def opendir(self, node, _):
        handle = max(self.lists, default=0) + 1
        self.lists[handle] = [".", "..", *os.listdir(self.paths[node])]
        return struct.pack("<QIi", handle, 0, 0)

    def readdir(self, _, said):
        handle, offset, size = struct.unpack_from("<QQI", said)
        answer = b""
        for at, name in enumerate(self.lists[handle][offset:], offset + 1):
            name = os.fsencode(name)
            item = struct.pack("<QQII", at, at, len(name), 0) + name
            item += bytes(-len(item) % 8)
            if len(answer) + len(item) > size:
                break
            answer += item
        return answer

    def releasedir(self, _, said):
        del self.lists[struct.unpack_from("<Q", said)[0]]

    def statfs(self, node, _):
        info = os.statvfs(self.paths[node])
        return struct.pack("<5Q4I6I", info.f_blocks, info.f_bfree, info.f_bavail, info.f_files, info.f_ffree, info.f_bsize,
                           info.f_namemax, info.f_frsize, 0, *[0] * 6)

    def nothing(self, _node, _said):
        pass

    def init(self, _, said):
        major = struct.unpack_from("<I", said)[0]
        if major != 7:
            raise OSError(errno.EPROTO, "another protocol")
        return INIT.pack(7, 31, 0, 0, 16, 12, MOST, 1, MOST >> 12, 0, 0, *[0] * 7)


OPERATIONS = {1: "lookup", 3: "getattr", 4: "setattr", 5: "readlink", 6: "symlink", 8: "mknod", 9: "mkdir", 10: "unlink",
              11: "rmdir", 12: "rename", 13: "link", 14: "open", 15: "read", 16: "write", 17: "statfs", 18: "release",
              20: "fsync", 25: "nothing", 26: "init", 27: "opendir", 28: "readdir", 29: "releasedir", 30: "nothing",
              35: "create", 45: "rename2"}
WITHOUT_ANSWER = {2, 36, 42}  # FORGET, INTERRUPT: a disk is waited for, BATCH_FORGET


def mount(folder):
    device = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    data = f"fd={device},rootmode=40000,user_id=0,group_id=0,allow_other".encode()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"slow", os.fsencode(folder), b"fuse", 0, data) != 0:
        number = ctypes.get_errno()
        sys.exit(f"cannot mount {folder}: {os.strerror(number)}")
    return device


def answer(files, operation, node, said):
    name = OPERATIONS.get(operation)
    if not name:
        return -errno.ENOSYS, b""
    try:
        return 0, getattr(files, name)(node, said) or b""
    except KeyError:
        return -errno.ENOENT, b""
    except OSError as error:
        return -(error.errno or errno.EIO), b""


def wait_while(hold):
    if os.path.exists(hold):
        open(hold + ".waits", "w", encoding="ascii").close()
        while os.path.exists(hold):
            time.sleep(0.01)
        os.unlink(hold + ".waits")


def serve(folder, behind, hold):
    os.umask(0)
    files = Files(behind)
    device = mount(folder)
    print("mounted", flush=True)
    while True:
        try:
            request = os.read(device, MOST + 4096)
        except OSError as error:
            if error.errno in (errno.EINTR, errno.ENOENT):
                continue
            return  # unmounted
        _, operation, number, node, *_ = IN.unpack_from(request)
        if operation in WITHOUT_ANSWER:
            continue
        wait_while(hold)
        error, data = answer(files, operation, node, request[IN.size:])
        try:
            os.write(device, OUT.pack(OUT.size + len(data), error, number) + data)
        except OSError as refused:
            if refused.errno != errno.ENOENT:  # it is no longer waited for
                raise


if __name__ == "__main__":
    serve(*sys.argv[1:])
