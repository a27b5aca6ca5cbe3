# redis-rb: all kinds of commands, pipelines, transactions, scripts, messages, blocking reads.

require "redis"
require_relative "did"

redis = Redis.new(url: URL)
check redis.ping == "PONG", "no PONG"
check redis.set("a", "1", ex: 60, nx: true), "not set"
check !redis.set("a", "2", nx: true), "set twice"
check redis.incrby("a", 41) == 42 && (1..60).cover?(redis.ttl("a")), "not counted"
binary = (0..255).to_a.pack("C*") * 4096
redis.set("binary", binary[0, 1 << 20])
check redis.get("binary").b == binary, "1 MiB came back otherwise"
redis.mapped_hmset("hash", { "x" => "1", "y" => "2" })
check redis.hgetall("hash") == { "x" => "1", "y" => "2" }, "another hash"
redis.zadd("zset", [[1, "one"], [2.5, "two"]])
check redis.zrange("zset", 0, -1, with_scores: true) == [["one", 1.0], ["two", 2.5]], "another sorted set"
redis.pipelined { |many| 2000.times { |n| many.set("key:#{n}", n) } }
check redis.scan_each(match: "key:*").to_a.uniq.size == 2000, "SCAN misses keys"
check redis.mget("key:1", "key:none") == ["1", nil], "another MGET"
error = raises(Redis::CommandError) { redis.lpush("a", "x") }
check error.message.start_with?("WRONGTYPE"), error.message
did "commands, pipeline, scan, error"

check redis.multi { |all| all.incr("n"); all.incr("n") } == [1, 2], "another transaction"
lost = redis.watch("a") do
  Redis.new(url: URL).set("a", "changed")
  redis.multi { |all| all.set("a", "lost") }
end
check lost.nil? && redis.get("a") == "changed", "EXEC in spite of a change"
check redis.eval("return {KEYS[1], ARGV[1]}", keys: ["k"], argv: ["v"]) == %w[k v], "another script"
sha = redis.script(:load, "return redis.call('INCR', KEYS[1])")
check redis.evalsha(sha, keys: ["n"]) == 3, "another script"
raises(Redis::CommandError) { redis.evalsha("0" * 40) }
did "MULTI, WATCH, scripts"

heard = Queue.new
listener = Thread.new do
  Redis.new(url: URL).psubscribe("news.*") do |on|
    on.psubscribe { heard << :ready }
    on.pmessage do |_, channel, message|
      heard << [channel, message]
      Thread.exit if message == "end"
    end
  end
end
check heard.pop == :ready, "not subscribed"
check redis.publish("news.x", "hello") == 1, "nobody listens"
check heard.pop == ["news.x", "hello"], "another message"
redis.publish("news.x", "end")
listener.join(10)
pusher = Thread.new { sleep 0.2; Redis.new(url: URL).rpush("list", "item") }
check redis.blpop("list", timeout: 10) == %w[list item], "BLPOP"
check redis.blpop("list", timeout: 1).nil?, "BLPOP of nothing"
pusher.join
id = redis.xadd("stream", { "f" => "v" })
redis.xgroup(:create, "stream", "g", "0")
check redis.xreadgroup("g", "c", "stream", ">") == { "stream" => [[id, { "f" => "v" }]] }, "another stream"
check redis.xack("stream", "g", id) == 1, "not acknowledged"
did "messages, BLPOP, stream"
