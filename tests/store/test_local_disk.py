from __future__ import annotations

import os
from pathlib import Path

import pytest

from dsearch.errors import InvalidRequest
from dsearch.store import Store, folders


@pytest.fixture
def mounted_as(monkeypatch, tmp_path):
    """Let the kernel's table say that the test's folder is on a file system of some type."""

    def mounted_as(kind: str) -> None:
        device = os.stat(tmp_path).st_dev
        table = tmp_path / "mountinfo"
        table.write_text(
            "22 1 0:999 / /elsewhere rw - nfs4 server:/x rw\n"
            f"36 35 {os.major(device)}:{os.minor(device)} / /home rw,noatime shared:1 - {kind} server:/x rw\n"
        )
        monkeypatch.setattr(folders, "MOUNTS", table)

    return mounted_as


@pytest.mark.parametrize("kind", ["nfs4", "cifs", "fuse.sshfs"])
def test_a_network_file_system_is_refused(folder, mounted_as, kind):
    mounted_as(kind)
    with pytest.raises(InvalidRequest, match=rf"network file system \({kind}\).*use a folder on a disk"):
        Store.create(folder, name="papers", encoder={}, dimension=8)
    assert not folder.exists()


def test_an_existing_collection_is_not_written_there_but_read(folder, mounted_as):
    Store.create(folder, name="papers", encoder={}, dimension=8).close()
    mounted_as("nfs")
    with pytest.raises(InvalidRequest, match="network"):
        Store.open(folder)
    Store.open(folder, readonly=True).close()


@pytest.mark.parametrize("kind", ["ext4", "overlay", "tmpfs"])
def test_a_disk_of_this_machine_is_taken(folder, mounted_as, kind):
    mounted_as(kind)
    Store.create(folder, name="papers", encoder={}, dimension=8).close()


def test_without_the_kernels_table_nothing_is_refused(folder, monkeypatch, tmp_path):
    monkeypatch.setattr(folders, "MOUNTS", tmp_path / "none")
    Store.create(folder, name="papers", encoder={}, dimension=8).close()


def test_a_folder_that_is_itself_a_mount_is_refused(monkeypatch):
    """Its parents are on a disk of this machine."""
    monkeypatch.setattr(folders, "NETWORK", frozenset({"proc"}))
    with pytest.raises(InvalidRequest, match=r"network file system \(proc\)"):
        folders.require_local_disk(Path("/proc"))
