"""Measures queues in turns with Redrive and tabulates that; what the `run` of each kind of store has in common.

A queue is a program that takes one measurement in a process of its own and prints one JSON object:

    <program> <measure> <place> <setting> <jobs> <seconds>
"""

import argparse
import contextlib
import dataclasses
import json
import os
import platform
import statistics
import subprocess
import sys
import time


@dataclasses.dataclass(frozen=True)
class Row:
    """One queue at one setting."""

    program: str
    setting: str
    name: str
    durability: str
    beside: str  # Redrive's setting that comes nearest
    measures: tuple  # what its API offers


@dataclasses.dataclass(frozen=True)
class Store:
    """What is measured on one kind of store."""

    measures: dict  # their headings
    redrive: dict  # rows by setting
    peers: list
    callers: str  # how the programs call the measurement with many callers
    place: object  # (options, measure) -> a context in which there is a new Place
    costs: dict = dataclasses.field(default_factory=dict)  # headings of what a place adds to "process"


class Place:
    """Where a queue has its jobs for one measurement."""

    def __init__(self, at):
        self.at = at

    def cost(self, _report):
        """What is to be said beside the report, once the program has ended."""
        return {}


class Bench:
    """Takes the measurements, in turns, and keeps what they say."""

    def __init__(self, store, options, command):
        self.store = store
        self.options = options
        self.command = command  # of a program
        self.results = []
        self.hung = set()
        self.log = open(options.json, "w", encoding="utf-8")

    def run(self, rows):
        began = time.monotonic()
        for number in range(1, self.options.rounds + 1):
            for row in rows:
                for measure in row.measures:
                    turns = [(row, None), (self.store.redrive[row.beside], row)]
                    # Whoever comes second finds the disk as the first has left it.
                    for who, beside in turns if number % 2 else reversed(turns):
                        self._take(who, measure, number, beside)
                took = time.monotonic() - began
                print(f"round {number}, {took:.0f} s: {row.name}, {row.durability}", file=sys.stderr)

    def _take(self, row, measure, number, beside):
        # Once is enough to know that it hangs; three times would cost minutes.
        if (row.program, row.setting, measure) in self.hung:
            return
        # "held" is "process" in another place.
        kind = {"callers": self.store.callers, "held": "process"}.get(measure, measure)
        seconds = {"process": self.options.process_seconds, "latency": self.options.latency_seconds}.get(
            kind, self.options.enqueue_seconds)
        with self.store.place(self.options, measure) as place:
            command = [*self.command(row.program), kind, place.at, row.setting, self.options.jobs, seconds]
            report = self._call([str(part) for part in command])
            report.update(place.cost(report))
        if report.get("hung"):
            self.hung.add((row.program, row.setting, measure))
        result = {
            "program": row.program, "setting": row.setting, "durability": row.durability, "measure": measure,
            "round": number, "beside": beside and f"{beside.program} {beside.setting}", **report,
        }
        self.results.append(result)
        print(json.dumps(result), file=self.log, flush=True)

    def _call(self, command):
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=self.options.timeout, check=False)
        except subprocess.TimeoutExpired:
            return {"error": f"hung: killed after {self.options.timeout:.0f} s", "hung": True}
        except OSError as error:
            return {"error": f"not installed: {error.strerror}"}
        try:
            return json.loads(done.stdout.strip().splitlines()[-1])
        except (IndexError, ValueError):
            return {"error": f"ended with {done.returncode}: {(done.stdout + done.stderr).strip()[-500:]}"}

    def of(self, row, measure, beside=None):
        """What a row gave for a measure; for Redrive beside a row, what it gave in turn with it."""
        key = beside and f"{beside.program} {beside.setting}"
        return [result for result in self.results
                if (result["program"], result["setting"], result["measure"]) == (row.program, row.setting, measure)
                and (beside is None or result["beside"] == key)]


def values(results, column):
    """Round by round: a rate, the two percentiles, or a cost."""
    good = {result["round"]: result for result in results if "error" not in result}
    if column == "latency":
        return {n: (result["p50_ms"], result["p99_ms"]) for n, result in good.items()}
    if column in ("one", "callers", "batch", "process", "held"):
        return {n: (result["count"] / result["seconds"],) for n, result in good.items()}
    return {n: (result[column],) for n, result in good.items() if column in result}


def medians(rounds):
    return [statistics.median(column) for column in zip(*rounds)]


