"""Every idempotency store passes these tests."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any, Callable, Iterator, Tuple

import pytest

from redrive.retry import IdempotencyStore, MemoryIdempotencyStore, SqliteIdempotencyStore
from redrive.testing import FakeClock

Bench = Tuple[IdempotencyStore, FakeClock]


@pytest.fixture(params=["memory", "sqlite"])
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bench]:
    clock = FakeClock()
    if request.param == "memory":
        yield MemoryIdempotencyStore(clock), clock
    else:
        store = SqliteIdempotencyStore(tmp_path / "keys.db", clock=clock)
        yield store, clock
        store.close()


def test_the_first_owner_claims_the_key(bench: Bench) -> None:
    store, _ = bench
    assert store.begin("k", "anna", 30.0) is None
    assert store.begin("k", "anna", 30.0) is None, "the owner asks again after a lost answer"
    found = store.begin("k", "bob", 30.0)
    assert found is not None and (found.state, found.owner) == ("in_progress", "anna")


def test_a_completed_key_returns_its_result_until_it_expires(bench: Bench) -> None:
    store, clock = bench
    store.begin("k", "anna", 30.0)
    assert store.complete("k", "anna", {"a": [1, None]}, {"by": "anna"}, 100.0)
    found = store.begin("k", "bob", 30.0)
    assert found is not None and (found.state, found.result, found.metadata) == (
        "completed",
        {"a": [1, None]},
        {"by": "anna"},
    )
    clock.advance(100.0)
    assert store.get("k") is None
    assert store.begin("k", "bob", 30.0) is None


def test_the_key_of_a_crashed_owner_can_be_claimed_after_its_lease(bench: Bench) -> None:
    store, clock = bench
    store.begin("k", "anna", 30.0)
    clock.advance(20.0)
    assert store.extend("k", "anna", 30.0)
    clock.advance(29.0)
    assert store.begin("k", "bob", 30.0) is not None
    clock.advance(1.0)
    assert store.begin("k", "bob", 30.0) is None


def test_a_late_owner_changes_nothing(bench: Bench) -> None:
    store, clock = bench
    store.begin("k", "anna", 30.0)
    clock.advance(30.0)
    store.begin("k", "bob", 30.0)
    late: list[Callable[[], Any]] = [
        lambda: store.extend("k", "anna", 30.0),
        lambda: store.complete("k", "anna", "late", None, 100.0),
        lambda: store.release("k", "anna", None, 100.0),
    ]
    assert [change() for change in late] == [False, False, False]
    found = store.get("k")
    assert found is not None and (found.state, found.owner) == ("in_progress", "bob")


def test_a_released_key_is_absent_or_failed(bench: Bench) -> None:
    store, _ = bench
    store.begin("k", "anna", 30.0)
    assert store.release("k", "anna", None, 100.0)
    assert store.get("k") is None
    store.begin("k", "anna", 30.0)
    assert store.release("k", "anna", "declined", 100.0)
    found = store.get("k")
    assert found is not None and (found.state, found.error) == ("failed", "declined")
    assert store.begin("k", "bob", 30.0) is None


def test_a_result_without_an_owner_is_stored_in_any_case(bench: Bench) -> None:
    store, _ = bench
    store.begin("k", "anna", 30.0)
    assert store.complete("k", None, 1, None, 100.0)
    found = store.get("k")
    assert found is not None and found.result == 1
    assert store.clear("k") and not store.clear("k")


def test_results_in_a_file_survive_the_process(tmp_path: Path) -> None:
    path = tmp_path / "keys.db"
    program = (
        "import sys, os\n"
        "from redrive.retry import SqliteIdempotencyStore\n"
        "store = SqliteIdempotencyStore(sys.argv[1])\n"
        "store.begin('done', 'anna', 30.0); store.complete('done', 'anna', 'receipt', None, 100.0)\n"
        "store.begin('open', 'anna', 30.0)\n"
        "os.kill(os.getpid(), 9)\n"
    )
    source = str(Path(__file__).resolve().parent.parent / "src")
    subprocess.run([sys.executable, "-c", program, str(path)], env={"PYTHONPATH": source}, timeout=20)
    store = SqliteIdempotencyStore(path)
    found, claimed = store.begin("done", "bob", 30.0), store.begin("open", "bob", 30.0)
    assert found is not None and found.result == "receipt"
    assert claimed is not None and claimed.state == "in_progress"
    store.close()


def test_a_result_that_is_not_json_is_refused_by_the_file(tmp_path: Path) -> None:
    store = SqliteIdempotencyStore(tmp_path / "keys.db")
    store.begin("k", "anna", 30.0)
    with pytest.raises(TypeError):
        store.complete("k", "anna", object(), None, 100.0)
    found = store.get("k")
    assert found is not None and found.state == "in_progress"
    store.close()


def test_expired_records_are_deleted(tmp_path: Path) -> None:
    clock = FakeClock()
    store = SqliteIdempotencyStore(tmp_path / "keys.db", clock=clock)
    store.complete("short", None, 1, None, 10.0)
    store.complete("long", None, 1, None, 1000.0)
    clock.advance(10.0)
    assert store.reap() == 1
    assert store.get("long") is not None
    store.close()
