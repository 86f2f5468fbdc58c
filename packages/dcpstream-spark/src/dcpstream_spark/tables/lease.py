"""The lease of a pipeline's path: one process at a time keeps its tables.

Theory of operation. The directory `dcp-lease` of the checkpoint has a file whose name is a number and whose content
says who holds the lease: host, process, and the time of the last renewal. The file with the highest number counts.

- A holder writes its own file again every `RENEW_S` seconds, and marks it as released at the end.
- Whoever wants the lease while another file counts makes the file with the next number. That is allowed if the lease
  was released, if its holder is a process of the same machine that has ended, or if it was not renewed for `LEASE_S`
  seconds. Clocks differ between machines, and the clock of one machine may jump. So a lease whose time is more than
  `LEASE_S` from now, before or after, is watched for `WATCH_S` seconds, in which a living holder renews it.
- A local file system lets one of two processes make the same file. Other file systems may let both, and the later one
  replaces the file. So on those a new holder waits `SETTLE_S` seconds and looks whose file it is.
- A holder finds out with each renewal that another file counts, or that its own has another holder: it has lost the
  lease. Before each commit it looks as well if the last renewal is not recent, as after the process was suspended.

A process may be suspended between that look and its commit, or write its file later than `SETTLE_S`. A lease cannot
prevent this. The tables do: a commit to `changes` carries its batch, and is refused if the table holds that batch.

Files of lower numbers are deleted. The highest one stays after a release, so that numbers never begin again.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import socket
import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from dcpstream.errors import LeaseRefused
from dcpstream.runtime import Clock, SystemRandom
from dcpstream_spark.tables.small_files import SmallFiles

DIRECTORY = "dcp-lease"
"""Directory of the checkpoint, next to Spark's own."""

RENEW_S = 10.0
"""Seconds between two renewals: one small file, which costs nothing compared with a batch a second."""

LEASE_S = 60.0
"""Seconds without a renewal after which others may take the lease: several renewals may fail or be late before. A
pipeline whose machine died can start on another one after this time."""

FRESH_S = 1.5 * RENEW_S
"""Seconds after a renewal during which a commit needs no look at the lease."""

WATCH_S = 1.5 * RENEW_S
"""Seconds for which a lease of a living process, or of another machine, must stay unchanged before it counts as
expired."""

SETTLE_S = 2.0
"""Seconds after which a process that saw no other holder has written its file, on file systems that let two of them
make the same one."""

ATTEMPTS_MAX = 3
"""Attempts to make the next file while others make it first."""

_log = logging.getLogger(__name__)

_working: dict[str, Callable[[], bool]] = {}
"""Holder of this process → whether it is at work: a pipeline that failed and was never stopped is not."""

_working_lock = threading.Lock()


