"""STAT diskinfo."""

from __future__ import annotations

from pathlib import Path

from dcpstream.testing.simulation import SimulatedNode


def test_sizes_follow_what_is_written(tmp_path: Path) -> None:
    on_disk, in_memory = SimulatedNode(path=tmp_path), SimulatedNode()
    for node in (on_disk, in_memory):
        node.fill(1, 20, value=b"x" * 100)
        node.flush()
    stats = on_disk.stats("diskinfo")
    assert int(stats["ep_db_file_size"]) > int(stats["ep_db_data_size"]) > 20 * 100
    assert in_memory.stats("diskinfo")["ep_db_file_size"] == "0"
    before = int(stats["ep_db_file_size"])
    on_disk.fill(1, 20, value=b"y" * 100)
    on_disk.flush()
    assert int(on_disk.stats("diskinfo")["ep_db_file_size"]) > before + 2000
