// connect-redis: sessions of an Express server.
"use strict";

const assert = require("node:assert/strict");
const express = require("express");
const session = require("express-session");
const { RedisStore } = require("connect-redis");
const { createClient } = require("redis");
const { url, did, sleep, main } = require("./did");

main(async () => {
  const client = await createClient({ url }).connect();
  const store = new RedisStore({ client, prefix: "session:" });
  const app = express();
  app.use(session({ store, resave: false, saveUninitialized: false, secret: "s", cookie: { maxAge: 1500 } }));
  app.get("/login", (request, response) => {
    request.session.user = "ann";
    response.send("in");
  });
  app.get("/who", (request, response) => response.send(request.session.user || "nobody"));
  app.get("/logout", (request, response) => request.session.destroy(() => response.send("out")));
  const server = await new Promise((resolve) => {
    const listening = app.listen(0, "127.0.0.1", () => resolve(listening));
  });
  const base = `http://127.0.0.1:${server.address().port}`;
  const login = async () => (await fetch(`${base}/login`)).headers.get("set-cookie").split(";")[0];
  const get = async (path, cookie) => (await fetch(base + path, { headers: { cookie } })).text();

  const cookie = await login();
  assert.equal(await get("/who", cookie), "ann");
  assert.equal(await get("/who", "connect.sid=s%3Aforged.x"), "nobody");
  const [id] = await store.ids();
  const ttl = await client.ttl(`session:${id}`);
  assert(ttl === 1 || ttl === 2, `its time to live is ${ttl} s`);
  did("create, read");

  await sleep(2200);
  assert.equal(await get("/who", cookie), "nobody", "the session did not expire");

  did("expire");

  const other = await login();
  await login();
  assert.equal(await store.length(), 2);
  assert.equal((await store.all()).length, 2);
  await get("/logout", other);
  assert.equal(await get("/who", other), "nobody");
  await store.clear();
  assert.equal(await store.length(), 0);
  server.close();
  did("list, destroy, clear");
});
