"""The least that a FastAPI process is: one route, served as the exporter is."""

from __future__ import annotations

import socket
import sys

import uvicorn
from fastapi import FastAPI
from fastapi.responses import PlainTextResponse


def main() -> None:
    """Serve until a signal, on a port that the system chooses."""
    app = FastAPI()

    @app.get("/livez", response_class=PlainTextResponse)
    async def livez() -> PlainTextResponse:
        return PlainTextResponse("ok\n")

    bound = socket.create_server(("127.0.0.1", 0))
    print(f"http://127.0.0.1:{bound.getsockname()[1]}", file=sys.stderr)
    config = uvicorn.Config(
        app, http="h11", ws="none", loop="asyncio", access_log=False, log_config=None
    )
    uvicorn.Server(config).run([bound])


if __name__ == "__main__":
    main()
