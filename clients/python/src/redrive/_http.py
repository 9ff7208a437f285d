"""Requests and responses, as both transports carry them."""

from __future__ import annotations

from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any, Mapping, Optional
from urllib.parse import quote, urlencode, urlsplit


@dataclass(frozen=True)
class Request:
    """One HTTP request; `target` is path and query."""

    method: str
    target: str
    headers: Mapping[str, str]
    body: Optional[bytes]
    timeout: float


@dataclass(frozen=True)
class Response:
    """One HTTP response, read to its end."""

    status: int
    retry_after: Optional[str]
    body: bytes


@dataclass(frozen=True)
class ServerUrl:
    """Address of a server: scheme, host, port and a path that begins every target."""

    scheme: str
    host: str
    port: int
    prefix: str

    @classmethod
    def parse(cls, text: str) -> ServerUrl:
        """Reads `http://127.0.0.1:8080`. Raises `ValueError` with what to change."""
        parts = urlsplit(text)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"{text!r} is not the address of a server: write http://host:port or https://host")
        if parts.username or parts.query or parts.fragment:
            raise ValueError("the address of a server has no user, query or fragment: pass the token as token=…")
        port = parts.port or (443 if parts.scheme == "https" else 80)
        return cls(parts.scheme, parts.hostname, port, parts.path.rstrip("/"))

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}{self.prefix}"


def target(path: str, query: Optional[Mapping[str, Any]] = None) -> str:
    """Joins a path and the query fields that are set."""
    fields = {name: _text(value) for name, value in (query or {}).items() if value is not None}
    return f"{path}?{urlencode(fields, quote_via=quote)}" if fields else path


def segment(text: object) -> str:
    """Encodes one part of a path."""
    return quote(str(text), safe="")


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def read_retry_after(text: Optional[str], now: float) -> Optional[float]:
    """Reads `Retry-After`: seconds, or a date. Anything else counts as missing."""
    if text is None:
        return None
    text = text.strip()
    if text.isascii() and text.isdigit():
        return float(text[:12])
    try:
        return max(0.0, parsedate_to_datetime(text).timestamp() - now)
    except (TypeError, ValueError, IndexError, OverflowError):
        return None
