"""The end of Spark's Python workers, as users see it: a sentence instead of a traceback, or nothing.

Errors. Spark puts the formatted traceback of a worker into its own message, and the sentence that helps comes last,
after some forty lines. Spark leaves the traceback out if `SPARK_HIDE_TRACEBACK` is in the worker's environment. This
module sets it at the moment when an error that is raised on purpose leaves the source. That changes nothing for other
queries, because a worker ends after an error. All other errors keep their traceback, because they are faults of the
program. The traceback that is left out goes to the log, with level INFO.

Reads that end early, as `show()` and `limit` do. Spark closes the socket while the worker writes to it, and the worker,
which ends now in any case, prints a traceback about a broken pipe. While a batch is with Spark, this module lets the
signal SIGPIPE end the worker instead, which prints nothing. While the source itself runs, the signal is blocked in its
threads, so a connection that a node closes is an error as usual.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
import threading
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from dcpstream.errors import DcpstreamError

__all__ = ["given_to_spark", "leave_if_spark_is_gone", "plain_errors"]

Item = TypeVar("Item")

_PIPE = {signal.SIGPIPE}

_logger = logging.getLogger(__name__)


@contextmanager
def plain_errors() -> Iterator[None]:
    """A context, or a decorator: an error of ours that leaves it reaches the user without a traceback."""
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
    with plain_errors(), contextlib.closing(items), _silent_end() as lent:
        for item in items:
            with lent():
                yield item


def leave_if_spark_is_gone() -> None:
    """End the process of a stream's reader if it is closing because Spark has closed its socket.

    Spark calls a reader's `stop` while the EOFError of that socket is on its way, and then prints it with a second one
    about its own answer.
    """
    if isinstance(sys.exc_info()[1], EOFError) and _is_spark_worker():
        os._exit(0)


@contextmanager
def _silent_end() -> Iterator[Any]:
    """Gives the context in which a write to a closed pipe ends the process."""
    if not _is_spark_worker() or threading.current_thread() is not threading.main_thread():
        yield contextlib.nullcontext
        return
    usual_mask = signal.pthread_sigmask(signal.SIG_BLOCK, _PIPE)
    usual_action = signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    try:
        yield _unblocked
    finally:
        signal.signal(signal.SIGPIPE, usual_action)
        signal.pthread_sigmask(signal.SIG_SETMASK, usual_mask)


@contextmanager
def _unblocked() -> Iterator[None]:
    # A signal that waits is one of the source's own connections, which has seen the error already.
    if signal.SIGPIPE in signal.sigpending():
        signal.sigwait(_PIPE)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _PIPE)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_BLOCK, _PIPE)


def _is_spark_worker() -> bool:
    """Whether Spark started this process, and not a user whose program goes on after the error."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    return spec is not None and spec.name.startswith("pyspark.")
