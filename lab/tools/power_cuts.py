"""Cut the power of a node at any moment, and check what the disk may then hold.

    python lab/tools/power_cuts.py [--cuts 600] [--runs 6] [--seed N]

strace records every call by which a node changes its data directory, SQLite's calls among them, and every answer that
it sends. The calls are then played back up to a moment that the seed decides. Of what no sync covered, each sector of
512 bytes and each name may be on the disk or not: all of it, none of it, the first of it, or any choice (blocks are
dropped, torn and reordered). The same moment is used for several choices. Each image of the disk must open. It must
hold every write whose answer or whose persisted seqno had been sent, and each vbucket must be exactly in the state
after the write of its high seqno.

The work is that of `lab/tools/kill_loop.py`: sets and deletions without waiting for answers, small segments,
compactions.
The last line: `power cuts: <n> images, <m> writes that had to survive, <k> losses`.
"""

from __future__ import annotations

import argparse
import logging
import os
import random
import re
import shutil
import signal
import struct
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from dcpstream.wire import Frame, FrameReader, Opcode, decode_frame  # noqa: E402
from dcpstream_node.directory.directory import DataDirectory  # noqa: E402
from dcpstream_node.store.closed.check import check_store  # noqa: E402
from lab.tools.kill_loop import PERSIST_LEVELS, TIMEOUT_S, VBUCKETS, KillLoop, Loss, NodeProcess, Vbucket  # noqa: E402

SECTOR_BYTES = 512
"""A disk writes this much whole or not at all."""
WRITES = 900
"""Answered writes of a run. strace slows the node down, and each image holds all of them."""
WINDOW = 20
"""Writes without an answer: few, so that there are many commits."""
CHOICES = ("nothing", "all names", "everything", "first part", "any part", "any part", "any part", "any part")
"""Shares of unsynced changes that a power cut leaves: one image of each moment for each."""
CALLS = "openat,pwrite64,write,writev,fsync,fdatasync,ftruncate,rename,unlink,unlinkat,mkdir,rmdir,sendto"
SYNCS = ("fsync", "fdatasync")
VIEW_BYTES = 1 << 20
_CALL = re.compile(r"(\w+)\((.*)\)\s+= (-?\d+)")
_STRING = re.compile(r'"((?:\\x[0-9a-f]{2})*)"')
_PLACE = re.compile(r"(\d+|AT_FDCWD)<([^>]*)>")


def unescaped(text: str) -> bytes:
    """The bytes that strace wrote in hexadecimal."""
    return bytes.fromhex(text.replace("\\x", ""))


@dataclass(frozen=True, slots=True)
class Call:
    """One call of the system that succeeded; of a `sendto` its beginning."""

    name: str
    place: str
    """The path or socket that the first argument names; empty for none."""
    strings: list[bytes]
    arguments: str

    @property
    def number(self) -> int:
        """The last argument, a number."""
        return int(self.arguments.rpartition(",")[2])


def calls_in(trace: Path) -> Iterator[Call]:
    """The calls in the order in which they ended; answers in the order in which sending began."""
    begun: dict[str, str] = {}
    with trace.open() as lines:
        for line in lines:
            thread, _, text = line.rstrip("\n").partition(" ")
            text = text.strip()
            is_sent = False
            if text.endswith("<unfinished ...>"):
                text = text.removesuffix("<unfinished ...>").rstrip()
                begun[thread] = text
                if not text.startswith("sendto("):
                    continue
                text += ") = 0"
            elif text.startswith("<... "):
                text = begun.pop(thread, "") + text.partition("resumed>")[2]
                is_sent = text.startswith("sendto(")
            match = _CALL.match(text)
            if match is None or is_sent or int(match[3]) < 0:
                continue
            place = _PLACE.match(match[2])
            name = place[2] if place is not None else ""
            if name.startswith("\\x"):
                name = unescaped(name).decode()
            yield Call(match[1], name, [unescaped(each) for each in _STRING.findall(match[2])], match[2])


