"""The page's server: loopback alone, one secret address, nothing for anybody else.

A request is answered only if its path begins with the token, its Host header names this very
server, and no other site's page sent it. Everything else gets an empty 404, so that neither a
stranger's page in the same browser nor another user of the machine learns that there is one.
"""

import hmac
import json
import secrets
import socket
from asyncio import Transport
from collections.abc import Callable
from pathlib import Path
from urllib.parse import unquote

import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from mpcvit.codec import encode
from mpcvit.errors import UserError
from mpcvit.hosts.door import why_no_door
from mpcvit.storage import size_text
from mpcvit.web.desk import MOST_BYTES, Desk

LOOPBACK = "127.0.0.1"
_BACKLOG = 64  # connections that are accepted in one turn of the loop
_STRANGERS = 4 * _BACKLOG  # so that no newcomer is sent away before its request was read
_ASSETS = Path(__file__).parent / "assets"
_TYPES = {"page.html": "text/html", "page.css": "text/css", "page.js": "text/javascript"}
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "connect-src 'self'; img-src 'self' blob: data:; form-action 'none'; base-uri 'none'; "
    "frame-ancestors 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


class Page:
    """A desk's page, and the address under which its owner finds it."""

    def __init__(self, desk: Desk, promise: str, *, port: int = 0) -> None:
        self._desk, self._promise = desk, promise
        try:
            self._socket = socket.create_server((LOOPBACK, port))
        except OSError as error:
            raise UserError(f"cannot listen on port {port}: {why_no_door(error)}") from error
        self.port = self._socket.getsockname()[1]
        self._token = secrets.token_urlsafe(32)
        routes = [
            Route("/", self._asset("page.html")),
            Route("/page.css", self._asset("page.css")),
            Route("/page.js", self._asset("page.js")),
            Route("/state", self._state),
            Route("/pictures", self._take, methods=["POST"]),
            Route("/start", self._start, methods=["POST"]),
            Route("/record.json", self._record),
        ]
        strangers = Strangers()
        config = uvicorn.Config(
            Guard(Starlette(routes=routes), self._token, self.port, strangers),
            http=strangers.protocol(),
            backlog=_BACKLOG,
            log_level="error",
            access_log=False,  # the address holds the token
            server_header=False,
            proxy_headers=False,
            lifespan="off",
            ws="none",
            timeout_keep_alive=30,
            timeout_graceful_shutdown=2,
        )
        self.server = uvicorn.Server(config)

    @property
    def address(self) -> str:
        return f"http://{LOOPBACK}:{self.port}/{self._token}/"

    def run(self) -> None:
        """Answer until the process is asked to end."""
        with self._socket:
            self.server.run(sockets=[self._socket])

    def _asset(self, name: str) -> Callable[[Request], Response]:
        content = (_ASSETS / name).read_bytes()
        return lambda request: Response(content, media_type=_TYPES[name])

    def _state(self, request: Request) -> Response:
        own = {"promise": self._promise, "most_bytes": MOST_BYTES}
        return JSONResponse(self._desk.show() | own)

    async def _take(self, request: Request) -> Response:
        content = bytearray()
        async for piece in request.stream():
            content += piece
            if len(content) > MOST_BYTES:
                return _refused(f"the file is larger than {size_text(MOST_BYTES)}", 413)
        name = unquote(request.headers.get("x-name", ""))
        try:
            picture = await run_in_threadpool(self._desk.add, name, bytes(content))
        except UserError as error:
            return _refused(str(error), 429)
        return JSONResponse({"number": picture.number})

    def _start(self, request: Request) -> Response:
        self._desk.start()
        return Response(status_code=204)

    def _record(self, request: Request) -> Response:
        record = self._desk.record()
        if record is None:
            return _refused("there is no record yet", 404)
        attachment = {"Content-Disposition": 'attachment; filename="record.json"'}
        text = json.dumps(encode(record), indent=1) + "\n"
        return Response(text, media_type="application/json", headers=attachment)


class Strangers:
    """Connections that have not shown the token yet: the oldest makes room for a newcomer."""

    def __init__(self) -> None:
        self._waiting: dict[object, Transport] = {}  # by address, the oldest first

    def protocol(self) -> type[H11Protocol]:
        """Return a protocol whose connections begin as strangers."""
        waiting = self._waiting

        class Protocol(H11Protocol):
            def connection_made(self, transport: Transport) -> None:  # type: ignore[override]
                super().connection_made(transport)
                if len(waiting) >= _STRANGERS:
                    waiting.pop(next(iter(waiting))).abort()
                waiting[self.client] = transport

            def connection_lost(self, exc: Exception | None) -> None:
                if waiting.get(self.client) is self.transport:
                    del waiting[self.client]
                super().connection_lost(exc)

        return Protocol

    def admit(self, address: object) -> None:
        """Take a connection for the owner's, and keep it."""
        self._waiting.pop(address, None)


class Guard:
    """Lets the owner's own page through, and gives everybody else an empty 404."""

    def __init__(self, app: ASGIApp, token: str, port: int, strangers: Strangers) -> None:
        self._app, self._token, self._strangers = app, token.encode(), strangers
        self._hosts = [f"{host}:{port}" for host in (LOOPBACK, "localhost")]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        headers = {name.decode("latin-1"): value for name, value in scope["headers"]}
        first, slash, rest = scope["path"].removeprefix("/").partition("/")
        is_owner = hmac.compare_digest(first.encode(), self._token)
        is_visit = scope["method"] == "GET" and not rest
        if not (is_owner and slash and self._is_own(headers, is_visit=is_visit)):
            await Response(status_code=404, headers=_HEADERS)(scope, receive, send)
            return
        self._strangers.admit(scope["client"])

        async def send_with_headers(message: dict[str, object]) -> None:
            if message["type"] == "http.response.start":
                own = [(name.lower().encode(), text.encode()) for name, text in _HEADERS.items()]
                message = {**message, "headers": [*message["headers"], *own]}  # type: ignore[misc]
            await send(message)

        inner = {**scope, "path": f"/{rest}", "raw_path": f"/{rest}".encode()}
        await self._app(inner, receive, send_with_headers)  # type: ignore[arg-type]

    def _is_own(self, headers: dict[str, bytes], *, is_visit: bool) -> bool:
        """Return whether a request names this server, and is of its page.

        A visit of the page itself may begin anywhere, if it fills a whole tab.
        """
        host = headers.get("host", b"").decode("latin-1")
        origin = headers.get("origin", b"").decode("latin-1")
        site = headers.get("sec-fetch-site", b"same-origin")
        return (
            host in self._hosts
            and origin in ("", f"http://{host}")
            and (
                site in (b"same-origin", b"none")
                or (is_visit and headers.get("sec-fetch-dest") == b"document")
            )
        )


def _refused(sentence: str, code: int) -> Response:
    return JSONResponse({"sentence": sentence}, status_code=code)
