"""Typed errors, one per boundary crossed.

Everything that Seeker raises on purpose derives from `SeekerError`, so that a flow can print it without a
traceback. The message says what was expected, what was found and what to do.
"""

from __future__ import annotations

import errno
import reprlib
from pathlib import Path

_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 80


class SeekerError(Exception):
    """Base of all errors that Seeker raises on purpose."""


class ConfigError(SeekerError):
    """A preset, field, flag or environment value that cannot be used."""


class RecordError(SeekerError):
    """A record of a question or corpus file that cannot be used.

    Example: ``train.jsonl:17: field 'answer': expected a non-empty string, found ''; fix the record or pass
    --skip-bad-records``.
    """

    def __init__(
        self,
        path: str | Path,
        line: int | None,
        field: str,
        value: object,
        expected: str,
        unit: str = "line",
        also: tuple[str, ...] = (),
    ) -> None:
        """`line` counts from 1 in `unit`s ("line" of a text file, "record" of a table); `also` summarises others."""
        self.path = str(path)
        self.line = line
        self.field = field
        self.value = value
        self.expected = expected
        self.unit = unit
        self.also = also
        more = "".join(f"\n  also {summary}" for summary in also)
        super().__init__(f"{self.summary()}; fix the record or pass --skip-bad-records{more}")

    def __reduce__(self) -> tuple[type[RecordError], tuple[object, ...]]:
        # Exception's own would call the class with the finished message as its only argument.
        return type(self), (self.path, self.line, self.field, self.value, self.expected, self.unit, self.also)

    def summary(self) -> str:
        """Place, field, expectation and value, without the remedy."""
        place = self.path if self.line is None else f"{self.path}:{self.line}"
        if self.unit != "line" and self.line is not None:
            place = f"{self.path}: {self.unit} {self.line}"
        return f"{place}: field {self.field!r}: expected {self.expected}, found {_SHORT.repr(self.value)}"


class DataError(SeekerError):
    """A data set as a whole that cannot be used (empty corpus, a question in both splits, a missing file)."""


class PolicyError(SeekerError):
    """A policy file, tokenizer or published version that cannot be used."""


class RunDirectoryError(SeekerError):
    """A run directory that is locked, damaged, or belongs to another configuration."""


class GroupError(SeekerError):
    """Trajectories whose group ids, sizes or rewards do not fit together. The message names the group."""


class BatchError(SeekerError):
    """A batch that cannot be trained on: damaged bytes, arrays that do not fit, a value that is not finite."""


class UpdateError(SeekerError):
    """An update that was refused before it changed anything: the wrong step, or a gradient that is not finite."""


class CheckpointError(SeekerError):
    """A checkpoint that cannot be read or belongs to another policy."""


class LockedError(RunDirectoryError):
    """A run directory that another process is writing (its id in the message)."""


class StorageError(SeekerError):
    """The disk refused: full, read-only, not permitted, or the run directory is gone.

    The run stops at its last commit and goes on when this is mended. It is tried again by nobody: a disk that is full
    stays full, and each try would write more.
    """


def explain_storage(error: OSError) -> str:
    """What to do about an error of the disk."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "the disk or the quota is full: free some space and resume the run, which goes on from its last commit"
    if error.errno == errno.EFBIG:
        return "the file is larger than is allowed here: raise the limit (ulimit -f) and resume the run"
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return "give this user the right to write there and resume the run, which goes on from its last commit"
    if isinstance(error, FileNotFoundError):
        return "put the run directory back (moved, deleted or unmounted?) and resume the run"
    return "look at the disk and its file system, then resume the run, which goes on from its last commit"


class InfrastructureError(SeekerError):
    """Something other than the policy failed: retriever, executor, object store, cluster.

    Such a failure never becomes a reward: the call is done again, then its groups are dropped whole.
    """


class RetrievalError(InfrastructureError):
    """The retriever behind a search failed."""


class ClusterError(InfrastructureError):
    """The cluster, one of its executors or an object failed or cannot be reached."""


class CallError(ClusterError):
    """A service call failed remotely. Holds the remote type's name and traceback text."""

    def __init__(self, message: str, remote_type: str = "", remote_traceback: str = "") -> None:
        self.remote_type = remote_type
        self.remote_traceback = remote_traceback
        super().__init__(message)


class GangLostError(ClusterError):
    """A member of a gang was lost, and its generation ended with it: form the gang again.

    `rank` is -1 and `executor` empty where it cannot be known which member it was.
    """

    def __init__(self, message: str, rank: int = -1, executor: str = "") -> None:
        self.rank = rank
        self.executor = executor
        super().__init__(message)


class RankError(InfrastructureError):
    """A trainer rank that cannot join the others, or that lost one of them (named in the message)."""


class PortTakenError(RankError):
    """The rendezvous port belongs to another process: choose another."""


class DeadlineError(ClusterError):
    """A call, a connection or a start-up did not finish within its deadline (seconds in the message)."""


class UnreachableError(DeadlineError):
    """A named cluster that does not answer. The message holds what and remedy, and who named it."""

    def __init__(self, message: str, what: str = "", remedy: str = "") -> None:
        self.what = what or message
        self.remedy = remedy
        super().__init__(message)


class PayloadError(ClusterError):
    """A call's pickled arguments or value are above 128 KiB (large things travel as objects), or cannot be pickled."""


class ObjectMissingError(ClusterError):
    """An object key that the store does not hold."""


class LostStepError(InfrastructureError):
    """Too many groups of a step, questions of an evaluation, or trainers: the run stops at its last commit."""


class PublishError(InfrastructureError):
    """A staged policy version did not read back as it was written."""
