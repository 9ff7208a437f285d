"""Measures queues in turns with Redrive and tabulates the results; shared by the `run` of each kind of store.

A queue is a program that takes one measurement in a process of its own and prints one JSON object:

    <program> <measure> <place> <setting> <jobs> <seconds>
"""

import argparse
import contextlib
import dataclasses
import functools
import json
import math
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
class Measurement:
    """One measurement of one row."""

    row: Row
    measure: str
    state: str
    beside: object = None  # the row that Redrive takes it with, if it is for one alone


def in_pairs(store, rows, number):
    """Redrive right before or after every peer, once per peer."""
    for row in rows:
        for state in store.states:
            for measure in row.measures:
                redrive = store.redrive[row.beside]
                both = [Measurement(row, measure, state), Measurement(redrive, measure, state, row)]
                # The second finds the disk as the first has left it.
                yield from both if number % 2 else reversed(both)


def in_turns(store, rows, number):
    """Every queue once, Redrive among them; another one begins in each round."""
    rows = [*store.redrive.values(), *rows]
    first = number * len(rows) // 3 % len(rows)
    for state in store.states:
        for measure in dict.fromkeys(measure for row in rows for measure in row.measures):
            for row in rows[first:] + rows[:first]:
                if measure in row.measures:
                    yield Measurement(row, measure, state)


@dataclasses.dataclass(frozen=True)
class Store:
    """Measurements and peers of one kind of store."""

    measures: dict  # their headings
    redrive: dict  # rows by setting
    peers: list
    callers: str  # name of the measurement with many callers
    place: object  # (options, state) -> context manager of a new Place
    order: object  # (store, rows, round) -> turns
    states: dict = dataclasses.field(default_factory=lambda: {"": ""})  # conditions of a measurement, by label
    costs: dict = dataclasses.field(default_factory=dict)  # headings of the results of "cost"


class Place:
    """The store of a queue for one measurement."""

    def __init__(self, at):
        self.at = at

    def begin(self):
        """Called after the tables were created: the cost of all further work counts."""

    def cost(self, _report):
        """Cost per job, after the program has ended."""
        return {}


class Bench:
    """Takes the measurements in turns and keeps their results."""

    def __init__(self, store, options, command):
        self.store = store
        self.options = options
        self.command = command  # of a program
        self.results = []
        self.hung = set()
        self.log = open(options.json, "w", encoding="utf-8")

    def run(self, rows):
        """Yields the number of rounds after each round."""
        began = time.monotonic()
        for number in range(1, self.options.rounds + 1):
            # A round takes about as long as the others; there is at least one.
            if number > 1 and (time.monotonic() - began) * number / (number - 1) > self.options.minutes * 60:
                print(f"no time for round {number}", file=sys.stderr)
                return
            for measurement in self.store.order(self.store, rows, number):
                outcome = self._take(measurement, number)
                took = time.monotonic() - began
                state = self.store.states[measurement.state]
                what = f"{measurement.row.name} {state}, {measurement.measure}" if state else f"{measurement.row.name}, {measurement.measure}"
                print(f"round {number}, {took:.0f} s: {what}: {outcome}", file=sys.stderr, flush=True)
            yield number

    def _take(self, measurement, number):
        row, measure = measurement.row, measurement.measure
        # A measurement that hung is not repeated: each repetition would cost minutes.
        key = (row.program, row.setting, measure, measurement.state)
        if key in self.hung:
            return "hung before"
        try:
            with self.store.place(self.options, measurement.state) as place:
                report = self._cost(row, place) if measure == "cost" else self._measure(row, measure, place)
        except (RuntimeError, subprocess.SubprocessError) as error:  # of this place; other measurements continue
            report = {"error": str(error)}
        if report.get("hung"):
            self.hung.add(key)
        beside = measurement.beside and f"{measurement.beside.program} {measurement.beside.setting}"
        result = {
            "program": row.program, "setting": row.setting, "durability": row.durability, "measure": measure,
            "state": measurement.state, "round": number, "beside": beside, **report,
        }
        self.results.append(result)
        print(json.dumps(result), file=self.log, flush=True)
        return json.dumps(report)

    def _measure(self, row, measure, place):
        kind = self.store.callers if measure == "callers" else measure
        limits = {"process": self.options.process_seconds, "latency": self.options.latency_seconds}
        return self._call(row, kind, place, self.options.jobs, limits.get(kind, self.options.enqueue_seconds))

    def _cost(self, row, place):
        """Takes the cost of fewer jobs, so that the slowest queue completes them."""
        report = self._call(row, "setup", place, 0, 0)
        if "error" in report:
            return report
        place.begin()
        report = self._call(row, "process", place, self.options.cost_jobs, self.options.timeout / 2)
        if report.get("cut"):
            return {"error": f"{report['count']} of {self.options.cost_jobs} jobs in {report['seconds']:.0f} s"}
        return {**report, **place.cost(report)}

    def _call(self, row, kind, place, jobs, seconds):
        command = [*self.command(row.program), kind, place.at, row.setting, jobs, seconds]
        return self._run([str(part) for part in command])

    def _run(self, command):
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

    def of(self, row, measure, state, beside=None):
        """Results of a row; for Redrive compared with a row, those taken for it or for all."""
        key = (row.program, row.setting, measure, state)
        keys = (None, beside and f"{beside.program} {beside.setting}")
        return [result for result in self.results
                if (result["program"], result["setting"], result["measure"], result["state"]) == key
                and (beside is None or result["beside"] in keys)]


