"""Spark's Python workers around the source: what they cost between two calls, and how users see their end.

Cost. Spark's daemon runs a full garbage collection after each call, in every kind of worker: those that make the
source, plan, read, and write. Over all imported modules, that takes 15 to 20 ms of CPU time. So the first call of Spark
in a worker excludes from collection what is there.

Errors. Spark puts the formatted traceback of a worker into its own message, and the sentence that helps comes last,
after some forty lines. Spark leaves the traceback out if `SPARK_HIDE_TRACEBACK` is in the worker's environment. This
module sets it at the moment when an error that is raised on purpose leaves the source. That changes nothing for other
queries, because a worker ends after an error. All other errors keep their traceback, because they are faults of the
program. The traceback that is left out goes to the log, with level INFO.

Reads that end early, as `show()` and `limit` do, and the end of the session. Spark closes the socket while a worker
writes to it. A worker without work answers the closing itself with an error: one that looked for formats, one that made
the source, and one that planned are left when a session stops. The worker, which ends now in any case, prints a
traceback about a broken pipe. A handler of SIGPIPE, the signal that comes with that error, ends the worker one step
earlier, in the same way. It does nothing anywhere else, so every other broken pipe in the process is the usual error.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import signal
import sys
import threading
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

from dcpstream.errors import DcpstreamError

Item = TypeVar("Item")

_logger = logging.getLogger(__name__)
_is_frozen = False


@contextmanager
def called_by_spark() -> Iterator[None]:
    """A context, or a decorator, for everything that Spark calls in a worker.

    An error of ours that leaves it reaches the user without a traceback, the worker's modules are not searched for
    garbage, and the worker ends without a traceback when Spark leaves. In a process that Spark did not start, it does
    nothing.
    """
    _freeze_garbage_collector()
    end_quietly_when_spark_leaves()
    try:
        yield
    except DcpstreamError as error:
        if not _is_spark_worker():
            raise
        _logger.info("the error that Spark reports, with its traceback", exc_info=True)
        os.environ["SPARK_HIDE_TRACEBACK"] = "1"
        raise error from None


def given_to_spark(items: Generator[Item, Any, Any]) -> Generator[Item, None, None]:
    """The items, with plain errors and without a word when Spark wants no more of them."""
    # Before the first item is asked for, because Spark may leave earlier than that.
    end_quietly_when_spark_leaves()
    return _passed_on(items)


def _passed_on(items: Generator[Item, Any, Any]) -> Generator[Item, None, None]:
    with called_by_spark(), contextlib.closing(items):
        yield from items


def leave_if_spark_is_gone() -> None:
    """End the process of a stream's reader if it is closing because Spark has closed its socket.

    Spark calls a reader's `stop` while the error of that socket is on its way, and then prints it with a second one
    about its own answer. The error is an EOFError where the reader waits for a call, and another where it answers one.
    """
    if isinstance(sys.exc_info()[1], EOFError | BrokenPipeError | ConnectionResetError) and _is_spark_worker():
        os._exit(0)


def _freeze_garbage_collector() -> None:
    """Exclude what the worker has loaded from garbage collection, once per process."""
    global _is_frozen  # noqa: PLW0603 - a fact about this process
    if not _is_frozen and _is_spark_worker():
        _is_frozen = True
        gc.collect()
        gc.freeze()


def end_quietly_when_spark_leaves() -> None:
    """From now on, end the process without a traceback when it writes to a socket that Spark has closed.

    In a process that Spark did not start, it does nothing.
    """
    if (
        _is_spark_worker()
        and threading.current_thread() is threading.main_thread()
        and signal.getsignal(signal.SIGPIPE) is signal.SIG_IGN
    ):
        signal.signal(signal.SIGPIPE, _on_broken_pipe)


def _on_broken_pipe(_number: int, frame: FrameType | None) -> None:
    """End the process where Spark's daemon is about to report that it could not give its last bytes to Spark."""
    if not isinstance(sys.exc_info()[1], BrokenPipeError):
        return
    while frame is not None and frame.f_globals.get("__name__") in {"os", "collections.abc", "_collections_abc"}:
        frame = frame.f_back  # the daemon reads the environment first
    code = frame.f_code if frame is not None else None
    if code is not None and code.co_name == "worker" and Path(code.co_filename).parts[-2:] == ("pyspark", "daemon.py"):
        os._exit(1)


def _is_spark_worker() -> bool:
    """Whether Spark started this process, and not a user whose program goes on after the error."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    return spec is not None and spec.name.startswith("pyspark.")
