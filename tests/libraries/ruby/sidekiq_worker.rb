# The jobs of sidekiq_jobs.rb, for its process.

require "sidekiq"
require_relative "did"

# Sidekiq calls redis-rb in forms that its next version has not.
Redis.silence_deprecations = true

Sidekiq.configure_client { |config| config.redis = { url: URL } }
Sidekiq.configure_server do |config|
  config.redis = { url: URL }
  config.average_scheduled_poll_interval = 1
  config.logger.level = Logger::FATAL
end

class Add
  include Sidekiq::Job
  def perform(x, y)
    Sidekiq.redis { |redis| redis.incrby("sum", x + y) }
  end
end

class Flaky
  include Sidekiq::Job
  sidekiq_options retry: 5
  sidekiq_retry_in { 0 }
  def perform
    tries = Sidekiq.redis { |redis| redis.incr("tries") }
    raise "not yet" if tries < 3
  end
end

class Broken
  include Sidekiq::Job
  sidekiq_options retry: 0
  def perform
    raise "as intended"
  end
end

class Slow
  include Sidekiq::Job
  def perform
    Sidekiq.redis { |redis| redis.incr("slow") }
    sleep 60
  end
end
