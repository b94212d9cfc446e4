"""Typed errors, one per boundary crossed.

Everything that Seeker raises on purpose derives from `SeekerError`, so that a flow can print it without a
traceback. The message says what was expected, what was found and what to do.
"""

from __future__ import annotations

from pathlib import Path


class SeekerError(Exception):
    """Base of all errors that Seeker raises on purpose."""


class ConfigError(SeekerError):
    """A preset, field, flag or environment value that cannot be used."""


class RecordError(SeekerError):
    """A record of a question or corpus file that cannot be used.

    Example: ``train.jsonl:17: field 'answer': expected a non-empty string, found ''; fix the record or pass
    --skip-bad-records``.
    """

    def __init__(self, path: str | Path, line: int | None, field: str, value: object, expected: str) -> None:
        self.path = str(path)
        self.line = line
        self.field = field
        self.value = value
        self.expected = expected
        place = self.path if line is None else f"{self.path}:{line}"
        shown = repr(value)
        if len(shown) > 80:
            shown = shown[:77] + "..."
        super().__init__(
            f"{place}: field {field!r}: expected {expected}, found {shown}; "
            "fix the record or pass --skip-bad-records"
        )


class DataError(SeekerError):
    """A data set as a whole that cannot be used (empty corpus, a question in both splits, a missing file)."""


class PolicyError(SeekerError):
    """A policy file, tokenizer or published version that cannot be used."""


class RunDirectoryError(SeekerError):
    """A run directory that is locked, damaged, or belongs to another configuration."""


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


class DeadlineError(ClusterError):
    """A call, a connection or a start-up did not finish within its deadline (seconds in the message)."""


class PayloadError(ClusterError):
    """A call's pickled arguments are above 128 KiB: large things travel as objects."""


class ObjectMissingError(ClusterError):
    """An object key that the store does not hold."""


class PublishError(InfrastructureError):
    """A staged policy version did not read back as it was written."""
