"""What every answer has in common, as a thin ASGI layer."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from email.utils import formatdate

from starlette.types import ASGIApp, Message, Receive, Scope, Send

HEADERS: Mapping[str, str] = {
    "Cache-Control": "no-store",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


class Doorman:
    """Answers HEAD as GET without its body, and puts date and security headers on every answer.

    No route sets any of them, so they are added as they are: probes may come by the thousand.
    """

    def __init__(
        self,
        app: ASGIApp,
        content_security_policy: str,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._app = app
        headers = {**HEADERS, "Content-Security-Policy": content_security_policy}
        self._headers = [(name.lower().encode(), told.encode()) for name, told in headers.items()]
        self._clock = clock
        self._second = -1
        self._date = b""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        head = scope["method"] == "HEAD"

        async def send_on(message: Message) -> None:
            if message["type"] == "http.response.start":
                told = [*message["headers"], *self._headers, (b"date", self._now())]
                message = {**message, "headers": told}
            elif head:
                message = {**message, "body": b""}
            await send(message)

        await self._app({**scope, "method": "GET"} if head else scope, receive, send_on)

    def _now(self) -> bytes:
        """The date, written once a second."""
        second = int(self._clock())
        if second != self._second:
            self._second, self._date = second, formatdate(second, usegmt=True).encode()
        return self._date
