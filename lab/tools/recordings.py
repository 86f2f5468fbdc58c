"""Unpack and pack the recordings of real servers that the judge compares with.

    python lab/tools/recordings.py unpack DIR       DIR/7.2/*.jsonl, DIR/8.0/*.jsonl
    python lab/tools/recordings.py pack DIR         the archive in the package, from such a folder

The archive in `dcpstream_node.judge` is the only copy. `pack` makes the same bytes of the same files. Scenarios stand
side by side with those of the other releases, which are nearly the same and so cost little.
"""

from __future__ import annotations

import argparse
import io
import lzma
import tarfile
from pathlib import Path

ARCHIVE = (
    Path(__file__).parents[2] / "packages" / "dcpstream-node" / "src" / "dcpstream_node" / "judge" / "recordings.tar.xz"
)
PRESET = 9 | lzma.PRESET_EXTREME


def pack(folder: Path, archive: Path) -> None:
    """Write the archive of all recordings in the folders of releases below a folder."""
    with lzma.open(archive, "wb", preset=PRESET) as packed, tarfile.open(fileobj=packed, mode="w") as tar:
        for path in sorted(folder.glob("*/*.jsonl"), key=lambda path: (path.name, path.parent.name)):
            data = path.read_bytes()
            member = tarfile.TarInfo(f"{path.parent.name}/{path.name}")
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))


def unpack(folder: Path, archive: Path) -> None:
    """Write all recordings below a folder."""
    with tarfile.open(archive, "r:xz") as tar:
        tar.extractall(folder, filter="data")


def main() -> None:
    """Pack or unpack."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=("pack", "unpack"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--archive", type=Path, default=ARCHIVE)
    arguments = parser.parse_args()
    {"pack": pack, "unpack": unpack}[arguments.action](arguments.folder, arguments.archive)
    print(f"{arguments.action}: {arguments.archive.stat().st_size:,} bytes in {arguments.archive}")


if __name__ == "__main__":
    main()
