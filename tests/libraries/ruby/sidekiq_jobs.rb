# Sidekiq: jobs, delays, retries, dead jobs, its process and its interface for programs.

require "sidekiq/api"
require_relative "sidekiq_worker"

# At its end the process waits 4 seconds for unfinished jobs: longer than it waits for a new one.
# Otherwise it may take an unfinished job that it has just put back, and lose it.
command = %w[sidekiq --concurrency 2 --timeout 4 --queue default --queue low --require]
worker = Process.spawn(*command, "#{__dir__}/sidekiq_worker.rb")
redis = Redis.new(url: URL)
begin
  wait_until("the process is known", 60) { Sidekiq::ProcessSet.new.size == 1 }
  did "process, heartbeat"

  Add.perform_bulk((1..50).map { |n| [n, 1] })
  Add.set(queue: "low").perform_async(10, 10)
  wait_until("the sum is complete") { redis.get("sum").to_i == (1..50).sum + 50 + 20 }
  did "enqueue, bulk, two queues"

  start = Time.now
  Add.perform_in(1.5, 1000, 0)
  check Sidekiq::ScheduledSet.new.size == 1, "not scheduled"
  wait_until("the delayed job ran") { redis.get("sum").to_i >= 2345 }
  check Time.now - start > 1.4, "too early"
  did "delay"

  # Sidekiq adds up to 10 seconds to the delay of a retry.
  Flaky.perform_async
  wait_until("retried", 60) { redis.get("tries").to_i == 3 }
  Broken.perform_async
  dead = Sidekiq::DeadSet.new
  wait_until("dead") { dead.size == 1 }
  check dead.first["error_message"] == "as intended", dead.first["error_message"]
  dead.first.retry
  wait_until("dead again") { dead.size == 1 }
  dead.clear
  did "retry, dead jobs"

  wait_until("all is counted", 30) { Sidekiq::Stats.new.processed >= 55 }
  check Sidekiq::Stats.new.failed >= 4, "#{Sidekiq::Stats.new.failed} failed"
  did "statistics"

  Slow.perform_async
  wait_until("the slow job runs") { redis.get("slow") }
  wait_until("seen at work", 30) { Sidekiq::Workers.new.size == 1 }
  check Sidekiq::Queue.new.size.zero?, "still in the queue"
ensure
  Process.kill("TERM", worker)
  Process.wait(worker)
end
check $?.success?, "the process ended with #{$?}"
check Sidekiq::Queue.new.size == 1, "the unfinished job was not put back"
check Sidekiq::ProcessSet.new.size.zero?, "the process is still known"
Sidekiq::Queue.new.clear
did "shutdown puts an unfinished job back"
