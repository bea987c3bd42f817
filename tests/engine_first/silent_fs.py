"""A file system of this process, an empty directory: `silent_fs.py DIRECTORY`, as root.

While the process is stopped nobody who asks gets an answer, as from a server that is gone. The
protocol is that of /dev/fuse, version 7.31, as far as an empty directory goes.
"""

from __future__ import annotations

import ctypes
import os
import stat
import struct
import sys

_HEADER = struct.Struct("<IIQQIIIHH")
_ANSWER = struct.Struct("<IiQ")
#: fuse_init_out, fuse_attr_out and fuse_open_out.
_INIT, _ATTRIBUTES, _OPEN = (
    struct.Struct("<IIIIHHIIHHI28x"),
    struct.Struct("<QII6Q10I"),
    struct.Struct("<QII"),
)
_LOOKUP, _FORGET, _GETATTR, _STATFS, _INIT_CODE, _OPENDIR = 1, 2, 3, 17, 26, 27
_READDIR, _RELEASEDIR, _INTERRUPT = 28, 29, 36
_ENOENT, _ENOSYS = -2, -38


def _attributes() -> bytes:
    # Nothing may be remembered: each look must come to us.
    times = (0, 0, 0, 0, 0, 0)
    rest = (0, 0, 0, stat.S_IFDIR | 0o700, 2, os.getuid(), os.getgid(), 0, 4096, 0)
    return _ATTRIBUTES.pack(0, 0, 0, 1, *times[1:], *rest)


def _reply(code: int) -> tuple[int, bytes]:
    if code == _INIT_CODE:
        return 0, _INIT.pack(7, 31, 65_536, 0, 16, 12, 65_536, 1, 1, 0, 0)
    if code == _GETATTR:
        return 0, _attributes()
    if code == _OPENDIR:
        return 0, _OPEN.pack(0, 0, 0)
    if code in (_READDIR, _RELEASEDIR):
        return 0, b""
    return (_ENOENT if code == _LOOKUP else _ENOSYS), b""


def serve(fuse: int) -> None:
    while True:
        request = os.read(fuse, 1 << 17)
        _, code, unique, *_ = _HEADER.unpack_from(request)
        if code in (_FORGET, _INTERRUPT):
            continue
        error, data = _reply(code)
        os.write(fuse, _ANSWER.pack(_ANSWER.size + len(data), error, unique) + data)


def main(point: str) -> None:
    fuse = os.open("/dev/fuse", os.O_RDWR)
    options = f"fd={fuse},rootmode=40000,user_id={os.getuid()},group_id={os.getgid()},allow_other"
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"silent", point.encode(), b"fuse", 0, options.encode()):
        sys.exit(f"mount: {os.strerror(ctypes.get_errno())}")
    print("mounted", flush=True)
    serve(fuse)


if __name__ == "__main__":
    main(*sys.argv[1:])
