// socket.io with its Redis adapter: two servers, clients at each of them.
"use strict";

const assert = require("node:assert/strict");
const http = require("node:http");
const { createAdapter, createShardedAdapter } = require("@socket.io/redis-adapter");
const { createClient } = require("redis");
const { Server } = require("socket.io");
const connectTo = require("socket.io-client");
const { url, did, sleep, waitUntil, main } = require("./did");

async function start(adapterOf, name) {
  const publisher = await createClient({ url }).connect();
  const subscriber = await publisher.duplicate().connect();
  const web = http.createServer();
  const io = new Server(web, { adapter: adapterOf(publisher, subscriber) });
  io.on("connection", (socket) => socket.on("join", (room, done) => Promise.resolve(socket.join(room)).then(done)));
  io.on("ask", (question, answer) => answer(`${name} heard ${question}`));
  await new Promise((resolve) => web.listen(0, "127.0.0.1", resolve));
  return { io, port: web.address().port };
}

async function client(server) {
  const socket = connectTo(`http://127.0.0.1:${server.port}`, { transports: ["websocket"], forceNew: true });
  const heard = [];
  socket.on("news", (text) => heard.push(text));
  await new Promise((resolve) => socket.on("connect", resolve));
  return { socket, heard, join: (room) => new Promise((resolve) => socket.emit("join", room, resolve)) };
}

async function rooms(name, adapterOf) {
  const one = await start(adapterOf, "one");
  const two = await start(adapterOf, "two");
  const [a, b, c] = [await client(one), await client(two), await client(two)];
  await Promise.all([a.join("room"), b.join("room")]);
  // The subscription of a room by a sharded adapter is not waited for.
  await sleep(200);

  one.io.to("room").emit("news", "from one");
  two.io.to("room").except(b.socket.id).emit("news", "from two");
  await waitUntil(() => a.heard.length === 2 && b.heard.length === 1, "both servers' members heard it");
  one.io.emit("news", "to all");
  await waitUntil(() => c.heard.length === 1, "everybody heard it");
  assert.deepEqual(a.heard.toSorted(), ["from one", "from two", "to all"]);
  assert.deepEqual(b.heard, ["from one", "to all"]);
  assert.deepEqual(c.heard, ["to all"], "one outside of the room heard it");

  const answers = await one.io.serverSideEmitWithAck("ask", "this");
  assert.deepEqual(answers, ["two heard this"]);
  assert.equal((await one.io.fetchSockets()).length, 3);
  await one.io.in(c.socket.id).socketsJoin("room");
  await waitUntil(async () => (await two.io.in("room").fetchSockets()).length === 3, "joined from afar");
  const acknowledged = one.io.timeout(5000).to("room").emitWithAck("question");
  for (const { socket } of [a, b, c]) socket.on("question", (answer) => answer(socket.id));
  assert.equal((await acknowledged).length, 3);
  two.io.in("room").disconnectSockets();
  await waitUntil(() => !a.socket.connected && !c.socket.connected, "disconnected from afar");
  did(`${name}: rooms over two servers, acknowledgements, sockets elsewhere`);
}

main(async () => {
  await rooms("classic", (publisher, subscriber) => createAdapter(publisher, subscriber));
  await rooms("sharded", (publisher, subscriber) => createShardedAdapter(publisher, subscriber));
});