@dataclass
class Inode:
    """A file: what is on the disk for certain, and what was changed since, in order."""

    synced: bytes = b""
    written: bytearray = field(default_factory=bytearray)
    changes: list[tuple[int, bytes | None]] = field(default_factory=list)
    """(offset, bytes) of a write, or (size, None) of a cut."""

    def write(self, offset: int, data: bytes) -> None:
        """Write bytes."""
        if len(self.written) < offset:
            self.written.extend(bytes(offset - len(self.written)))
        self.written[offset : offset + len(data)] = data
        self.changes.append((offset, data))

    def cut(self, size: int) -> None:
        """Set the size."""
        del self.written[size:]
        self.written.extend(bytes(size - len(self.written)))
        self.changes.append((size, None))

    def sync(self) -> None:
        """Put everything on the disk."""
        self.synced, self.changes = bytes(self.written), []

    def left(self, choice: str, chance: random.Random) -> bytes:
        """The content that a power cut leaves."""
        if choice == "everything" or not self.changes:
            return bytes(self.written)
        if choice in {"nothing", "all names"}:
            return self.synced
        count = chance.randint(0, len(self.changes))
        image, size = bytearray(self.synced), len(self.synced)
        for index, (offset, data) in enumerate(self.changes):
            is_kept = index < count if choice == "first part" else chance.random() < 0.6
            if data is None:
                size = offset if is_kept else size
                continue
            end = offset + len(data)
            if len(image) < end:
                image.extend(bytes(end - len(image)))
            for start in range(offset - offset % SECTOR_BYTES, end, SECTOR_BYTES):
                first, last = max(start, offset), min(start + SECTOR_BYTES, end)
                if is_kept or (choice == "any part" and chance.random() < 0.3):
                    image[first:last] = data[first - offset : last - offset]
            if is_kept or (choice == "any part" and chance.random() < 0.3):
                size = max(size, end)
        return bytes(image[:size]) + bytes(max(0, size - len(image)))


@dataclass(frozen=True)
class NameChange:
    """A name that was made or removed: path, and the file that it names now (None: a directory, or nothing)."""

    path: str
    inode: Inode | None
    is_directory: bool = False


class Disk:
    """The data directory as the calls of a node make it."""

    def __init__(self, root: Path, *, heeds_syncs: bool = True) -> None:
        self._root = f"{root}/"
        self._heeds_syncs = heeds_syncs
        self.names: dict[str, Inode | None] = {}
        """Path → file; None for a directory."""
        self.synced_names: dict[str, Inode | None] = {}
        self.pending: list[list[NameChange]] = []
        """Changes of names that no sync of their directory covered; a rename is one change of two names."""

    def change(self, *changes: NameChange) -> None:
        """Change names in one step that no sync covers yet."""
        for change in changes:
            self._apply(self.names, change)
        self.pending.append(list(changes))

    @staticmethod
    def _apply(names: dict[str, Inode | None], change: NameChange) -> None:
        if change.inode is None and not change.is_directory:
            names.pop(change.path, None)
        else:
            names[change.path] = change.inode

    def take(self, call: Call) -> None:
        """Play a call."""
        if call.name in {"openat", "rename", "unlink", "unlinkat", "mkdir", "rmdir"}:
            paths = [each.decode() for each in call.strings]
            if call.name == "unlinkat" and paths and not paths[0].startswith("/"):
                paths[0] = f"{call.place}/{paths[0]}"
            if not all(path.startswith(self._root) for path in paths) or not paths:
                return
            self._take_names(call, paths)
            return
        path = call.place
        if call.name in SYNCS and f"{path}/".startswith(self._root):
            self._sync(path)
            return
        inode = self.names.get(path)
        if inode is None:
            return
        if call.name == "pwrite64":
            inode.write(call.number, call.strings[0])
        elif call.name in {"write", "writev"}:
            inode.write(len(inode.written), b"".join(call.strings))
        elif call.name == "ftruncate":
            inode.cut(call.number)

    def _take_names(self, call: Call, paths: list[str]) -> None:
        path = paths[0]
        if call.name == "openat":
            if "O_CREAT" in call.arguments and path not in self.names:
                self.change(NameChange(path, Inode()))
            elif "O_TRUNC" in call.arguments and (inode := self.names.get(path)) is not None:
                inode.cut(0)
        elif call.name == "mkdir":
            self.change(NameChange(path, None, is_directory=True))
        elif call.name == "rename":
            changes = []
            for name, inode in list(self.names.items()):
                if name == path or name.startswith(f"{path}/"):
                    is_directory = inode is None
                    changes.append(NameChange(name, None))
                    changes.append(NameChange(paths[1] + name[len(path) :], inode, is_directory=is_directory))
            self.change(*changes)
        elif path in self.names:
            self.change(NameChange(path, None))

    def _sync(self, path: str) -> None:
        if not self._heeds_syncs:
            return
        inode = self.names.get(path)
        if inode is not None:
            inode.sync()
            return
        waiting, self.pending = self.pending, []
        for changes in waiting:
            if any(change.path.rpartition("/")[0] == path for change in changes):
                for change in changes:
                    self._apply(self.synced_names, change)
            else:
                self.pending.append(changes)

    def image(self, target: Path, choice: str, chance: random.Random) -> None:
        """Write what a power cut may leave now."""
        names = dict(self.synced_names)
        count = chance.randint(0, len(self.pending))
        for index, changes in enumerate(self.pending):
            some = index < count if choice == "first part" else choice == "any part" and chance.random() < 0.5
            if choice in {"all names", "everything"} or some:
                for change in changes:
                    self._apply(names, change)
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir()
        for path in sorted(names):
            inode, place = names[path], target / path.removeprefix(self._root)
            if not place.parent.is_dir():
                continue  # its directory is gone
            if inode is None:
                place.mkdir(exist_ok=True)
            else:
                place.write_bytes(inode.left(choice, chance))