def shown(numbers, column):
    if column in ("latency", "died"):
        return " / ".join(f"{number:.1f}" if number >= 10 else f"{number:.2f}" for number in numbers)
    return " / ".join(f"{number:,.0f}" for number in numbers)


def times(ratio):
    return f"{ratio:.0f}×" if ratio >= 10 else f"{ratio:.1f}×"


class Table:
    """The results as Markdown."""

    def __init__(self, bench, rows):
        self.bench = bench
        self.store = bench.store
        self.rows = rows
        self.notes = []

    def __str__(self):
        columns = {**self.store.measures, **self.store.costs}
        lines = [["", "durability", *columns.values()], ["---"] * 2 + ["---:"] * len(columns)]
        for row in [*self.store.redrive.values(), *self.rows]:
            lines.append([row.name, row.durability, *(self._cell(row, column) for column in columns)])
        table = "\n".join("| " + " | ".join(line) + " |" for line in lines)
        legend = ["(n×) how many times as good Redrive was beside it, at the durability that comes nearest  "]
        if "†" in table:
            legend.append(f"† cut off after {self.bench.options.process_seconds:.0f} s: the rate until then  ")
        return "\n".join([table, "", *legend, *self.notes])

    def _cell(self, row, column):
        measure = "process" if column in self.store.costs else column
        if measure not in row.measures:
            return "–"
        results = self.bench.of(row, measure)
        if not row.beside:  # Redrive: all its runs beside peers of that durability
            every = [values([result], column) for result in results]
            rounds = [value for one in every for value in one.values()]
            return shown(medians(rounds), column) if rounds else "–"
        mine = values(results, column)
        mark = self._note(row, measure, results) if measure == column else ""
        if not mine:
            return f"failed{mark}" if measure == column else "–"
        cut = column in ("process", "held", "latency") and any(result.get("cut") for result in results)
        ours = values(self.bench.of(self.store.redrive[row.beside], measure, beside=row), column)
        both = mine.keys() & ours.keys()
        less_is_better = column == "latency" or column in self.store.costs
        better = (lambda peer, redrive: (peer / redrive) if less_is_better else (redrive / peer))
        ratios = medians([[better(*pair) for pair in zip(mine[n], ours[n])] for n in both])
        ratio = f" ({' / '.join(map(times, ratios))})" if ratios else ""
        return f"{shown(medians(mine.values()), column)}{'†' if cut else ''}{ratio}{mark}"

    def _note(self, row, measure, results):
        errors = sorted({result["error"] for result in results if "error" in result})
        if not errors:
            return ""
        failed = sum("error" in result for result in results)
        number = len(self.notes) + 1
        self.notes.append(f"[{number}] {row.name}, {row.durability}, {measure}: {failed} of {len(results)} runs "
                          f"failed: {'; '.join(errors)}  ")
        return f" [{number}]"


def say(*command):
    """What a program says of itself, if it is there."""
    with contextlib.suppress(OSError):
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    return f"no {command[0]}"


def machine():
    return [f"{os.cpu_count()} cores, {platform.system()}", say("rustc", "--version").rsplit(" (")[0]]


def parser(store, description, here):
    """The options that every `run` has."""
    options = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--jobs", type=int, default=20_000, help="how many jobs (20,000)")
    options.add_argument("--rounds", type=int, default=3, help="of which the median is taken (3)")
    names = ", ".join(dict.fromkeys(row.program for row in store.peers))
    options.add_argument("--only", help=f"these peers, by comma: {names}")
    options.add_argument("--enqueue-seconds", type=float, default=1.5, help="limit of an enqueue measurement (1.5)")
    options.add_argument("--process-seconds", type=float, default=10, help="limit of a process measurement (10)")
    options.add_argument("--latency-seconds", type=float, default=2, help="length of a latency measurement (2)")
    options.add_argument("--timeout", type=float, default=60, help="after which a process counts as hung (60)")
    options.add_argument("--json", default=here / "results.jsonl", help="where one line for each run is written")
    options.add_argument("--installed", action="store_true", help="do not build or install anything")
    return options


def chosen(store, options, options_parser):
    """The rows that were asked for, and their programs."""
    rows = [row for row in store.peers if not options.only or row.program in options.only.split(",")]
    if not rows:
        options_parser.error(f"no peer is called {options.only}")
    return rows, {"redrive", *(row.program for row in rows)}
