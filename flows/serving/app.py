"""Prefect's application, and beside its pages the reports of the runs: ``/reports/demo/report.html``.

A browser does not follow a link from a page to a file on the disk, so the reports come from the same address. Where a
password is set they are left out, since files are served without asking for it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from prefect.server.api.server import create_app
from prefect.settings import get_current_settings
from starlette.responses import FileResponse, PlainTextResponse

REPORTS = "/reports/"
FILES = {"report.html": "text/html", "curve.png": "image/png"}

Application = Callable[[Any, Any, Any], Awaitable[None]]


def create() -> Application:
    """The application that `flows.server` runs for `seeker serve`."""
    prefect: Any = create_app(final=True)
    if get_current_settings().server.api.auth_string is not None:
        return prefect

    async def application(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http" and scope["path"].startswith(REPORTS):
            await report(scope["path"], Path("runs"))(scope, receive, send)
        else:
            await prefect(scope, receive, send)

    return application


def report(path: str, runs: Path) -> Application:
    """The answer to ``/reports/<run>/<file>``: these files of a run, and nothing else of the disk."""
    parts = path.removeprefix(REPORTS).split("/")
    if len(parts) == 2 and parts[1] in FILES and parts[0] not in ("", ".", ".."):
        file = runs / parts[0] / "report" / parts[1]
        if file.is_file():
            return FileResponse(file, media_type=FILES[parts[1]], headers={"Cache-Control": "no-cache"})
    return PlainTextResponse("no such report", status_code=404)