class Answers:
    """The answers of a node, and what they promise."""

    def __init__(self, vbuckets: list[Vbucket], persist: str) -> None:
        self._readers: dict[str, FrameReader | None] = {}
        self._by_vbuuid = {vbucket.vbuuid: vbid for vbid, vbucket in enumerate(vbuckets)}
        self._persist = persist
        self.persisted = [0] * len(vbuckets)

    def take(self, call: Call) -> None:
        """An answer begins to go out."""
        data = call.strings[0] if call.strings else b""
        if call.place not in self._readers:
            self._readers[call.place] = FrameReader() if data[:1] in {b"\x81", b"\x18"} else None
        reader = self._readers[call.place]
        if reader is not None:
            reader.receive_data(data)
            for frame in reader.frames():
                self._take_frame(frame)

    def _take_frame(self, frame: Frame) -> None:
        if frame.status:
            return
        if frame.opcode in {Opcode.SET, Opcode.DELETE} and self._persist == "every":
            vbuuid, seqno = struct.unpack(">QQ", frame.extras)
        elif frame.opcode == Opcode.OBSERVE_SEQNO:
            vbuuid, seqno = struct.unpack_from(">QQ", frame.value, 3)
        else:
            return
        vbid = self._by_vbuuid[vbuuid]
        self.persisted[vbid] = max(self.persisted[vbid], seqno)


class TracedNode(NodeProcess):
    """A node under strace."""

    def __init__(self, folder: Path, persist: str) -> None:
        self.trace = folder / "trace"
        prefix = ("strace", "-f", "--seccomp-bpf", "-xx", "-y", "-s", "4000000", "-e", f"trace={CALLS}")
        super().__init__(folder, persist, prefix=(*prefix, "-o", str(self.trace)))

    def kill(self) -> None:
        """Kill the node, which ends strace. strace passes SIGTERM on to a node that does not serve yet."""
        if self.pid:
            with suppress(ProcessLookupError):  # it was killed before
                os.kill(self.pid, signal.SIGKILL)
        else:
            self._child.terminate()
        self._child.wait(TIMEOUT_S)


