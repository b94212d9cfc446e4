"""Each error once on the terminal of a command.

Prefect prints an exception that passes through a task and two flows three times, and the command says at its end what
went wrong. Only what is printed is thinned out: Prefect's database gets every record whole.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from seeker import errors
from seeker.errors import SeekerError

# How Prefect tells of Ctrl-C and of SIGTERM; of any other crash it tells in other words.
_ENDED_BY_USER = ("Execution was aborted by an interrupt signal.", "Execution was aborted by a termination signal.")

# Tasks that are not tried again fail with such a state and no record of the error, which goes on to the flow.
_OURS = [name for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, SeekerError)]

_shown: list[tuple[BaseException, logging.LogRecord]] = []  # with the first record of each


@contextmanager
def telling_errors_once() -> Iterator[None]:
    """Around the flow of a command. The filter stays: Prefect's last words come when the process ends."""
    from prefect.logging.configuration import setup_logging

    setup_logging()  # else the first flow run does it, and there is no handler yet to put the filter on
    told = ToldOnce()
    for handler in logging.getLogger().handlers:  # Prefect prints through the root logger
        handler.addFilter(told)
    ending: BaseException | None = None
    try:
        yield
    except BaseException as error:
        ending = error
        raise
    finally:
        for error in told.untold(ending):
            print(f"seeker: {type(error).__name__}: {error}", file=sys.stderr)


def was_shown(error: BaseException) -> bool:
    """Whether its traceback stands on the terminal already."""
    return any(error is each for each, _ in _shown)


class ToldOnce(logging.Filter):
    """Leaves out a `SeekerError`, which the command tells at its end; anything else passes with its traceback, once."""

    def __init__(self) -> None:
        super().__init__()
        self._left_out: list[SeekerError] = []

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, SeekerError):
            self._left_out.append(error)
            return False
        if error is not None:
            if not was_shown(error):
                _shown.append((error, record))
            return any(record is first for _, first in _shown)  # each handler of a record asks
        message = record.getMessage()
        if message.startswith("Still processing items"):  # events that are being sent while the process ends
            return False
        return not (self._repeats(message) or any(text in message for text in _ENDED_BY_USER))

    def untold(self, ending: BaseException | None) -> list[SeekerError]:
        """What was left out and is no part of the error that ends the command."""
        told = _chain(ending)
        found: list[SeekerError] = []
        for error in self._left_out:
            if not any(error is each for each in (*told, *found)):
                found.append(error)
        return found

    def _repeats(self, message: str) -> bool:
        """The state that an error of ours, or one that stands above, put a task or flow into."""
        names = {*_OURS, *(type(error).__name__ for error, _ in _shown)}
        return "Finished in state" in message and any(f" {name}: " in message for name in names)


def _chain(error: BaseException | None) -> list[BaseException]:
    """The error, and what it was raised from or during."""
    found: list[BaseException] = []
    waiting = [error]
    while waiting:
        each = waiting.pop()
        if each is not None and not any(each is other for other in found):
            found.append(each)
            waiting += [each.__cause__, each.__context__]
    return found
