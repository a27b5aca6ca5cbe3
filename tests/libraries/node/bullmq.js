// BullMQ: jobs, delays, retries, priorities, flows, schedulers, rate limits, events.
"use strict";

const assert = require("node:assert/strict");
const { FlowProducer, Queue, QueueEvents, Worker } = require("bullmq");
const { host, port, did, sleep, waitUntil, main } = require("./did");

const connection = { host, port, maxRetriesPerRequest: null };

main(async () => {
  const queue = new Queue("work", { connection });
  const events = new QueueEvents("work", { connection });
  await events.waitUntilReady();
  const order = [];
  const tries = {};
  const worker = new Worker(
    "work",
    async (job) => {
      order.push(job.name);
      tries[job.id] = (tries[job.id] || 0) + 1;
      if (job.name === "flaky" && tries[job.id] < 3) throw new Error("not yet");
      if (job.name === "broken") throw new Error("as intended");
      if (job.name === "progress") await job.updateProgress(50);
      return { sum: (job.data.x || 0) + (job.data.y || 0) };
    },
    { connection, concurrency: 4 },
  );
  await worker.waitUntilReady();

  const jobs = await queue.addBulk([...Array(50).keys()].map((n) => ({ name: "add", data: { x: n, y: 1 } })));
  const results = await Promise.all(jobs.map((job) => job.waitUntilFinished(events, 20000)));
  assert.deepEqual(results.map((result) => result.sum), [...Array(50).keys()].map((n) => n + 1));
  did("add, work, results by events");

  const start = Date.now();
  const late = await queue.add("late", {}, { delay: 1000 });
  assert.equal(await late.getState(), "delayed");
  await late.waitUntilFinished(events, 20000);
  assert(Date.now() - start > 900, "too early");
  did("delay");

  const backoff = { type: "exponential", delay: 50 };
  const flaky = await queue.add("flaky", {}, { attempts: 5, backoff });
  await flaky.waitUntilFinished(events, 20000);
  assert.equal(tries[flaky.id], 3);
  const broken = await queue.add("broken", {}, { attempts: 2 });
  await assert.rejects(broken.waitUntilFinished(events, 20000), /as intended/);
  assert.equal(await broken.getState(), "failed");
  assert.equal((await queue.getJobCounts("failed")).failed, 1);
  await broken.retry();
  await waitUntil(async () => (await broken.getState()) === "failed" && tries[broken.id] === 3, "retried by hand");
  did("retry with backoff, failures, retry by hand");

  await queue.pause();
  order.length = 0;
  await queue.addBulk([3, 1, 2].map((priority) => ({ name: `p${priority}`, data: {}, opts: { priority } })));
  worker.concurrency = 1;
  await sleep(200);
  assert.deepEqual(order, [], "a paused queue works");
  await queue.resume();
  await waitUntil(() => order.length === 3, "all priorities ran");
  assert.deepEqual(order, ["p1", "p2", "p3"]);
  did("pause, priorities");

  const flow = new FlowProducer({ connection });
  const children = [1, 2, 3].map((x) => ({ name: "child", queueName: "work", data: { x } }));
  const tree = await flow.add({ name: "parent", queueName: "work", data: {}, children });
  await tree.job.waitUntilFinished(events, 20000);
  const sums = Object.values(await tree.job.getChildrenValues()).map((value) => value.sum);
  assert.deepEqual(sums.sort(), [1, 2, 3]);
  did("flow of a parent and children");

  const before = order.length;
  await queue.upsertJobScheduler("tick", { every: 200 }, { name: "tick" });
  await waitUntil(() => order.slice(before).filter((name) => name === "tick").length >= 3, "three ticks");
  assert(await queue.removeJobScheduler("tick"));
  did("repeated by a scheduler");

  const progress = new Promise((resolve) => events.once("progress", ({ data }) => resolve(data)));
  await queue.add("progress", {});
  assert.equal(await progress, 50);
  await queue.add("once", {}, { deduplication: { id: "same", ttl: 5000 }, delay: 3000 });
  await queue.add("once", {}, { deduplication: { id: "same", ttl: 5000 }, delay: 3000 });
  assert.equal(await queue.getDelayedCount(), 1);
  did("progress, deduplication");

  const limiter = { max: 2, duration: 500 };
  const times = [];
  const limited = new Queue("limited", { connection });
  const slow = new Worker("limited", async () => times.push(Date.now()), { connection, limiter });
  await limited.addBulk([...Array(6).keys()].map((n) => ({ name: `n${n}`, data: {} })));
  await waitUntil(() => times.length === 6, "all limited jobs ran");
  assert(times[5] - times[0] > 800, `not limited: ${times[5] - times[0]} ms`);
  did("rate limit");

  await Promise.all([worker.close(), slow.close(), events.close(), flow.close()]);
  await queue.obliterate({ force: true });
  assert.equal((await queue.getJobCounts()).completed, 0);
  did("obliterate");
});
