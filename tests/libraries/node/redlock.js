// redlock: locks over independent servers; here three databases of one.
"use strict";

const assert = require("node:assert/strict");
const Redis = require("ioredis");
const Redlock = require("redlock");
const { host, port, did, sleep, main } = require("./did");

main(async () => {
  const clients = [0, 1, 2].map((db) => new Redis({ host, port, db }));
  const patient = new Redlock(clients, { retryCount: 100, retryDelay: 20, retryJitter: 10 });
  const hasty = new Redlock(clients, { retryCount: 0 });

  const lock = await hasty.lock("lock", 5000);
  await assert.rejects(hasty.lock("lock", 5000), { name: "LockError" });
  await lock.extend(10000);
  for (const client of clients) assert((await client.pttl("lock")) > 5000, "not extended");
  await lock.unlock();
  await (await hasty.lock("lock", 5000)).unlock();
  did("contend, extend, release");

  let inside = 0;
  let most = 0;
  const work = async () => {
    const busy = await patient.lock("busy", 5000);
    most = Math.max(most, ++inside);
    await sleep(10);
    inside--;
    await busy.unlock();
  };
  await Promise.all([...Array(10)].map(work));
  assert.equal(most, 1, "two inside");
  did("10 contenders, one inside");

  const short = await hasty.lock("short", 300);
  const next = await patient.lock("short", 5000);
  await assert.rejects(short.unlock(), { name: "LockError" });
  await next.unlock();
  did("expiry");

  await clients[2].set("majority", "another owner");
  await (await hasty.lock("majority", 5000)).unlock();
  await clients[1].set("majority", "another owner");
  await assert.rejects(hasty.lock("majority", 5000), { name: "LockError" });
  const several = await hasty.lock(["a", "b"], 5000);
  await assert.rejects(hasty.lock(["b", "c"], 5000), { name: "LockError" });
  await several.unlock();
  did("majority, several resources");
});
