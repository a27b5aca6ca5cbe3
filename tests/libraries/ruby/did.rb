# What all programs of this folder share: the server, and the lines that they print.

HOST = ENV.fetch("REDIS_HOST", "127.0.0.1")
PORT = ENV.fetch("REDIS_PORT", "6379").to_i
URL = "redis://#{HOST}:#{PORT}"
$stdout.sync = true

def did(what)
  puts "did #{what}"
end

def check(holds, text)
  abort text unless holds
end

def wait_until(what, patience = 20)
  deadline = Time.now + patience
  until (result = yield)
    check Time.now < deadline, "#{patience} s passed and still not: #{what}"
    sleep 0.02
  end
  result
end

def raises(kind)
  result = yield
rescue kind => error
  error
else
  abort "no #{kind}, but #{result.inspect}"
end
