"""What the tests hand to a Runner: functions, classes and objects. They travel by value and need flamepy only."""

from __future__ import annotations

import os
import time


def add(left, right):
    return left + right


def kind_of(value):
    return type(value).__name__


def describe(*args, **kwargs):
    return [kind_of(value) for value in args], {key: kind_of(value) for key, value in kwargs.items()}


def nap(seconds):
    time.sleep(seconds)
    return os.getpid(), seconds


def fail(text):
    raise ValueError(text)


def nothing():
    return None


def zeros(num_bytes):
    return bytes(num_bytes)


def variable(name):
    return os.environ.get(name)


class Counter:
    """A class keeps its state in each process, an object in the object cache."""

    label = "counter"

    def __init__(self, total=0):
        self.total = total

    def add(self, value):
        self.total += value
        return self.total

    def where(self):
        self.total += 1
        return os.getpid(), self.total

    def close(self):
        raise AssertionError("never called: services have their own close")

    def _hidden(self):
        return None


class Broken:
    """Cannot be constructed on a node."""

    def __init__(self):
        raise RuntimeError("no such engine here")

    def work(self):
        return None


def nested_sum(application, depth):
    """Adds up 1..depth, each term in a task of its own that is called from the task before."""
    from flamepy.runner import Runner

    if depth == 0:
        return 0
    with Runner(application) as runner:
        inner = runner.service(nested_sum)
        below = inner(application, depth - 1).get()
        inner.close()
    return depth + below


def call_plain(application, data):
    """A task that opens a session of another application and calls it."""
    import flamepy

    session = flamepy.create_session(application, max_instances=1)
    try:
        return session.invoke(data)
    finally:
        session.close()


def fan_out(application, values):
    """A task that spreads its work over another service."""
    from flamepy.runner import Runner

    def square(value):
        return value * value

    with Runner(application) as runner:
        service = runner.service(square, autoscale=False)
        total = sum(runner.get([service(value) for value in values]))
        service.close()
    return total
