"""What every answer has in common, as a thin ASGI layer."""

from __future__ import annotations

from collections.abc import Mapping
from email.utils import formatdate

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

HEADERS: Mapping[str, str] = {
    "Cache-Control": "no-store",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


class Doorman:
    """Answers HEAD as GET without its body, and puts date and security headers on every answer."""

    def __init__(self, app: ASGIApp, content_security_policy: str) -> None:
        self._app = app
        self._headers = {**HEADERS, "Content-Security-Policy": content_security_policy}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        head = scope["method"] == "HEAD"

        async def send_on(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update(self._headers)
                headers["Date"] = formatdate(usegmt=True)
            elif head:
                message = {**message, "body": b""}
            await send(message)

        await self._app({**scope, "method": "GET"} if head else scope, receive, send_on)
