"""Categories of guarded calls: a category selects the policy and is named in every audit event."""

from __future__ import annotations

from enum import Enum
from typing import Union


class RetryCategory(str, Enum):
    """The seventeen predefined categories, with their codes in audit events."""

    # NATS operations
    NATS_CONNECT = "RETRY_NATS_CONNECT"
    NATS_PUBLISH = "RETRY_NATS_PUBLISH"
    NATS_SUBSCRIBE = "RETRY_NATS_SUBSCRIBE"
    NATS_STREAM_CREATE = "RETRY_NATS_STREAM_CREATE"

    # KV operations
    KV_CREATE = "RETRY_KV_CREATE"
    KV_GET = "RETRY_KV_GET"
    KV_PUT = "RETRY_KV_PUT"
    KV_DELETE = "RETRY_KV_DELETE"

    # Execution operations
    EXECUTION_INTENT = "RETRY_EXECUTION_INTENT"
    EXECUTION_CONTAINMENT = "RETRY_EXECUTION_CONTAINMENT"
    EXECUTION_EXPIRATION = "RETRY_EXECUTION_EXPIRATION"

    # Approval operations
    APPROVAL_CHECK = "RETRY_APPROVAL_CHECK"
    APPROVAL_GRANT = "RETRY_APPROVAL_GRANT"

    # Replay operations
    REPLAY_PROCESSING = "REPLAY_REPLAY_PROCESSING"
    REPLAY_VALIDATION = "REPLAY_REPLAY_VALIDATION"

    # API operations
    API_REQUEST = "RETRY_API_REQUEST"
    API_VALIDATION = "RETRY_API_VALIDATION"


def code_of(category: Union[RetryCategory, str]) -> str:
    """Returns the code of a category: a predefined one by code or name, or a custom code such as `RETRY_PAYMENT`."""
    if isinstance(category, RetryCategory):
        return category.value
    if category in RetryCategory.__members__:
        return RetryCategory[category].value
    is_code = 1 <= len(category) <= 64 and all(
        c.isascii() and (c.isupper() or c.isdigit() or c == "_") for c in category
    )
    if not is_code:
        raise ValueError(
            f"{category[:80]!r} is not a category code: use 1 to 64 upper-case letters, digits and underscores, "
            "such as RETRY_PAYMENT"
        )
    return category
