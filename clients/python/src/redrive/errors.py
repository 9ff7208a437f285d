"""Errors of the client: one class for each kind of problem that a caller handles.

Every error of a request is a `RedriveError` with the server's `code`, `status` and `detail`. A code that this release does not know
becomes the class of its status, or plain `RedriveError`, so new codes of a newer server never break a program.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Mapping, Optional, Sequence


@dataclass(frozen=True)
class ItemError:
    """Error of one item of a batch: its index from 0, and what to fix."""

    index: int
    detail: str


class RedriveError(Exception):
    """A request failed; `code` is stable, `detail` says what to do."""

    def __init__(
        self,
        detail: str,
        *,
        code: str = "unexpected_response",
        status: Optional[int] = None,
        errors: Sequence[ItemError] = (),
        retry_after: Optional[float] = None,
    ) -> None:
        super().__init__(detail)
        self.detail = detail
        self.code = code
        self.status = status
        self.errors = tuple(errors)
        self.retry_after = retry_after
        """Seconds that the server asked to wait, or None."""

    @property
    def outcome_unknown(self) -> bool:
        """Whether the request may have taken effect: repeat it only with the same id or Idempotency-Key."""
        return self.code in ("outcome_unknown", "internal")

    def __str__(self) -> str:
        head = self.code if self.status is None else f"{self.status} {self.code}"
        items = "".join(f"; item {item.index}: {item.detail}" for item in self.errors[:5])
        return f"{head}: {self.detail}{items}"

    def __reduce__(self) -> Any:
        return (_restore, (type(self), self.detail, self.code, self.status, self.errors, self.retry_after))


def _restore(
    kind: type[RedriveError],
    detail: str,
    code: str,
    status: Optional[int],
    errors: Sequence[ItemError],
    retry_after: Optional[float],
) -> RedriveError:
    return kind(detail, code=code, status=status, errors=errors, retry_after=retry_after)


class InvalidRequestError(RedriveError):
    """The request is not valid (400): fix it; nothing was stored."""


class AuthenticationError(RedriveError):
    """A token is missing or not valid (401)."""


class PermissionDeniedError(RedriveError):
    """The token does not have the required scope (403)."""


class NotFoundError(RedriveError):
    """There is no such event, endpoint, subscription, replay or token (404)."""


class ConflictError(RedriveError):
    """The request conflicts with the current state (409)."""


class IdTakenError(ConflictError):
    """The id belongs to an event with another type or payload (`id_taken`)."""


class NotDeadError(ConflictError):
    """The event is not in the dead-letter queue (`not_dead`)."""


class InProgressError(ConflictError):
    """A request with this Idempotency-Key is in flight (`in_progress`)."""


class TooLargeError(RedriveError):
    """The request is larger than the server accepts (413)."""


class OtherPayloadError(RedriveError):
    """The Idempotency-Key was used for another request (`other_payload`): use a new key."""


class ReservedTypeError(RedriveError):
    """Only the server publishes this event type (`reserved_type`)."""


class RateLimitedError(RedriveError):
    """The server asks for fewer requests (429)."""


class InternalServerError(RedriveError):
    """The server failed (500); its log says why."""


class UnavailableError(RedriveError):
    """The server cannot serve the request now (503): nothing was stored."""


class OutcomeUnknownError(RedriveError):
    """The event may be stored (`outcome_unknown`): repeat with the same id or Idempotency-Key."""


class ConnectionFailedError(RedriveError):
    """No response arrived: the server is unreachable, or the connection broke."""

    unsent = False
    """Whether the request surely never reached the server."""

    @property
    def outcome_unknown(self) -> bool:
        """Whether the request may have taken effect."""
        return not self.unsent


class UnexpectedResponseError(RedriveError):
    """The response is not one of a redrive server: another program or a proxy answered."""

    @property
    def outcome_unknown(self) -> bool:
        """Whether the request may have taken effect."""
        return self.status is not None and self.status >= 500


_BY_CODE: Mapping[str, type[RedriveError]] = {
    "id_taken": IdTakenError,
    "not_dead": NotDeadError,
    "in_progress": InProgressError,
    "other_payload": OtherPayloadError,
    "reserved_type": ReservedTypeError,
    "outcome_unknown": OutcomeUnknownError,
}

_BY_STATUS: Mapping[int, type[RedriveError]] = {
    400: InvalidRequestError,
    401: AuthenticationError,
    403: PermissionDeniedError,
    404: NotFoundError,
    409: ConflictError,
    413: TooLargeError,
    429: RateLimitedError,
    500: InternalServerError,
    503: UnavailableError,
}


def error_of(status: int, body: bytes, retry_after: Optional[float]) -> RedriveError:
    """Reads an error response: a problem document, or a bare status."""
    try:
        problem = json.loads(body)
        code, detail = problem["code"], problem["detail"]
        if not isinstance(code, str) or not isinstance(detail, str):
            raise TypeError
        items = [ItemError(int(item["index"]), str(item["detail"])) for item in problem.get("errors") or ()]
    except (ValueError, KeyError, TypeError, AttributeError):
        detail = f"the server has answered {status}: is there a redrive server behind the address?"
        return UnexpectedResponseError(detail, status=status, retry_after=retry_after)
    kind = _BY_CODE.get(code) or _BY_STATUS.get(status, RedriveError)
    return kind(detail, code=code, status=status, errors=items, retry_after=retry_after)
