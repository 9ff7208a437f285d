"""Client of Redrive, the durable event engine: publish events, consume them, verify webhooks, retry calls.

    from redrive import Redrive

    client = Redrive("http://127.0.0.1:8080")
    client.publish("order.created", {"order": 7})

`AsyncRedrive` has the same methods for asyncio and needs the extra `redrive[async]`. `redrive.retry` retries calls in this process.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ._json import UNSET
from ._retrying import RetryOptions
from ._settle import PermanentFailure, RetryAfter, Snooze
from ._sync.client import Redrive
from ._sync.pages import Pages
from ._sync.worker import Worker
from .errors import (
    AuthenticationError,
    ConflictError,
    ConnectionFailedError,
    IdTakenError,
    InProgressError,
    InternalServerError,
    InvalidRequestError,
    ItemError,
    NotDeadError,
    NotFoundError,
    OtherPayloadError,
    OutcomeUnknownError,
    PermissionDeniedError,
    RateLimitedError,
    RedriveError,
    ReservedTypeError,
    TooLargeError,
    UnavailableError,
    UnexpectedResponseError,
)
from .models import EventStatus, LeasedEvent, NewEvent, PublishedEvent, Retry, RetryPreset
from .sql import publish_statement
from .webhook import Webhook, WebhookMessage, WebhookVerificationError

if TYPE_CHECKING:
    from ._async.client import AsyncRedrive
    from ._async.pages import AsyncPages
    from ._async.worker import AsyncWorker

__version__ = "0.1.0"

__all__ = [
    "UNSET",
    "AsyncPages",
    "AsyncRedrive",
    "AsyncWorker",
    "AuthenticationError",
    "ConflictError",
    "ConnectionFailedError",
    "EventStatus",
    "IdTakenError",
    "InProgressError",
    "InternalServerError",
    "InvalidRequestError",
    "ItemError",
    "LeasedEvent",
    "NewEvent",
    "NotDeadError",
    "NotFoundError",
    "OtherPayloadError",
    "OutcomeUnknownError",
    "Pages",
    "PermanentFailure",
    "PermissionDeniedError",
    "PublishedEvent",
    "RateLimitedError",
    "Redrive",
    "RedriveError",
    "ReservedTypeError",
    "Retry",
    "RetryAfter",
    "RetryOptions",
    "RetryPreset",
    "Snooze",
    "TooLargeError",
    "UnavailableError",
    "UnexpectedResponseError",
    "Webhook",
    "WebhookMessage",
    "WebhookVerificationError",
    "Worker",
    "publish_statement",
]

_ASYNC = {"AsyncRedrive": "client", "AsyncPages": "pages", "AsyncWorker": "worker"}


if not TYPE_CHECKING:  # hidden from type checkers, which would take any name for an export

    def __getattr__(name: str) -> Any:
        """Imports the asynchronous client on first use, because it needs httpx."""
        if name in _ASYNC:
            from importlib import import_module

            return getattr(import_module(f"redrive._async.{_ASYNC[name]}"), name)
        raise AttributeError(f"module 'redrive' has no attribute {name!r}")
