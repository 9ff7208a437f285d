// graphile-worker. Settings: `shipped` (what it does by itself, with 24 jobs at a time), `batched` (a local queue, and
// completions in batches).

import { Logger, makeWorkerUtils, run } from "graphile-worker";
import pg from "pg";
import { main } from "../../peers/node/measure.mjs";

// By default it writes a line to the console for every job.
const logger = new Logger(() => (level, message) => {
  if (level === "error") console.error(message);
});
const CONCURRENT = 24;
const BATCHED = { localQueue: { size: 500 }, completeJobBatchDelay: 0, failJobBatchDelay: 0 };

async function open(address, setting) {
  if (!["shipped", "batched"].includes(setting)) throw new Error(`no setting ${setting}`);
  const pool = new pg.Pool({ connectionString: address, max: 32 });
  pool.on("error", console.error);
  const utils = await makeWorkerUtils({ pgPool: pool, logger });
  await utils.migrate();
  return {
    enqueue: (job) => utils.addJob("order", job),
    enqueueBatch: (jobs) => utils.addJobs(jobs.map((payload) => ({ identifier: "order", payload }))),
    handle: async (begin, onEnded) => {
      const taskList = {
        order: (job) => {
          begin(job);
          onEnded();
        },
      };
      const worker = setting === "batched" ? BATCHED : {};
      await run({
        taskList, pgPool: pool, logger, noHandleSignals: true,
        preset: { worker: { concurrentJobs: CONCURRENT, ...worker } },
      });
    },
    settlesLater: true,
    // A job that is done is deleted.
    unsettled: async () =>
      Number((await pool.query("SELECT count(*) FROM graphile_worker._private_jobs")).rows[0].count),
  };
}

await main(open);
