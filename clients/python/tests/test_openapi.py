"""The models have the fields, the optional fields and the names of the API document."""

from __future__ import annotations

import dataclasses
import json
from enum import Enum
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest

from redrive import models

DOCUMENT = Path(__file__).resolve().parents[3] / "docs" / "openapi.json"

if not DOCUMENT.exists():
    pytest.skip("docs/openapi.json does not exist", allow_module_level=True)

SCHEMAS: dict[str, Any] = json.loads(DOCUMENT.read_text(encoding="utf-8"))["components"]["schemas"]

OTHER_NAMES = {"EventDelivery": "Delivery", "NewEvent": "PublishEvent"}
NO_SCHEMA = {"DeadReason", "NackOutcome", "Page"}
"""Parts of other schemas; a page has one schema for each kind of entry."""

MODELS = [kind for name in models.__all__ if name not in NO_SCHEMA for kind in [getattr(models, name)]]


def schema_of(kind: type) -> Any:
    """Returns the schema of a model."""
    return SCHEMAS[OTHER_NAMES.get(kind.__name__, kind.__name__)]


def properties_of(schema: Any) -> dict[str, Any]:
    """Returns the properties of a schema and of those that it extends."""
    found: dict[str, Any] = {}
    for part in schema.get("allOf", []):
        found.update(properties_of(SCHEMAS[part["$ref"].rpartition("/")[2]] if "$ref" in part else part))
    found.update(schema.get("properties", {}))
    return found


def is_nullable(schema: Any) -> bool:
    """Whether a value may be null."""
    return "null" in schema.get("type", ()) or any(
        is_nullable(part) for part in schema.get("oneOf", []) + schema.get("anyOf", [])
    )


@pytest.mark.parametrize("kind", [kind for kind in MODELS if dataclasses.is_dataclass(kind)])
def test_a_model_has_the_fields_of_its_schema(kind: type) -> None:
    properties = properties_of(schema_of(kind))
    hints = {name.rstrip("_"): hint for name, hint in get_type_hints(kind).items()}
    if kind is models.NewEvent:
        hints["delay_ms"] = hints.pop("delay")  # a length of time in place of milliseconds
    assert set(hints) == set(properties)
    if kind not in (models.NewEvent, models.Retry):  # of requests, whose fields may be missing
        nullable = {name for name, schema in properties.items() if is_nullable(schema)}
        assert {name for name, hint in hints.items() if type(None) in get_args(hint)} == nullable


@pytest.mark.parametrize("kind", [kind for kind in MODELS if issubclass(kind, Enum)])
def test_an_enum_has_the_names_of_its_schema(kind: Any) -> None:
    schema = schema_of(kind)
    assert [member.value for member in kind] == schema.get("x-extensible-enum", schema.get("enum"))