class Run(KillLoop):
    """One run of a node on an empty directory, and its images.

    Args:
        heeds_syncs: whether a sync makes anything durable; without that there must be losses.
    """

    window = WINDOW

    def __init__(self, folder: Path, persist: str, seed: int, *, heeds_syncs: bool = True) -> None:
        super().__init__(folder, persist, seed)
        self._chance = random.Random(seed)
        self._heeds_syncs = heeds_syncs
        self._answered = 0
        self.images = 0
        self.survivors = 0

    def record(self) -> list[Call]:
        """Let the node work; its calls."""
        node = TracedNode(self._folder, self._persist)
        try:
            node.wait()
            self._check(node)
            self._write(node, WRITES)
        finally:
            node.kill()
        return list(calls_in(node.trace))

    def _take(self, answer: Frame) -> None:
        """After each window, wait until more is observed as persisted, so that there are many commits."""
        super()._take(answer)
        self._answered += 1
        if self._persist != "every" and self._answered % WINDOW == 0:
            deadline, before = time.monotonic() + TIMEOUT_S, self._observed
            while self._observed == before and time.monotonic() < deadline:
                time.sleep(0.001)

    @property
    def _observed(self) -> int:
        return sum(vbucket.persisted for vbucket in self.vbuckets)

    def cut(self, calls: list[Call], count: int) -> None:
        """Cut the power at `count` moments, and check the images. Raises Loss."""
        data = self._folder / "data"
        moments = sorted(self._chance.sample(range(len(calls)), min(count, len(calls))))
        disk, answers = Disk(data, heeds_syncs=self._heeds_syncs), Answers(self.vbuckets, self._persist)
        done = 0
        disk.change(NameChange(str(data), None, is_directory=True))
        for moment in moments:
            for call in calls[done:moment]:
                if call.name == "sendto":
                    answers.take(call)
                else:
                    disk.take(call)
            done = moment
            for number, choice in enumerate(CHOICES):
                target = self._folder / "image"
                disk.image(target, choice, self._chance)
                try:
                    self._check_image(target, answers.persisted)
                except Exception as error:
                    where = f"{self._persist}, before call {moment} of {len(calls)}, choice {number} ({choice})"
                    raise Loss(f"{where}: {type(error).__name__}: {error}") from error
                self.images += 1
                self.survivors += sum(answers.persisted)

    def _check_image(self, image: Path, persisted: list[int]) -> None:
        directory = DataDirectory(image, random.Random(1))
        try:
            if "default" not in directory.known:
                if any(persisted):
                    raise Loss("the bucket is gone")
                return
            with directory.open("default", VBUCKETS) as store:
                for vbid, must in enumerate(persisted):
                    vbucket = store.vbuckets.get(vbid)
                    high = 0 if vbucket is None else vbucket.high_seqno
                    if not must <= high <= len(self.vbuckets[vbid].writes):
                        raise Loss(f"vbucket {vbid}: seqnos up to {must} were persisted; there are {high}")
                    if vbucket is None:
                        continue
                    rows = self.vbuckets[vbid].writes[:high]
                    expected = {b"\0" + key: (seqno, value) for seqno, (key, value) in enumerate(rows, 1)}
                    found: dict[bytes, tuple[int, bytes | None]] = {}
                    after = 0
                    while (block := vbucket.read(after, high, snapshot_end=high, max_bytes=VIEW_BYTES)).count:
                        frames, after = bytes(block.data), block.last_seqno
                        for start, seqno in zip(block.starts, block.seqnos, strict=True):
                            frame = decode_frame(frames, int(start))
                            is_set = frame.opcode == Opcode.DCP_MUTATION
                            found[frame.key] = int(seqno), frame.value if is_set else None
                    if found != expected:
                        raise Loss(f"vbucket {vbid} is not in the state after seqno {high}")
        finally:
            directory.close()
        if not check_store(image / "default").is_sound:
            raise Loss("the store is not sound after it was opened and closed")


def run(cuts: int, runs: int, seed: int, *, shows_progress: bool) -> tuple[int, int]:
    """Runs, spread over the levels; returns the number of images and of writes that had to survive. Raises Loss."""
    images = survivors = 0
    for number in range(runs):
        level = PERSIST_LEVELS[number % len(PERSIST_LEVELS)]
        with tempfile.TemporaryDirectory(prefix="dcpstream-cuts-") as folder:
            each = Run(Path(folder), level, seed + number)
            calls = each.record()
            each.cut(calls, max(1, cuts // runs))
            images, survivors = images + each.images, survivors + each.survivors
            if shows_progress:
                print(f"{level}: {len(calls)} calls, {each.images} images, {each.survivors} survivors, 0 losses")
    return images, survivors


def main() -> int:
    """Cut the power; see the module's docstring."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--cuts", type=int, default=600, help="moments, over all runs; each gives several images")
    parser.add_argument("--runs", type=int, default=6)
    parser.add_argument("--seed", type=int, default=None)
    options = parser.parse_args()
    seed = random.SystemRandom().randrange(1 << 32) if options.seed is None else options.seed
    print(f"seed {seed}")
    logging.disable(logging.WARNING)  # each image shows what the cut left over
    started = time.monotonic()
    try:
        images, survivors = run(options.cuts, options.runs, seed, shows_progress=True)
    except Loss as loss:
        print(f"LOSS: {loss}")
        return 1
    took = time.monotonic() - started
    print(f"power cuts: {images} images, {survivors} writes that had to survive, 0 losses ({took:.0f} s)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