@dataclass(frozen=True, slots=True)
class Holder:
    """The content of a lease's file.

    Attributes:
        holder: a name that nobody else has.
        host: the machine's name, for people.
        machine: what is the same for two processes only if one can see whether the other is alive.
        pid: the process.
        began: when the process began, in the machine's own count; distinguishes it from a later one with the same
            number.
        renewed: seconds since 1970.
        is_released: nobody holds it any more.
    """

    holder: str
    host: str
    machine: str
    pid: int
    began: str
    renewed: float
    is_released: bool = False

    @classmethod
    def of_this_process(cls) -> Holder:
        """A new holder."""
        pid = os.getpid()
        return cls(
            SystemRandom().getrandbits(128).to_bytes(16).hex(), socket.gethostname(), _machine(), pid, _began(pid), 0.0
        )

    @classmethod
    def parse(cls, content: bytes) -> Holder | None:
        """The holder in a file; None if the file is not whole."""
        try:
            return cls(**json.loads(content))
        except (ValueError, TypeError):
            return None

    def to_bytes(self) -> bytes:
        """The content of the file."""
        return json.dumps(asdict(self)).encode()

    @property
    def is_dead(self) -> bool:
        """Whether its process is known to have ended."""
        if self.machine != _machine():
            return False
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return True
        except OSError:
            return False  # it is there, of another user
        return _began(self.pid) != self.began

    def shown(self) -> str:
        """For a message."""
        time = datetime.fromtimestamp(self.renewed, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
        return f"process {self.pid} on {self.host}, which last renewed its lease at {time}"


@dataclass(frozen=True, slots=True)
class Terms:
    """A held lease, for a process that works for its holder.

    Attributes:
        number: of the file.
        holder: its name.
    """

    number: int
    holder: str

    def verifier(self, files: Callable[[], SmallFiles], path: str) -> Callable[[], None]:
        """A function that raises `LeaseRefused` unless this lease counts and is not released.

        Args:
            files: gives those of the lease's directory.
            path: of the pipeline, for messages.
        """

        def verify() -> None:
            number, content = _newest_of(files())
            found = Holder.parse(content)
            if number != self.number or (found is not None and (found.holder != self.holder or found.is_released)):
                who = "nobody" if found is None or found.is_released else found.shown()
                raise LeaseRefused(
                    f"{path}: its tables are now kept by {who}, and no longer by the client that started this query. "
                    "The query ends, and nothing is lost: the next one goes on."
                )

        return verify


class Lease:
    """The lease of one pipeline.

    Args:
        files: of the lease's directory.
        path: of the pipeline, for messages.
        clock: for the times of renewals.
        wait: waits for some seconds.
        me: the holder.
    """

    def __init__(
        self,
        files: Callable[[], SmallFiles],
        path: str,
        clock: Clock,
        *,
        wait: Callable[[float], object] | None = None,
        me: Holder | None = None,
    ) -> None:
        self._open = files
        self._path = path
        self._clock = clock
        self._wait = wait or threading.Event().wait
        self._me = me or Holder.of_this_process()
        # Guards what follows, and is held while the files are read and written.
        self._lock = threading.RLock()
        self._files: SmallFiles | None = None
        self._number: int | None = None
        self._renewed = 0.0
        self._ended = threading.Event()

    @property
    def is_held(self) -> bool:
        """Whether it was acquired, and neither released nor lost."""
        return self._number is not None

    @property
    def terms(self) -> Terms:
        """The lease that is held, for another process."""
        assert self._number is not None
        return Terms(self._number, self._me.holder)

    def acquire(self, is_working: Callable[[], bool]) -> None:
        """Take the lease, or keep it.

        Args:
            is_working: whether the pipeline is at work, for others of this process.

        Raises:
            LeaseRefused: another pipeline holds it.
        """
        with self._lock:
            if self.is_held:
                return
            files = self._files = self._open()
            for _ in range(ATTEMPTS_MAX):
                number, holder = self._newest(files)
                if number and not self._is_free(files, number, holder):
                    break
                self._renewed = self._clock.monotonic()
                if not files.create(str(number + 1), self._content()):
                    continue
                if not files.is_exclusive:
                    self._wait(SETTLE_S)
                newest, found = self._newest(files)
                if newest == number + 1 and found is not None and found.holder == self._me.holder:
                    self._begin(files, newest, is_working)
                    return
            _, holder = self._newest(files)
            who = "another pipeline" if holder is None else holder.shown()
            raise LeaseRefused(
                f"{self._path}: its tables are kept by {who}. Two pipelines must not keep the same tables. Stop the "
                f"other one; if it died, its lease ends {LEASE_S:.0f} seconds after the last renewal."
            )

    def _begin(self, files: SmallFiles, number: int, is_working: Callable[[], bool]) -> None:
        self._number = number
        self._ended = threading.Event()
        with _working_lock:
            _working[self._me.holder] = is_working
        for name in files.contents():
            if name.isdecimal() and int(name) < number:
                with contextlib.suppress(Exception):
                    files.delete(name)

    def verify(self) -> None:
        """Make sure that nobody has taken the lease; does nothing if it was never acquired.

        Raises:
            LeaseRefused: somebody has.
        """
        with self._lock:
            if self.is_held and self._clock.monotonic() - self._renewed > FRESH_S:
                self.renew()

    def renew(self) -> None:
        """Renew the lease.

        Raises:
            LeaseRefused: somebody has taken it.
        """
        with self._lock:
            if self._number is None or self._files is None:
                return
            now = self._clock.monotonic()
            number, holder = self._newest(self._files)
            if number != self._number or (holder is not None and holder.holder != self._me.holder):
                self._forget()
                who = "another pipeline" if holder is None else holder.shown()
                raise LeaseRefused(
                    f"{self._path}: its tables are now kept by {who}, because this process did not renew its lease in "
                    "time. It was suspended, or could not write to the checkpoint. It stops, and nothing is lost: the "
                    "other one goes on."
                )
            self._files.replace(str(number), self._content())
            self._renewed = now

    def keep(self, on_lost: Callable[[LeaseRefused], None]) -> None:
        """Renew the lease in a thread, until it is released or lost, or its pipeline has stopped working.

        Args:
            on_lost: called in that thread.
        """
        with self._lock:
            if not self.is_held:
                return
            ended = self._ended
        threading.Thread(target=self._keep, args=[ended, on_lost], name="dcpstream-lease", daemon=True).start()

    def _keep(self, ended: threading.Event, on_lost: Callable[[LeaseRefused], None]) -> None:
        idle = 0
        while not ended.wait(RENEW_S):
            with _working_lock:
                is_working = _working.get(self._me.holder, lambda: False)
            try:
                # Twice, because a query may just be starting again.
                idle = 0 if is_working() else idle + 1
                if idle > 1:
                    self.release()
                    return
                self.renew()
            except LeaseRefused as error:
                if is_working():
                    on_lost(error)
                return
            except Exception as error:  # noqa: BLE001 - whatever a file system raises
                _log.warning("%s: the lease could not be renewed: %s", self._path, error)

    def release(self) -> None:
        """Let others have it. A second call does nothing."""
        with self._lock:
            if self._number is None or self._files is None:
                return
            try:
                number, holder = self._newest(self._files)
                if number == self._number and holder is not None and holder.holder == self._me.holder:
                    self._files.replace(str(number), self._content(is_released=True))
            except Exception as error:  # noqa: BLE001 - whatever a file system raises
                _log.warning("%s: the lease could not be released, and will expire: %s", self._path, error)
            finally:
                self._forget()

    def _forget(self) -> None:
        self._number = None
        self._ended.set()
        with _working_lock:
            _working.pop(self._me.holder, None)

    def _content(self, *, is_released: bool = False) -> bytes:
        return replace(self._me, renewed=self._clock.time_ns() / 1e9, is_released=is_released).to_bytes()

    def _newest(self, files: SmallFiles) -> tuple[int, Holder | None]:
        """The highest number, 0 for none, and its holder; None if its file is not whole."""
        number, content = _newest_of(files)
        return number, Holder.parse(content)

    def _is_free(self, files: SmallFiles, number: int, holder: Holder | None) -> bool:
        """Whether the lease that counts may be taken."""
        if holder is not None:
            if holder.is_released or holder.is_dead:
                return True
            if (holder.machine, holder.pid, holder.began) == (self._me.machine, self._me.pid, self._me.began):
                with _working_lock:
                    is_working = _working.get(holder.holder)
                return is_working is None or not is_working()
            if abs(self._clock.time_ns() / 1e9 - holder.renewed) <= LEASE_S:
                return False
        before = _newest_of(files)
        self._wait(WATCH_S)
        return _newest_of(files) == before and before[0] == number


def _newest_of(files: SmallFiles) -> tuple[int, bytes]:
    """The highest number and its content; 0 for none."""
    contents = files.contents()
    number = max((int(name) for name in contents if name.isdecimal()), default=0)
    return number, contents.get(str(number), b"")


def _machine() -> str:
    """The machine since its start, and the set of processes that this one sees. A container has one of its own."""
    parts = [socket.gethostname()]
    with contextlib.suppress(OSError):
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip())
    with contextlib.suppress(OSError):
        parts.append(str(Path("/proc/self/ns/pid").readlink()))
    return " ".join(parts)


def _began(pid: int) -> str:
    """Time when a process began, in ticks since the start of the machine; empty if it has ended, or is not known."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    # After the name in parentheses: the state is the third field of the file, and the start the 22nd.
    fields = stat.rpartition(")")[2].split()
    return "" if fields[0] in {"Z", "X"} else fields[19]