RATES = ("one", "callers", "batch", "process")


def values(results, column):
    """Round by round: a rate, the two percentiles, or a cost."""
    good = {result["round"]: result for result in results if "error" not in result}
    if column == "latency":
        return {n: (result["p50_ms"], result["p99_ms"]) for n, result in good.items()}
    if column in RATES:
        return {n: (result["count"] / result["seconds"],) for n, result in good.items()}
    return {n: (result[column],) for n, result in good.items() if column in result}


def medians(rounds):
    return [statistics.median(column) for column in zip(*rounds)]


def shown(numbers, column):
    if column in ("latency", "died", "left"):
        return " / ".join(f"{number:.1f}" if number >= 10 else f"{number:.2f}" for number in numbers)
    return " / ".join(f"{number:,.0f}" for number in numbers)


def times(ratio):
    # Near 1 the second digit shows which was ahead.
    digits = 0 if ratio >= 10 else 1 if ratio >= 2 else 2
    return f"{ratio:.{digits}f}×"


class Table:
    """The results as Markdown."""

    def __init__(self, bench, rows):
        self.bench = bench
        self.store = bench.store
        self.rows = rows
        self.notes = []

    def __str__(self):
        self.notes.clear()
        columns = {**self.store.measures, **self.store.costs}
        lines = [["", "durability", *columns.values()], ["---"] * 2 + ["---:"] * len(columns)]
        for row in [*self.store.redrive.values(), *self.rows]:
            for state, name in self.store.states.items():
                cells = (self._cell(row, column, state) for column in columns)
                lines.append([name or row.name, row.durability, *cells])
        table = "\n".join("| " + " | ".join(line) + " |" for line in lines)
        legend = ["(n×) factor by which Redrive was better, at the nearest durability  "]
        if "†" in table:
            legend.append(f"† cut off after {self.bench.options.process_seconds:.0f} s: the rate until then  ")
        return "\n".join([table, "", *legend, *self.notes])

    def _cell(self, row, column, state):
        measure = "cost" if column in self.store.costs else column
        if measure not in row.measures:
            return "–"
        results = self.bench.of(row, measure, state)
        if not results:
            return "–"
        # The first of several columns has the note of a failed measurement.
        is_first = measure == column or column == next(iter(self.store.costs))
        mark = self._note(row, measure, state, results) if is_first else ""
        if not row.beside:  # Redrive: all its turns
            every = [values([result], column) for result in results]
            rounds = [value for one in every for value in one.values()]
            return f"{shown(medians(rounds), column) if rounds else 'failed'}{mark}"
        mine = values(results, column)
        if not mine:
            return f"failed{mark}"
        cut = column in ("process", "latency") and any(result.get("cut") for result in results)
        ours = values(self.bench.of(self.store.redrive[row.beside], measure, state, beside=row), column)
        ratio = self._ratio(column, mine, ours)
        return f"{shown(medians(mine.values()), column)}{'†' if cut else ''}{ratio}{mark}"

    def _ratio(self, column, mine, ours):
        """Median ratio of the rounds in which both have results."""
        less_is_better = column == "latency" or column in self.store.costs
        better = (lambda peer, redrive: (peer / redrive) if less_is_better else (redrive / peer))
        both = [n for n in mine.keys() & ours.keys() if all((*mine[n], *ours[n]))]
        ratios = medians([[better(*pair) for pair in zip(mine[n], ours[n])] for n in both])
        return f" ({' / '.join(map(times, ratios))})" if ratios else ""

    def _note(self, row, measure, state, results):
        errors = sorted({result["error"] for result in results if "error" in result})
        if not errors:
            return ""
        failed = sum("error" in result for result in results)
        number = len(self.notes) + 1
        name = f"{row.name} {self.store.states[state]}".strip()
        self.notes.append(f"[{number}] {name}, {row.durability}, {measure}: {failed} of {len(results)} runs failed: "
                          f"{'; '.join(errors)}  ")
        return f" [{number}]"


