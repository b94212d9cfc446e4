"""An ASGI application that answers 200 to everything, in place of Prefect's, which takes long to start."""

from __future__ import annotations

from typing import Any


def create() -> Any:
    async def application(scope: dict[str, Any], receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            while True:
                message = await receive()
                await send({"type": f"{message['type']}.complete"})
                if message["type"] == "lifespan.shutdown":
                    return
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"true"})

    return application


def fail() -> Any:
    raise RuntimeError("a database that cannot be opened")
