"""huey. Setting: `full`, which is what it does by itself: it leaves `synchronous` at SQLite's default."""

import logging
import time

from huey import SqliteHuey

from measure import main

# It writes two lines for every job.
logging.getLogger("huey").setLevel(logging.WARNING)


class Huey:
    def __init__(self, file, setting):
        if setting != "full":
            raise ValueError(f"no setting {setting}")
        self.file = file
        self.begin = None
        self.begun = 0
        self.huey = SqliteHuey(filename=file)
        self.order = self.huey.task(name="order")(self.run)
        level = self.huey.storage.conn.execute("pragma synchronous").fetchone()[0]
        assert level == 2, "SQLite's default is FULL"

    def run(self, job):
        self.begin(job)
        self.begun += 1

    def enqueue(self, job):
        self.order(job)

    def fill(self, jobs):
        """Without syncs, as this is not measured."""
        unsynced = SqliteHuey(filename=self.file, fsync=False)
        order = unsynced.task(name="order")(self.run)
        for job in jobs:
            order(job)
        unsynced.storage.close()

    def handle(self, begin, jobs, until):
        """A job is deleted when it is fetched and nothing is written when it ends: its start is its settlement."""
        self.begin = begin
        consumer = self.huey.create_consumer()
        consumer.start()
        while self.begun < jobs and time.perf_counter() < until:
            time.sleep(0.002)
        return self.begun

    def unsettled(self):
        return self.huey.storage.queue_size()


main(Huey)
