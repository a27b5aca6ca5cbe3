// What all programs of this folder share: the server, and the lines that they print.
"use strict";

const host = process.env.REDIS_HOST || "127.0.0.1";
const port = Number(process.env.REDIS_PORT || 6379);

const did = (what) => console.log("did", what);
const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

async function waitUntil(condition, what, patienceMs = 20000) {
  const deadline = Date.now() + patienceMs;
  for (;;) {
    const result = await condition();
    if (result) return result;
    if (Date.now() > deadline) throw new Error(`${patienceMs} ms passed and still not: ${what}`);
    await sleep(20);
  }
}

// Runs the program; ends the process with its result, whatever connections are still open.
function main(work) {
  work().then(
    () => process.exit(0),
    (error) => {
      console.error(error);
      process.exit(1);
    },
  );
}

module.exports = { host, port, url: `redis://${host}:${port}`, did, sleep, waitUntil, main };