def say(*command):
    """Output of a program, or a note that it is missing."""
    with contextlib.suppress(OSError):
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    return f"no {command[0]}"


def machine():
    return [f"{os.cpu_count()} cores, {platform.system()}", say("rustc", "--version").rsplit(" (")[0]]


SMOKE = {"jobs": 1000, "rounds": 1, "enqueue_seconds": 0.2, "process_seconds": 1, "latency_seconds": 0.4,
         "cost_jobs": 200}


def parser(store, description, here):
    """The options that every `run` has."""
    options = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--jobs", type=int, default=20_000, help="how many jobs (%(default)s)")
    options.add_argument("--rounds", type=int, default=3, help="of which the median is taken (%(default)s)")
    options.add_argument("--minutes", type=float, default=math.inf,
                         help="begin no round that would end later (%(default)s)")
    names = ", ".join(dict.fromkeys(row.program for row in store.peers))
    options.add_argument("--only", help=f"these peers, by comma: {names}")
    seconds = functools.partial(options.add_argument, type=float, metavar="SECONDS")
    seconds("--enqueue-seconds", default=1.5, help="limit of an enqueue measurement (%(default)s)")
    seconds("--process-seconds", default=10, help="limit of a process measurement (%(default)s)")
    seconds("--latency-seconds", default=2, help="length of a latency measurement (%(default)s)")
    seconds("--timeout", default=60, help="after which a process counts as hung (%(default)s)")
    if store.costs:
        options.add_argument("--cost-jobs", type=int, default=1000, help="jobs of a cost measurement (%(default)s)")
    options.add_argument("--smoke", action="store_true", help="everything once and shortly, to see that it works: the "
                                                              "numbers are worth nothing")
    options.add_argument("--json", default=here / "results.jsonl", help="where one line for each run is written")
    options.add_argument("--installed", action="store_true", help="do not build or install anything")
    return options


def parsed(options_parser):
    """Parsed options; explicit options override the defaults of `--smoke`."""
    if options_parser.parse_args().smoke:
        options_parser.set_defaults(**SMOKE)
    return options_parser.parse_args()


def chosen(store, options, options_parser):
    """The rows that were asked for, and their programs."""
    rows = [row for row in store.peers if not options.only or row.program in options.only.split(",")]
    if not rows:
        options_parser.error(f"no peer is called {options.only}")
    return rows, {"redrive", *(row.program for row in rows)}
