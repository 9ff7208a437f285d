// Measures the client beside bare `fetch` on this machine: REDRIVE_BIN=… npm run bench [seconds per turn]
import { Redrive } from "redrive";
import { RedriveTestServer } from "redrive/testing";

const IN_FLIGHT = 32;
const TURNS = 6;
const TURN_MS = 1000 * Number(process.argv[2] ?? 2);
const WORKER_EVENTS = 20_000;
const event = { type: "bench.run", payload: { order: 7, items: ["book", "pen"], total: 19.9 } };

/** Calls `publish` with a number of calls in flight for `ms`; returns calls per second. */
async function rate(publish, ms) {
  const startedAt = performance.now();
  let count = 0;
  const loop = async () => {
    while (performance.now() - startedAt < ms) {
      await publish();
      count += 1;
    }
  };
  await Promise.all(Array.from({ length: IN_FLIGHT }, loop));
  return (1000 * count) / (performance.now() - startedAt);
}

/** Publishes like a program without this package. */
function bareFetch(url, headers) {
  return async () => {
    const response = await fetch(`${url}/v1/events`, {
      method: "POST",
      headers: { "content-type": "application/json", ...headers() },
      body: JSON.stringify(event),
    });
    if (response.status !== 202) throw new Error(`status ${response.status}`);
    await response.json();
  };
}

async function benchPublish(server) {
  const redrive = server.client();
  let keys = 0;
  const ways = {
    "bare fetch": bareFetch(server.url, () => ({})),
    "bare fetch, Idempotency-Key": bareFetch(server.url, () => ({ "idempotency-key": `bench-${(keys += 1)}` })),
    "redrive.publish": () => redrive.publish(event),
  };
  const rates = Object.fromEntries(Object.keys(ways).map((name) => [name, []]));
  for (const publish of Object.values(ways)) await rate(publish, 500); // warm up
  for (let turn = 0; turn < TURNS; turn += 1) {
    const names = Object.keys(ways);
    if (turn % 2 === 1) names.reverse();
    for (const name of names) rates[name].push(await rate(ways[name], TURN_MS));
  }
  const medians = Object.fromEntries(Object.entries(rates).map(([name, values]) => [name, median(values)]));
  console.log(`publish, ${IN_FLIGHT} in flight, median of ${TURNS} turns of ${TURN_MS / 1000} s:`);
  for (const [name, value] of Object.entries(medians)) {
    console.log(`  ${name.padEnd(28)} ${value.toFixed(0).padStart(6)}/s  ${(value / medians["bare fetch"]).toFixed(2)} of bare fetch`);
  }
}

async function benchWorker(server, concurrency) {
  const redrive = new Redrive({ url: server.url });
  const name = `bench-${concurrency}`;
  await redrive.subscriptions.put(name, { patterns: [`${name}.*`] });
  const events = Array.from({ length: WORKER_EVENTS }, () => ({ ...event, type: `${name}.run` }));
  await redrive.publishMany(events);
  const startedAt = performance.now();
  const cpu = process.cpuUsage();
  const worker = redrive.worker(name, () => undefined, { concurrency });
  while (worker.stats.handled < WORKER_EVENTS) await new Promise((resolve) => setTimeout(resolve, 5));
  const seconds = (performance.now() - startedAt) / 1000;
  const { user, system } = process.cpuUsage(cpu);
  await worker.stop();
  const busy = ((user + system) / 1e4 / seconds).toFixed(0);
  console.log(`  concurrency ${String(concurrency).padStart(3)}: ${(WORKER_EVENTS / seconds).toFixed(0).padStart(6)} events/s, ${busy} % of a core in this process`);
}

function median(values) {
  const sorted = [...values].sort((a, b) => a - b);
  return sorted[Math.floor(sorted.length / 2)];
}

const server = await RedriveTestServer.start();
try {
  await benchPublish(server);
  console.log(`worker, no-op handler, ${WORKER_EVENTS} events:`);
  for (const concurrency of [16, 32, 100]) await benchWorker(server, concurrency);
} finally {
  await server.stop();
}
