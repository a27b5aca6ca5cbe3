// rate-limiter-flexible over ioredis and over node-redis: limits, windows, blocks, queues.
"use strict";

const assert = require("node:assert/strict");
const Redis = require("ioredis");
const { BurstyRateLimiter, RateLimiterQueue, RateLimiterRedis } = require("rate-limiter-flexible");
const { createClient } = require("redis");
const { host, port, url, did, sleep, main } = require("./did");

async function limits(name, options) {
  const make = (letter, points, duration, more) =>
    new RateLimiterRedis({ ...options, keyPrefix: `${name}:${letter}`, points, duration, ...more });
  const limiter = make("a", 3, 1);
  const tries = await Promise.allSettled([...Array(5)].map(() => limiter.consume("user")));
  const granted = tries.filter((result) => result.status === "fulfilled");
  assert.equal(granted.length, 3, String(tries[0].reason));
  const refused = tries.find((result) => result.status === "rejected").reason;
  assert(refused.msBeforeNext > 0 && refused.msBeforeNext <= 1000, `retry in ${refused.msBeforeNext} ms`);
  await limiter.consume("another user");
  await sleep(1100);
  assert.equal((await limiter.consume("user", 2)).remainingPoints, 1);
  await limiter.reward("user", 1);
  assert.equal((await limiter.get("user")).consumedPoints, 1);
  await limiter.penalty("user", 5);
  await assert.rejects(limiter.consume("user"), { remainingPoints: 0 });
  assert(await limiter.delete("user"));
  assert.equal(await limiter.get("user"), null);

  const blocking = make("b", 1, 1, { blockDuration: 3 });
  await blocking.consume("user");
  await assert.rejects(blocking.consume("user"));
  await sleep(1300);
  await assert.rejects(blocking.consume("user"), { remainingPoints: 0 }, "not blocked beyond the window");
  await blocking.block("other", 60);
  assert((await blocking.get("other")).msBeforeNext > 50000);

  const bursty = new BurstyRateLimiter(make("c", 1, 1), make("d", 2, 10));
  for (let n = 0; n < 3; n++) await bursty.consume("user");
  await assert.rejects(bursty.consume("user"));

  const queued = new RateLimiterQueue(make("e", 2, 1));
  const start = Date.now();
  for (let n = 0; n < 5; n++) await queued.removeTokens(1);
  assert(Date.now() - start > 900, "the queue did not wait");
  did(`${name}: limit, window over, reward, penalty, block, burst, queue`);
}

main(async () => {
  await limits("ioredis", { storeClient: new Redis({ host, port }) });
  const nodeRedis = await createClient({ url }).connect();
  await limits("node-redis", { storeClient: nodeRedis, useRedisPackage: true });
});
