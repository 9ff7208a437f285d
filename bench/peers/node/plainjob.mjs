// plainjob on better-sqlite3. Settings: `shipped` (NORMAL), `full`.

import Database from "better-sqlite3";
import { better, defineQueue, defineWorker, JobStatus } from "plainjob";
import { main } from "./measure.mjs";

// By default it writes several lines to the console for every job.
const logger = { debug() {}, info() {}, warn() {}, error: console.error };

function open(file, setting) {
  const database = new Database(file);
  const queue = defineQueue({ connection: better(database), logger });
  if (setting === "full") database.pragma("synchronous = FULL");
  else if (setting !== "shipped") throw new Error(`no setting ${setting}`);
  return {
    enqueue: (job) => queue.add("order", job),
    enqueueBatch: (jobs) => queue.addMany("order", jobs),
    // `onCompleted` comes after the completion was committed.
    handle: (begin, onCompleted) =>
      defineWorker("order", async (job) => begin(JSON.parse(job.data)), { queue, logger, onCompleted }).start(),
    unsettled: () => queue.countJobs() - queue.countJobs({ status: JobStatus.Done }),
  };
}

await main(open);
