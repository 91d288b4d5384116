"""Refusing file systems on which the store's promises do not hold.

SQLite's log lives in memory shared between processes and the locks are those of one kernel: over a network
neither works ("All processes using a database must be on the same host computer; WAL does not work over a
network filesystem", SQLite's documentation of its write-ahead log), and an fsync that a server answers is
that server's word.
"""

from __future__ import annotations

import os
from pathlib import Path

from ..errors import InvalidRequest

MOUNTS = Path("/proc/self/mountinfo")
NETWORK = frozenset(
    {
        "afs",
        "beegfs",
        "ceph",
        "cifs",
        "fuse.glusterfs",
        "fuse.rclone",
        "fuse.s3fs",
        "fuse.sshfs",
        "glusterfs",
        "lustre",
        "ncpfs",
        "nfs",
        "nfs4",
        "smb3",
        "smbfs",
    }
)


def require_local_disk(path: Path) -> None:
    """Return if the folder that holds `path` is on a disk of this machine, or where that cannot be told.

    Raises:
        InvalidRequest: it is on a network file system; the message names its kind.
    """
    existing = next(each for each in (path, *path.absolute().parents) if each.exists())
    kind = _kind_of(existing)
    if kind in NETWORK:
        raise InvalidRequest(
            f"{path} is on a network file system ({kind}), on which acknowledged writes can be lost; use a "
            "folder on a disk of this machine, and `dsearch backup` to bring copies elsewhere"
        )


def _kind_of(path: Path) -> str | None:
    """The type of the file system that holds an existing path; None where the kernel does not say."""
    device = os.stat(path).st_dev
    wanted = f"{os.major(device)}:{os.minor(device)}"
    try:
        lines = MOUNTS.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return None
    for line in lines:
        # "36 35 98:0 /root /mount options optional… - type source options"; see proc(5)
        fields, _, described = line.partition(" - ")
        if fields.split()[2:3] == [wanted]:
            return described.split(" ", 1)[0]
    return None
