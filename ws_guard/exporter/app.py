"""The exporter's routes. Every answer comes from the last read of the board, held in memory."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any, TypeAlias

from fastapi import FastAPI, HTTPException, Query, Request, Response
from fastapi.responses import HTMLResponse, PlainTextResponse
from starlette.concurrency import run_in_threadpool

from ws_guard.board.format import RING_RUNS
from ws_guard.settings import Settings
from ws_guard.version import __version__

from . import page
from .auth import PROBES, BasicAuth, declare_users
from .checks import Examiner
from .doorman import Doorman
from .exposition import Press
from .model import Calls, Check, Health, Workers
from .refresh import Refresher, board_refresher
from .renewal import Renewal
from .users import Users

_Responses: TypeAlias = dict[int | str, dict[str, Any]]
_Label = Annotated[str, Query(min_length=1, max_length=128)]
_Limit = Annotated[int, Query(ge=1, le=RING_RUNS)]
_NOT_READY: _Responses = {503: {"model": Health, "description": "A check fails."}}
_PLAIN: dict[str, Any] = {"content": {"text/plain": {}}}


def create_app(
    settings: Settings, refresher: Refresher | None = None, users: Renewal[Users] | None = None
) -> FastAPI:
    """The exporter over the board of the settings; with `users`, for them alone.

    The refresher's thread lives as long as the application; `BoardError` if the settings name a
    group that does not exist.
    """
    refresher = refresher or board_refresher(settings)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        await run_in_threadpool(refresher.start)
        yield
        await run_in_threadpool(refresher.stop)

    app = FastAPI(
        title="ws_guard exporter",
        summary="GPU workspaces of FlashInfer's trtllm-gen attention, worker by worker",
        version=__version__,
        lifespan=lifespan,
        # Their pages load scripts from elsewhere; the schema itself is at /openapi.json.
        docs_url=None,
        redoc_url=None,
        # A scraper that does not follow redirects must not take one for an answer.
        redirect_slashes=False,
    )
    examiner = Examiner(refresher.latest, settings)
    _add_probes(app, examiner, refresher)
    _add_metrics(app, settings, refresher)
    _add_board(app, examiner, refresher)
    if users is not None:
        open_paths = frozenset() if settings.basic_auth_probes else PROBES
        app.add_middleware(BasicAuth, users=users, open_paths=open_paths)
        declare_users(app.openapi(), open_paths)
    # Added last, it is outermost: a refusal has the headers as well.
    app.add_middleware(Doorman, content_security_policy=page.CONTENT_SECURITY_POLICY)
    return app


def _add_probes(app: FastAPI, examiner: Examiner, refresher: Refresher) -> None:
    @app.get("/health", responses=_NOT_READY, tags=["probes"])
    async def health(response: Response) -> Health:
        """Every check and every worker; 200 when ready, else 503."""
        found = examiner.health()
        response.status_code = 200 if found.ready else 503
        return found

    @app.get(
        "/readyz",
        response_class=PlainTextResponse,
        responses={503: {**_PLAIN, "description": "A check fails."}},
        tags=["probes"],
    )
    async def readyz(verbose: str | None = None) -> PlainTextResponse:
        """200 when no check fails, else 503; `?verbose` gives one line per check."""
        found = examiner.health()
        body = readyz_text(found, verbose is not None)
        return PlainTextResponse(body, 200 if found.ready else 503)

    @app.get(
        "/livez",
        response_class=PlainTextResponse,
        responses={503: {**_PLAIN, "description": "The exporter itself is broken."}},
        tags=["probes"],
    )
    async def livez() -> PlainTextResponse:
        """200 while the exporter works, whatever happened to the engine or the board."""
        if refresher.working:
            return PlainTextResponse("ok\n")
        return PlainTextResponse("the thread that reads the board has ended\n", 503)


def _add_metrics(app: FastAPI, settings: Settings, refresher: Refresher) -> None:
    press = Press(settings)

    # Not `async`: a large board takes tens of milliseconds to write down, and /livez waits for no
    # one.
    @app.get(
        "/metrics",
        response_class=PlainTextResponse,
        responses={503: {**_PLAIN, "description": "The board cannot be read."}},
        tags=["metrics"],
    )
    def metrics(request: Request) -> Response:
        """Prometheus text, or OpenMetrics for those who accept it."""
        snapshot = refresher.latest()
        if snapshot.fault:
            return PlainTextResponse(f"the board cannot be read: {snapshot.fault}\n", 503)
        told = press.exposition(snapshot, request.headers.get("accept", ""))
        return Response(told.text, headers={"Content-Type": told.content_type})


def _add_board(app: FastAPI, examiner: Examiner, refresher: Refresher) -> None:
    @app.get("/api/v1/workers", tags=["board"])
    async def workers() -> Workers:
        """The workers of the board."""
        return Workers([one.worker for one in refresher.latest().roster.everyone])

    @app.get(
        "/api/v1/calls",
        responses={404: {"description": "No such worker is on the board."}},
        tags=["board"],
    )
    async def calls(engine: _Label, rank: _Label, limit: _Limit = RING_RUNS) -> Calls:
        """A worker's last calls, newest first."""
        for one in refresher.latest().roster.exported:
            if one.worker.identity == (engine, rank):
                newest = list(reversed(one.calls[-limit:]))
                return Calls(engine, rank, [one.seen_call(call) for call in newest])
        raise HTTPException(
            404, f"no worker with engine {engine!r} and rank {rank!r}; see /api/v1/workers"
        )

    turn = threading.Lock()  # as at the press: of many threads at work /livez would come last

    @app.get("/", response_class=HTMLResponse, include_in_schema=False)
    def status_page() -> HTMLResponse:
        with turn:
            return HTMLResponse(page.render(examiner.health(), refresher.log.recent))


def readyz_text(health: Health, verbose: bool) -> str:
    """The answer of /readyz."""
    if verbose:
        verdict = "readyz check passed" if health.ready else "readyz check failed"
        return "\n".join([*map(_check_line, health.checks), verdict, ""])
    failed = [check.name for check in health.checks if check.state == "fail"]
    return f"not ready: {', '.join(failed)}\n" if failed else "ok\n"


def _check_line(check: Check) -> str:
    if check.state == "fail":
        return f"[-]{check.name} failed: {check.detail}"
    return f"[+]{check.name} {check.state}" + (f": {check.detail}" if check.detail else "")
