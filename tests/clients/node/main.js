// The scenarios of tests/clients/README.md by node-redis (RESP2 and RESP3) and, called with a fourth argument
// `ioredis`, by ioredis (which speaks RESP2 alone). Each client is wrapped to the few calls the scenarios need.
"use strict";

const assert = require("node:assert/strict");
const fs = require("node:fs");
const readline = require("node:readline");

const [host, port, resp, library] = process.argv.slice(2);
const user = process.env.CLIENT_USER;
const account = user ? { username: user, password: process.env.CLIENT_PASSWORD } : {};
const fileOf = (name) => process.env[name] && fs.readFileSync(process.env[name]);
const tls = process.env.CLIENT_CA && {
  ca: fileOf("CLIENT_CA"),
  cert: fileOf("CLIENT_CERT"),
  key: fileOf("CLIENT_KEY"),
  minVersion: "TLSv1.3",
};
const refused = process.env.CLIENT_REFUSED;
// The newest error of a connection: ioredis gives requests no other reason than a closed connection.
let lastError;
const everyByte = Buffer.from(Array.from({ length: 256 }, (_, i) => i));

/** node-redis behind the calls of the scenarios. Arguments and replies are strings; `raw` gives buffers. */
async function nodeRedis() {
  const redis = require("redis");
  const client = redis.createClient({
    socket: { host, port: Number(port), reconnectStrategy: refused ? false : () => 20, ...(tls ? { tls: true, ...tls } : {}) },
    ...account,
    RESP: Number(resp),
    disableOfflineQueue: false,
  });
  client.on("error", (error) => (lastError = error));
  await client.connect();
  const typeMapping = { [redis.RESP_TYPES.BLOB_STRING]: Buffer };
  return {
    command: (...args) => client.sendCommand(args.map(String)),
    raw: (...args) => client.sendCommand(args, { typeMapping }),
    // One tick's commands go out in one write.
    pipeline: (commands) => Promise.all(commands.map((args) => client.sendCommand(args))),
    // Runs MULTI … EXEC; null when EXEC was refused because of WATCH.
    transaction: async (commands) => {
      const multi = client.multi();
      for (const args of commands) multi.addCommand(args);
      try {
        return await multi.exec();
      } catch (error) {
        if (error instanceof redis.WatchError) return null;
        throw error;
      }
    },
    watch: (key) => client.watch(key),
    scan: async (match, count) => {
      const found = [];
      for await (const keys of client.scanIterator({ MATCH: match, COUNT: count })) found.push(...keys);
      return found;
    },
    close: () => client.destroy(),
  };
}

/** ioredis behind the same calls. */
async function ioRedis() {
  const Redis = require("ioredis");
  const client = new Redis({ host, port: Number(port), retryStrategy: () => (refused ? null : 20), tls, ...account });
  client.on("error", (error) => (lastError = error));
  return {
    command: (...args) => client.call(...args.map(String)),
    raw: (name, ...args) => client.callBuffer(name, ...args),
    pipeline: async (commands) =>
      (await client.pipeline(commands.map(([name, ...args]) => ["call", name, ...args])).exec()).map(([error, reply]) => {
        if (error) throw error;
        return reply;
      }),
    transaction: async (commands) => {
      const multi = client.multi();
      for (const args of commands) multi.call(...args);
      const replies = await multi.exec();
      return replies && replies.map(([, reply]) => reply);
    },
    watch: (key) => client.watch(key),
    scan: async (match, count) => {
      const found = [];
      for await (const keys of client.scanStream({ match, count })) found.push(...keys);
      return found;
    },
    close: () => client.disconnect(),
  };
}

const open = library === "ioredis" ? ioRedis : nodeRedis;

