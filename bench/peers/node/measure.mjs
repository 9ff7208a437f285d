// The measurements of ../rust/measure for queues in Node.

const BATCH = 1000;
const TICK_MS = 5; // 200 jobs a second
const UP_MS = 300;
const LAST_MS = 5000;

const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

/** The job of all measurements: an order with its send time. */
function sentNow() {
  return {
    order: 4711, customer: "c-1234567", total: "129.90", currency: "EUR",
    items: [{ sku: "A-100", quantity: 2 }, { sku: "B-200", quantity: 1 }],
    note: "please leave it at the door", sent: performance.now(),
  };
}

function rate(count, began, jobs) {
  return { count, seconds: (performance.now() - began) / 1000, cut: count < jobs };
}

async function callers(peer, jobs, limit, count) {
  const job = sentNow();
  // Connections are opened and statements prepared before the clock runs.
  await Promise.all(Array.from({ length: count }, () => peer.enqueue(job)));
  const began = performance.now();
  let [taken, stored] = [0, 0];
  const call = async () => {
    while (taken < jobs && performance.now() - began < limit) {
      taken += 1;
      await peer.enqueue(job);
      stored += 1;
    }
  };
  await Promise.all(Array.from({ length: count }, call));
  return rate(stored, began, jobs);
}

async function batch(peer, jobs, limit) {
  const list = Array(Math.min(BATCH, jobs)).fill(sentNow());
  const began = performance.now();
  let stored = 0;
  while (stored < jobs && performance.now() - began < limit) {
    await peer.enqueueBatch(list);
    stored += list.length;
  }
  return rate(stored, began, jobs);
}

async function process_(peer, jobs, limit) {
  await batch(peer, jobs, Infinity);
  let settled = 0;
  const began = performance.now();
  const all = new Promise((resolve, reject) => {
    peer.handle(() => {}, () => {
      settled += 1;
      // Here and not in a timer: a worker that always finds work never lets a timer run.
      if (settled === jobs || performance.now() - began > limit) resolve(rate(settled, began, jobs));
    }).catch(reject);
  });
  const report = await all;
  // Some write down behind the handler's back that it has ended.
  while (peer.settlesLater && !report.cut && (await peer.unsettled()) > 0) {
    await sleep(5);
    report.seconds = (performance.now() - began) / 1000;
  }
  const left = await peer.unsettled();
  if (!report.cut && left > 0) throw new Error(`the clock has stopped, but ${left} of ${jobs} jobs are not settled`);
  return report;
}

async function latency(peer, time) {
  const jobs = Math.floor(time / TICK_MS);
  const ages = [];
  const failed = peer.handle((job) => ages.push(performance.now() - job.sent), () => {});
  failed.catch((error) => end({ error: String(error) }));
  await sleep(UP_MS);
  for (let next = performance.now(), n = 0; n < jobs; n += 1) {
    await sleep(next - performance.now());
    await peer.enqueue(sentNow());
    next = Math.max(next + TICK_MS, performance.now());
  }
  for (const until = performance.now() + LAST_MS; ages.length < jobs && performance.now() < until;) await sleep(10);
  ages.sort((a, b) => a - b);
  const percentile = (percent) => ages[Math.floor((ages.length * percent) / 100)];
  return { count: ages.length, p50_ms: percentile(50), p99_ms: percentile(99), cut: ages.length < jobs };
}

/** Prints the report and ends the process without tidying up. */
function end(report) {
  console.log(JSON.stringify(report));
  process.exit(report.error ? 1 : 0);
}

/** Takes the measurement that the command line asks for: measure, file, setting, jobs, seconds. */
export async function main(open) {
  const [measure, file, setting, jobs, seconds] = process.argv.slice(2);
  try {
    const [peer, count, limit] = [await open(file, setting), Number(jobs), Number(seconds) * 1000];
    switch (measure) {
      case "setup": return end(rate(0, performance.now(), 0));
      case "one": return end(await callers(peer, count, limit, 1));
      case "callers-32": return end(await callers(peer, count, limit, 32));
      case "batch": return end(await batch(peer, count, limit));
      case "process": return end(await process_(peer, count, limit));
      case "latency": return end(await latency(peer, limit));
      default: throw new Error(`${measure} is not a measure`);
    }
  } catch (error) {
    end({ error: String(error) });
  }
}
