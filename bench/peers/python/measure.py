"""The five measurements of ../rust/measure for queues in Python."""

import json
import os
import sys
import threading
import time

BATCH = 1000
TICK = 0.005  # 200 jobs a second
UP = 0.3
LAST = 5.0


def sent_now():
    """The job of all measurements: an order with its send time."""
    return {
        "order": 4711, "customer": "c-1234567", "total": "129.90", "currency": "EUR",
        "items": [{"sku": "A-100", "quantity": 2}, {"sku": "B-200", "quantity": 1}],
        "note": "please leave it at the door", "sent": time.perf_counter(),
    }


def rate(count, began, jobs):
    return {"count": count, "seconds": time.perf_counter() - began, "cut": count < jobs}


def callers(peer, jobs, limit, threads):
    job = sent_now()
    share = jobs // threads
    stored = [0] * threads
    began = 0.0

    def begin():
        nonlocal began
        began = time.perf_counter()

    together = threading.Barrier(threads, begin)
    errors = []

    def call(caller):
        try:
            # Connections are opened and statements prepared before the clock runs.
            peer.enqueue(job)
            together.wait()
            enqueue(caller)
        except Exception as error:  # noqa: BLE001 - raised below
            errors.append(error)
            together.abort()

    def enqueue(caller):
        while stored[caller] < share and time.perf_counter() - began < limit:
            peer.enqueue(job)
            stored[caller] += 1

    calls = [threading.Thread(target=call, args=(caller,)) for caller in range(threads)]
    for thread in calls:
        thread.start()
    for thread in calls:
        thread.join()
    for error in errors:
        if not isinstance(error, threading.BrokenBarrierError):
            raise error
    return rate(sum(stored), began, share * threads)


def batch(peer, jobs, limit):
    chunk = [sent_now()] * min(BATCH, jobs)
    stored = 0
    began = time.perf_counter()
    while stored < jobs and time.perf_counter() - began < limit:
        peer.enqueue_batch(chunk)
        stored += len(chunk)
    return rate(stored, began, jobs)


def process(peer, jobs, limit):
    peer.fill([sent_now()] * jobs)
    began = time.perf_counter()
    settled = peer.handle(lambda job: None, jobs, began + limit)
    report = rate(settled, began, jobs)
    left = peer.unsettled()
    if not report["cut"] and left:
        raise RuntimeError(f"the clock has stopped, but {left} of {jobs} jobs are not settled")
    return report


def latency(peer, seconds):
    jobs = int(seconds / TICK)
    ages = []

    def produce():
        time.sleep(UP)
        due = time.perf_counter()
        for _ in range(jobs):
            time.sleep(max(0.0, due - time.perf_counter()))
            peer.enqueue(sent_now())
            due = max(due + TICK, time.perf_counter())

    producer = threading.Thread(target=produce)
    producer.start()
    until = time.perf_counter() + UP + seconds + LAST
    peer.handle(lambda job: ages.append(time.perf_counter() - job["sent"]), jobs, until)
    producer.join()
    ages = sorted(ages)  # a new list: a late job must not change it
    if not ages:
        raise RuntimeError("no job was handled")
    percentile = lambda percent: ages[len(ages) * percent // 100] * 1000
    return {"count": len(ages), "p50_ms": percentile(50), "p99_ms": percentile(99), "cut": len(ages) < jobs}


def main(open_peer):
    """Takes the measurement that the command line asks for and ends the process without tidying up."""
    measure, file, setting, jobs, seconds = sys.argv[1:]
    try:
        peer, jobs, seconds = open_peer(file, setting), int(jobs), float(seconds)
        report = {
            "setup": lambda: rate(0, time.perf_counter(), 0),
            "one": lambda: callers(peer, jobs, seconds, 1),
            "callers": lambda: callers(peer, jobs, seconds, 64),
            "callers-32": lambda: callers(peer, jobs, seconds, 32),
            "batch": lambda: batch(peer, jobs, seconds),
            "process": lambda: process(peer, jobs, seconds),
            "latency": lambda: latency(peer, seconds),
        }[measure]()
    except Exception as error:  # noqa: BLE001 - whatever it is, it is the result
        report = {"error": f"{type(error).__name__}: {error}"}
    print(json.dumps(report), flush=True)
    os._exit(1 if "error" in report else 0)