const scenarios = {
  async connect(r) {
    assert.equal(await r.command("PING"), "PONG");
    assert.match(await r.command("CLIENT", "INFO"), new RegExp(`resp=${resp}\\b`));
  },

  async strings(r) {
    assert.equal(await r.command("SET", "s", "1", "EX", "100"), "OK");
    assert.equal(await r.command("SET", "s", "2", "NX"), null);
    assert.equal(await r.command("SET", "s", "3", "XX", "GET"), "1");
    assert.equal(await r.command("GET", "s"), "3");
    assert.equal(await r.command("APPEND", "s", "4"), 2);
    assert.equal(await r.command("INCRBY", "s", "8"), 42);
    assert.equal(await r.command("MSET", "s1", "a", "s2", "b"), "OK");
    assert.deepEqual(await r.command("MGET", "s1", "none", "s2"), ["a", null, "b"]);
    assert.equal(await r.command("DEL", "s", "s1", "s2", "none"), 3);
    assert.equal(await r.command("GET", "s"), null);
  },

  async pipeline(r) {
    const commands = [];
    const wanted = [];
    for (let i = 0; i < 5000; i++) {
      commands.push(["SET", `p${i}`, `${i}`], ["GET", `p${i}`]);
      wanted.push("OK", `${i}`);
    }
    assert.deepEqual(await r.pipeline(commands), wanted);
  },

  async transaction(r) {
    await r.command("DEL", "t");
    const replies = await r.transaction([["SET", "t", "1"], ["INCR", "t"], ["GET", "t"]]);
    assert.deepEqual(replies, ["OK", 2, "2"]);
    await r.command("MULTI");
    assert.equal(await r.command("SET", "t", "9"), "QUEUED");
    assert.equal(await r.command("DISCARD"), "OK");
    assert.equal(await r.command("GET", "t"), "2");
  },

  async watch(r) {
    const other = await open();
    await r.command("SET", "w", "1");
    await r.watch("w");
    await other.command("SET", "w", "2");
    assert.equal(await r.transaction([["SET", "w", "3"]]), null);
    assert.equal(await r.command("GET", "w"), "2");
    await r.watch("w");
    assert.deepEqual(await r.transaction([["SET", "w", "4"]]), ["OK"]);
    assert.equal(await r.command("GET", "w"), "4");
    other.close();
  },

  async big(r) {
    const value = Buffer.alloc(1 << 20, everyByte);
    assert.equal(String(await r.raw("SET", "big", value)), "OK");
    assert.ok(value.equals(await r.raw("GET", "big")));
  },

  async binary(r) {
    const pairs = [
      [everyByte, Buffer.from(everyByte).reverse()],
      [Buffer.from("\r\n"), Buffer.from("\r\n$5\r\n")],
      [Buffer.from([0]), Buffer.alloc(0)],
    ];
    for (const [key, value] of pairs) {
      assert.equal(String(await r.raw("SET", key, value)), "OK");
      assert.ok(value.equals(await r.raw("GET", key)));
    }
  },

  async expiry(r) {
    await r.command("SET", "e", "1", "PX", "60");
    const deadline = Date.now() + 10_000;
    while ((await r.command("GET", "e")) !== null) {
      assert.ok(Date.now() < deadline, "a key of 60 ms still lives after 10 s");
    }
    await r.command("SET", "e", "1", "PX", "60000");
    const left = await r.command("PTTL", "e");
    assert.ok(left > 0 && left <= 60_000, `PTTL ${left}`);
    assert.equal(await r.command("PERSIST", "e"), 1);
    assert.equal(await r.command("PTTL", "e"), -1);
    assert.equal(await r.command("PTTL", "none"), -2);
  },

  async scan(r) {
    const wanted = Array.from({ length: 3000 }, (_, i) => `scan:${i}`);
    await r.command("MSET", ...wanted.flatMap((key) => [key, "1"]));
    const found = new Set((await r.scan("scan:*", 100)).map(String));
    assert.deepEqual([...found].sort(), wanted.sort());
  },

  async errors(r) {
    await r.command("SET", "text", "abc");
    await assert.rejects(r.command("INCR", "text"), /not an integer/);
    await assert.rejects(r.command("NO-SUCH-COMMAND"), /unknown command/);
    assert.equal(await r.command("GET", "text"), "abc");
  },

  async concurrent(r) {
    await r.command("DEL", "count");
    const work = async () => {
      const own = await open();
      for (let i = 0; i < 250; i++) await own.command("INCR", "count");
      own.close();
    };
    await Promise.all(Array.from({ length: 8 }, work));
    assert.equal(await r.command("GET", "count"), "2000");
  },

  async reconnect(r) {
    assert.equal(await r.command("SET", "before", "1"), "OK");
    const lines = readline.createInterface({ input: process.stdin })[Symbol.asyncIterator]();
    console.log("kill me");
    await lines.next();
    const deadline = Date.now() + 20_000;
    for (;;) {
      try {
        assert.equal(await r.command("SET", "after", "1"), "OK");
        break;
      } catch (error) {
        if (Date.now() > deadline) throw error;
      }
    }
    assert.equal(await r.command("GET", "after"), "1");
  },
};

if (user) {
  scenarios.denied = async (r) => {
    await assert.rejects(r.command("CONFIG", "GET", "port"), /^(Reply|Simple)?Error: NOPERM/);
    await assert.rejects(r.command("GET", "denied"), /^(Reply|Simple)?Error: NOPERM/);
    assert.equal(await r.command("PING"), "PONG");
  };
}

/** Runs one scenario and prints its result. */
async function report(name, scenario) {
  try {
    await scenario();
    console.log(`pass ${name}`);
  } catch (error) {
    const text = refused && lastError ? `${error.message} ${lastError.message}` : String(error.message);
    console.log(`fail ${name} ${text.replaceAll("\n", " ").slice(0, 500)}`);
  }
}

async function main() {
  if (refused) {
    await report("connect", async () => scenarios.connect(await open()));
    process.exit(0);
  }
  const client = await open();
  for (const [name, scenario] of Object.entries(scenarios)) await report(name, () => scenario(client));
  client.close();
  process.exit(0);
}

main();
