// pg-boss. Setting: `batch` (a hundred jobs at a time, every half second, which is as often as it allows).

import PgBoss from "pg-boss";
import pg from "pg";
import { main } from "../../peers/node/measure.mjs";

const QUEUE = "order";

async function open(address, setting) {
  if (setting !== "batch") throw new Error(`no setting ${setting}`);
  const pool = new pg.Pool({ connectionString: address, max: 4 });
  const boss = new PgBoss({ connectionString: address, max: 32 });
  boss.on("error", console.error);
  await boss.start();
  await boss.createQueue(QUEUE);
  return {
    enqueue: (job) => boss.send(QUEUE, job),
    enqueueBatch: (jobs) => boss.insert(jobs.map((data) => ({ name: QUEUE, data }))),
    handle: (begin, onEnded) =>
      boss.work(QUEUE, { batchSize: 100, pollingIntervalSeconds: 0.5 }, async (jobs) => {
        for (const job of jobs) {
          begin(job.data);
          onEnded();
        }
      }),
    settlesLater: true,
    unsettled: async () =>
      Number((await pool.query("SELECT count(*) FROM pgboss.job WHERE state <> 'completed'")).rows[0].count),
  };
}

await main(open);
