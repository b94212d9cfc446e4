"""The service behind the tests of the core API. Run as a script on the cluster's nodes, from its source alone.

A call is a verb and its argument; anything else is answered by the session's common data and the input.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time

import flamepy


class Plain(flamepy.FlameService):
    def __init__(self):
        self.num_calls = 0

    def on_session_enter(self, context):
        self.context = context
        self.common = context.common_data() or b""
        if self.common == b"refuse":
            raise RuntimeError("cannot enter this session")

    def on_task_invoke(self, context):
        self.num_calls += 1
        verb, _, argument = (context.input or b"").partition(b" ")
        method = getattr(self, "do_" + verb.decode("ascii", "replace"), None)
        return self.common + (context.input or b"") if method is None else method(context, argument)

    def on_session_leave(self):
        if self.common.startswith(b"leave "):
            from flamepy.core import cache

            cache.patch_object(cache.ObjectRef(*self.common[6:].decode().split(" ")), "left")

    def do_none(self, context, argument):
        return None

    def do_fail(self, context, argument):
        raise ValueError(argument.decode())

    def do_sleep(self, context, argument):
        time.sleep(float(argument))
        return b"slept"

    def do_span(self, context, argument):
        start = time.time()
        time.sleep(float(argument))
        return json.dumps([os.getpid(), start, time.time()]).encode()

    def do_size(self, context, argument):
        return str(len(argument)).encode()

    def do_make(self, context, argument):
        return bytes(int(argument))

    def do_about(self, context, argument):
        application = self.context.application
        about = {
            "pid": os.getpid(),
            "executor": os.path.basename(os.environ["FLAME_INSTANCE_ENDPOINT"]).rpartition(".")[0],
            "num_calls": self.num_calls,
            "num_threads": threading.active_count(),
            "session": self.context.session_id,
            "task": [context.session_id, context.task_id],
            "application": [application.name, application.command, application.working_directory, application.url],
            "directory": os.getcwd(),
            "arguments": sys.argv[1:],
            "environment": {name: value for name, value in os.environ.items() if name.startswith(("FLAME_", "PLAIN_"))},
        }
        return json.dumps(about).encode()


if __name__ == "__main__":
    flamepy.run(Plain())
