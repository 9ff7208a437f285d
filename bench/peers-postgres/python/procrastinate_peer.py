"""procrastinate. Setting: `shipped`, with 24 jobs at a time."""

import asyncio
import logging
import pathlib
import sys
import time

import procrastinate
import psycopg

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "peers/python"))
from measure import main  # noqa: E402 - it is beside another folder

# It writes two lines for every job.
logging.getLogger("procrastinate").setLevel(logging.WARNING)
CONCURRENT = 24


class Procrastinate:
    def __init__(self, address, setting):
        if setting != "shipped":
            raise ValueError(f"no setting {setting}")
        self.address = address
        self.begin = None
        self.begun = 0
        # Callers are threads; the worker is asynchronous and has connections of its own.
        connector = procrastinate.SyncPsycopgConnector(conninfo=address, min_size=1, max_size=32)
        self.app = procrastinate.App(connector=connector)
        self.order = self.app.task(name="order", pass_context=False)(self.run)
        self.app.open()
        if not self.app.check_connection():  # which asks for its tables
            self.app.schema_manager.apply_schema()

    def run(self, job):
        self.begin(job)
        self.begun += 1

    def enqueue(self, job):
        self.order.defer(job=job)

    def enqueue_batch(self, jobs):
        self.order.batch_defer(*({"job": job} for job in jobs))

    def fill(self, jobs):
        for first in range(0, len(jobs), 1000):
            self.enqueue_batch(jobs[first:first + 1000])

    def handle(self, begin, jobs, until):
        self.begin = begin
        return asyncio.run(self.work(jobs, until))

    async def work(self, jobs, until):
        app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=self.address))

        @app.task(name="order")
        async def order(job):
            self.run(job)

        async with app.open_async():
            worker = asyncio.create_task(app.run_worker_async(
                concurrency=CONCURRENT, install_signal_handlers=False))
            while self.begun < jobs and time.perf_counter() < until and not worker.done():
                await asyncio.sleep(0.002)
            # Completions are written behind the handler's back.
            while self.begun >= jobs and time.perf_counter() < until and await asyncio.to_thread(self.unsettled):
                await asyncio.sleep(0.005)
            if worker.done():
                worker.result()
            begun = self.begun
            worker.cancel()
            await asyncio.gather(worker, return_exceptions=True)
            return begun

    def unsettled(self):
        with psycopg.connect(self.address) as connection:
            count = "SELECT count(*) FROM procrastinate_jobs WHERE status <> 'succeeded'"
            return connection.execute(count).fetchone()[0]


main(Procrastinate)
