"""litequeue. Settings: `shipped` (NORMAL), `full`. It is pulled from; it has no worker that could be woken."""

import json
import time

from litequeue import LiteQueue

from measure import main


class Lite:
    def __init__(self, file, setting):
        self.queue = LiteQueue(file)
        if setting == "full":
            self.queue.conn.execute("PRAGMA synchronous = FULL")
        elif setting != "shipped":
            raise ValueError(f"no setting {setting}")

    def enqueue(self, job):
        self.queue.put(json.dumps(job))

    def enqueue_batch(self, jobs):
        with self.queue.transaction():
            for job in jobs:
                self.enqueue(job)

    fill = enqueue_batch

    def handle(self, begin, jobs, until):
        settled = 0
        while settled < jobs and time.perf_counter() < until:
            message = self.queue.pop()
            begin(message.data)
            self.queue.done(message.message_id)
            settled += 1
        return settled

    def unsettled(self):
        return self.queue.conn.execute(f"SELECT count(*) FROM {self.queue.table} WHERE status <> 2").fetchone()[0]


main(Lite)
