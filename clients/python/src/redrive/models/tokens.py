"""Bearer tokens of the API."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Optional

from .._open_enum import OpenEnum


class Scope(OpenEnum):
    """Permission of a token; `admin` includes the others."""

    PUBLISH = "publish"
    READ = "read"
    CONSUME = "consume"
    ADMIN = "admin"


@dataclass(frozen=True)
class Token:
    """A token without its secret."""

    id: str
    name: str
    scopes: list[Scope]
    created_at: datetime
    expires_at: Optional[datetime]
    last_used_at: Optional[datetime]


@dataclass(frozen=True)
class CreatedToken(Token):
    """A new token with its secret, which no other response shows."""

    token: str
