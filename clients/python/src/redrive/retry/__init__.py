"""Retries calls of this process: bounded, jittered, audited, and once per idempotency key.

    manager = get_retry_manager()
    invoice = await manager.execute_with_retry(RetryCategory.API_REQUEST, "Fetch invoice", fetch_invoice)

The decisions and delays are those of the Rust core: equal correlation ids give equal delays in both.
"""

from __future__ import annotations

from .audit import (
    AuditEvent,
    AuditSink,
    AuditStream,
    calculate_avg_attempts,
    calculate_success_rate,
    json_lines,
    log_audit,
)
from .backoff import Backoff, Identity, Jitter
from .category import RetryCategory
from .decision import Decision, Failed, Situation, decide, verify_record
from .errors import RetryError
from .idempotency import IdempotencyManager, IdempotencyRecord, IdempotencyStore, MemoryIdempotencyStore
from .keys import compute_idempotency_key, fingerprint
from .manager import RetryManager, get_retry_manager, set_retry_manager
from .policy import RetryPolicy
from .sqlite import SqliteIdempotencyStore

__all__ = [
    "AuditEvent",
    "AuditSink",
    "AuditStream",
    "Backoff",
    "Decision",
    "Failed",
    "IdempotencyManager",
    "IdempotencyRecord",
    "IdempotencyStore",
    "Identity",
    "Jitter",
    "MemoryIdempotencyStore",
    "RetryCategory",
    "RetryError",
    "RetryManager",
    "RetryPolicy",
    "Situation",
    "SqliteIdempotencyStore",
    "calculate_avg_attempts",
    "calculate_success_rate",
    "compute_idempotency_key",
    "decide",
    "fingerprint",
    "get_retry_manager",
    "json_lines",
    "log_audit",
    "set_retry_manager",
    "verify_record",
]
