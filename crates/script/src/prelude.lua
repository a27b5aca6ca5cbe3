-- The globals of scripts, made from Lua's own. It is run once for each interpreter, with the host's
-- functions, and returns the function that runs a script and the table that scripts see as `_G`.
--
-- A script sees empty tables that show the real ones (`shown`). Each function that changes a table
-- refuses them (`rawset`, `setmetatable`, `table.insert`), so it can change none of them. An error of
-- the host is userdata, and no script can catch it (`is_fatal`).

local host = ...
local null = host.null
local error, type, select, unpack, next, tostring = error, type, select, unpack, next, tostring
local rawget, rawset, setmetatable, tonumber = rawget, rawset, setmetatable, tonumber
local raw_pcall, raw_xpcall, raw_resume = pcall, xpcall, coroutine.resume
local loadstring, floor = loadstring, math.floor

-- The interpreter takes a chunk's name without holding it while it reads the chunk: they are held
-- here.
local NAMES = {"@user_script", "=(load)", "@user_function"}
local READONLY = "Attempt to modify a readonly table"

local function is_fatal(err)
  return type(err) == "userdata" and err ~= null
end

-- The real table behind each that is shown.
local shown = {}

local function refuse()
  error(READONLY, 2)
end

local locked = setmetatable({}, {__newindex = refuse, __metatable = false})
shown[locked] = {}

local function show(real)
  local proxy = setmetatable({}, {__index = real, __newindex = refuse, __metatable = locked})
  shown[proxy] = real
  return proxy
end

local function own_pairs(shown_next)
  local raw_pairs = pairs
  return function(t)
    if shown[t] then
      return shown_next, t, nil
    end
    return raw_pairs(t)
  end
end

-- A function whose errors are returned, with their first result: `false` or nil (`raise.rs`).
local raises = host.raises

-- As `raises`, of a function of the host: it holds all its arguments at once, and there is room for
-- about 8,000 values.
local function of_host(f)
  return raises(function(...)
    if select("#", ...) > 7000 then
      return false, "too many arguments"
    end
    return f(...)
  end)
end

-- The results of `cmsgpack`'s readers.
local function unpacked(ok, values, number)
  if not ok then
    return false, values
  end
  return true, unpack(values, 1, number)
end

local function after_pcall(ok, err, ...)
  if ok then
    return true, true, err, ...
  end
  if is_fatal(err) then
    return nil, err
  end
  if type(err) == "table" then
    local text = rawget(err, "err")
    if type(text) == "string" or type(text) == "number" then
      err = text
    end
  end
  return true, false, err
end

local function after(ok, err, ...)
  if not ok and is_fatal(err) then
    return nil, err
  end
  return true, ok, err, ...
end

local function handler(err)
  if is_fatal(err) then
    return err
  end
  local source, line = host.where()
  if type(err) ~= "table" or shown[err] then
    err = {err = "ERR " .. tostring(err)}
  end
  if source then
    rawset(err, "source", source)
    rawset(err, "line", line)
  end
  return err
end

local globals

-- Runs a script.
local function run(f, keys, args)
  globals.KEYS, globals.ARGV = keys, args
  return raw_xpcall(f, handler)
end

local function call_function(f, keys, args)
  globals.KEYS, globals.ARGV = nil, nil
  return raw_xpcall(function()
    return f(keys, args)
  end, handler)
end

-- The error of a function of `redis`, as its results.
local function failed(text)
  return nil, {err = "ERR " .. text}
end

globals = {
  _VERSION = _VERSION, assert = assert, error = error, gcinfo = gcinfo, getmetatable = getmetatable,
  ipairs = ipairs, rawequal = rawequal, select = select, tonumber = tonumber, tostring = tostring,
  type = type,
}

globals.next = function(t, key)
  return next(shown[t] or t, key)
end
globals.pairs = own_pairs(globals.next)
globals.rawget = function(t, key)
  return rawget(shown[t] or t, key)
end
globals.rawset = raises(function(t, key, value)
  if shown[t] then
    return nil, READONLY
  end
  return true, rawset(t, key, value)
end)
globals.setmetatable = raises(function(t, meta)
  if shown[t] then
    return nil, READONLY
  end
  return true, setmetatable(t, meta)
end)
globals.pcall = raises(function(...)
  return after_pcall(raw_pcall(...))
end)
globals.xpcall = raises(function(f, h)
  return after(raw_xpcall(f, function(err)
    if is_fatal(err) then
      return err
    end
    return h(err)
  end))
end)
globals.unpack = raises(function(list, from, to)
  local first, last = from or 1, to or (type(list) == "table" and #list or 0)
  if type(first) == "number" and type(last) == "number" and last - first >= 8000 then
    return false, "too many results to unpack"
  end
  host.tick()
  if from == nil and to == nil then
    return true, unpack(list)
  end
  return true, unpack(list, from, to)
end)
-- A full collection is done in steps, between which the script may be suspended. The first cycle may
-- have begun before: what has died since is found by the second.
local function collect()
  for _ = 1, 2 do
    while not collectgarbage("step", 20) do
      host.tick()
    end
  end
  return 0
end
globals.collectgarbage = function(what)
  if what == "count" then
    return collectgarbage(what)
  end
  return (what == nil or what == "collect") and collect() or 0
end
-- Bytecode is not read; a name ends at its first zero, as for the interpreter. The interpreter reads a
-- text in one piece, so one that a script makes may be as long as a script.
local TOO_LONG = "text too long"
globals.loadstring = function(text, name)
  host.tick()
  if type(text) == "string" and text:byte() == 27 then
    return nil, "attempt to load bytecode"
  end
  if type(text) == "string" and #text > host.text_max then
    return nil, TOO_LONG
  end
  name = name == nil and text or name
  if type(name) == "string" then
    name = name:match("^[^%z]*")
  end
  local f, err = loadstring(text, name)
  return f, err
end
globals.load = raises(function(f, name)
  if type(f) ~= "function" then
    return false, "bad argument #1 to 'load' (function expected, got " .. type(f) .. ")"
  end
  local parts, bytes = {}, 0
  while true do
    local part = f()
    if part == nil or part == "" then
      break
    end
    if type(part) ~= "string" then
      return true, nil, "reader function must return a string"
    end
    parts[#parts + 1] = part
    bytes = bytes + #part
    if bytes > host.text_max then
      return true, nil, TOO_LONG
    end
  end
  return true, globals.loadstring(globals.table.concat(parts), name or NAMES[2])
end)

local strings = {}
for name, f in next, string do
  strings[name] = f
end
strings.dump = nil
for _, name in next, {"format", "sub"} do
  strings[name] = host.ticks(string[name], host.tick)
end

-- Patterns are matched by the host, which can be suspended.
local patterns = host.patterns

local function is_text(value)
  return type(value) == "string" or type(value) == "number"
end

local function bad(at, name, wanted, value, is_there)
  local got = (value == nil and not is_there) and "no value" or type(value)
  return "bad argument #" .. at .. " to '" .. name .. "' (" .. wanted .. " expected, got " .. got .. ")"
end

-- The text and the pattern of a search, or nil and the text of an error.
local function searched(name, count, text, pattern)
  if not is_text(text) then
    return nil, bad(1, name, "string", text, count >= 1)
  end
  if not is_text(pattern) then
    return nil, bad(2, name, "string", pattern, count >= 2)
  end
  return tostring(text), tostring(pattern)
end

-- The place at which a search begins, from 0.
local function begin(name, text, from)
  local place = tonumber(from == nil and 1 or from)
  if not place then
    return nil, bad(3, name, "number", from, true)
  end
  if not (place >= -2 ^ 63 and place < 2 ^ 63) then
    return 0 -- C converts such a number to its smallest integer
  end
  place = place < 0 and math.ceil(place) or floor(place)
  if place < 0 then
    place = math.max(#text + place + 1, 1)
  end
  return math.min(math.max(place - 1, 0), #text)
end

strings.find = raises(function(...)
  local text, pattern, from, plain = ...
  local text, pattern = searched("find", select("#", ...), text, pattern)
  if not text then
    return false, pattern
  end
  local place, why = begin("find", text, from)
  if not place then
    return false, why
  end
  return patterns.find(text, pattern, place, not not plain)
end)

local function captures(ok, start, last, ...)
  if not ok or start == nil then
    return ok, start
  end
  return true, ...
end

strings.match = raises(function(...)
  local text, pattern, from = ...
  local text, pattern = searched("match", select("#", ...), text, pattern)
  if not text then
    return false, pattern
  end
  local place, why = begin("match", text, from)
  if not place then
    return false, why
  end
  return captures(patterns.search(text, pattern, place))
end)

strings.gmatch = raises(function(...)
  local text, pattern = searched("gmatch", select("#", ...), ...)
  if not text then
    return false, pattern
  end
  local at = 0
  -- A caret is a character here.
  if pattern:byte() == 94 then
    pattern = "%" .. pattern
  end
  local function after(ok, start, last, ...)
    if not ok or start == nil then
      at = #text + 1
      return ok, start
    end
    at = last > start and last or last + 1
    return true, ...
  end
  return true, raises(function()
    if at > #text then
      return true, nil
    end
    return after(patterns.search(text, pattern, at))
  end)
end)
strings.gfind = nil

-- One value for each match, of a function or of a table.
local function replaced(text, pattern, by, most)
  local parts, count, at, is_anchored = {}, 0, 0, pattern:byte() == 94
  local value, from, to, fault
  local function replace(ok, start, last, ...)
    from, to, fault = start, last, not ok and start
    if ok and start ~= nil then
      if type(by) == "function" then
        value = by(...)
      else
        value = by[(...)]
      end
    end
  end
  while count < most do
    replace(patterns.search(text, pattern, at))
    if fault then
      return false, fault
    end
    if from == nil then
      break
    end
    count = count + 1
    parts[#parts + 1] = string.sub(text, at + 1, from)
    if not value then
      value = string.sub(text, from + 1, to)
    elseif not is_text(value) then
      return false, "invalid replacement value (a " .. type(value) .. ")"
    end
    parts[#parts + 1] = value
    at = to
    if to == from then
      if from >= #text then
        break
      end
      parts[#parts + 1] = string.sub(text, from + 1, from + 1)
      at = from + 1
    end
    if is_anchored then
      break
    end
  end
  parts[#parts + 1] = string.sub(text, at + 1)
  return true, table.concat(parts), count
end

strings.gsub = raises(function(...)
  local text, pattern, by, most = ...
  local text, pattern = searched("gsub", select("#", ...), text, pattern)
  if not text then
    return false, pattern
  end
  if not is_text(by) and type(by) ~= "function" and type(by) ~= "table" then
    return false, "bad argument #3 to 'gsub' (string/function/table expected)"
  end
  if most ~= nil and not tonumber(most) then
    return false, bad(4, "gsub", "number", most, true)
  end
  most = most == nil and #text + 1 or tonumber(most)
  if is_text(by) then
    return patterns.gsub(text, pattern, tostring(by), most)
  end
  return replaced(text, pattern, by, most)
end)
strings.rep = raises(function(...)
  local text, times = ...
  if not is_text(text) then
    return false, bad(1, "rep", "string", text, select("#", ...) >= 1)
  end
  if not tonumber(times) then
    return false, bad(2, "rep", "number", times, select("#", ...) >= 2)
  end
  text, times = tostring(text), floor(tonumber(times))
  if text == "" or not (times > 0) then -- also for a NaN
    return true, ""
  end
  if #text * times > host.bytes_max then
    return nil, "not enough memory"
  end
  return true, host.rep(text, times)
end)
for _, name in next, {"upper", "lower", "reverse"} do
  strings[name] = raises(function(...)
    local text = ...
    if not is_text(text) then
      return false, bad(1, name, "string", text, select("#", ...) >= 1)
    end
    return true, host[name](tostring(text))
  end)
end

-- A function of Lua that walks over many values is one instruction: it walks over few at once.
local MANY = 5000
local tables = {}
for name, f in next, table do
  tables[name] = f
end

local function through(ok, ...)
  if not ok and is_fatal((...)) then
    return nil, (...)
  end
  return ok, ...
end

-- As `through`, of an error that names its line already, if it has one.
local function as_it_is(ok, ...)
  if not ok then
    return nil, (...)
  end
  return true, ...
end

tables.concat = raises(function(...)
  local list, separator, from, to = ...
  local is_plain = type(list) == "table" and (separator == nil or is_text(separator))
    and (from == nil or type(from) == "number") and (to == nil or type(to) == "number")
  local first, last = from or 1, is_plain and (to or #list) or 0
  if not is_plain or last - first < MANY then
    return through(raw_pcall(table.concat, ...))
  end
  local parts = {}
  while first <= last do
    local ok, part = raw_pcall(table.concat, list, separator, first, math.min(first + MANY - 1, last))
    if not ok then
      return through(false, part)
    end
    parts[#parts + 1] = part
    first = first + MANY
    host.tick()
  end
  return true, table.concat(parts, separator)
end)
tables.insert = raises(function(...)
  local list, at, value = ...
  if list ~= nil and shown[list] then
    return nil, READONLY
  end
  if select("#", ...) ~= 3 or type(list) ~= "table" or type(at) ~= "number" or #list - at < MANY then
    return through(raw_pcall(table.insert, ...))
  end
  for n = #list, at, -1 do
    rawset(list, n + 1, rawget(list, n))
  end
  rawset(list, at, value)
  return true
end)
tables.remove = raises(function(...)
  local list, at = ...
  if type(list) ~= "table" or type(at) ~= "number" or at < 1 or #list - at < MANY then
    return through(raw_pcall(table.remove, ...))
  end
  local value, last = rawget(list, at), #list
  for n = at, last - 1 do
    rawset(list, n, rawget(list, n + 1))
  end
  rawset(list, last, nil)
  return true, value
end)

-- Sorts by merging sorted runs.
local function merge_sort(list, less)
  local from, to, width, last = list, {}, 1, #list
  while width < last do
    for low = 1, last, 2 * width do
      local left, right, out = low, low + width, low
      local left_end, right_end = math.min(low + width, last + 1), math.min(low + 2 * width, last + 1)
      while left < left_end or right < right_end do
        if right >= right_end or left < left_end and not less(from[right], from[left]) then
          to[out], left = from[left], left + 1
        else
          to[out], right = from[right], right + 1
        end
        out = out + 1
      end
    end
    from, to, width = to, from, 2 * width
  end
  if from ~= list then
    for n = 1, last do
      list[n] = from[n]
    end
  end
end

local function is_less(a, b)
  return a < b
end

tables.sort = raises(function(...)
  local list, less = ...
  if type(list) ~= "table" then
    return false, bad(1, "sort", "table", list, select("#", ...) >= 1)
  end
  if less ~= nil and type(less) ~= "function" then
    return false, bad(2, "sort", "function", less, true)
  end
  if getmetatable(list) ~= nil or #list < MANY then
    return as_it_is(raw_pcall(table.sort, ...))
  end
  return as_it_is(raw_pcall(merge_sort, list, less or is_less))
end)
local maths = {}
for name, f in next, math do
  maths[name] = f
end
maths.random = raises(function(first, last)
  local draw = host.random()
  if first == nil then
    return true, draw
  end
  local low, high = 1, first
  if last ~= nil then
    low, high = first, last
  end
  if type(low) ~= "number" or type(high) ~= "number" then
    return false, "bad argument to 'random' (number expected)"
  end
  low, high = floor(low), floor(high)
  if low > high then
    local at = last == nil and 1 or 2
    return false, "bad argument #" .. at .. " to 'random' (interval is empty)"
  end
  return true, floor(draw * (high - low + 1)) + low
end)
maths.randomseed = raises(function(...)
  local seed = ...
  if not tonumber(seed) then
    return false, bad(1, "randomseed", "number", seed, select("#", ...) >= 1)
  end
  host.seed(tonumber(seed))
  return true
end)

local coroutines = {}
for name, f in next, coroutine do
  coroutines[name] = f
end
coroutines.resume = raises(function(...)
  return after(raw_resume(...))
end)

local redis = {
  LOG_DEBUG = 0, LOG_VERBOSE = 1, LOG_NOTICE = 2, LOG_WARNING = 3,
  REPL_NONE = 0, REPL_AOF = 1, REPL_SLAVE = 2, REPL_REPLICA = 2, REPL_ALL = 3,
  REDIS_VERSION = host.version, REDIS_VERSION_NUM = host.version_number,
}
redis.call, redis.pcall, redis.acl_check_cmd = host.call, host.pcall, host.allowed
redis.error_reply = function(...)
  local text = ...
  if select("#", ...) ~= 1 or type(text) ~= "string" then
    return {err = "ERR wrong number or type of arguments"}
  end
  return {err = host.error_text(text)}
end
redis.status_reply = function(...)
  local text = ...
  if select("#", ...) ~= 1 or type(text) ~= "string" then
    return {err = "ERR wrong number or type of arguments"}
  end
  return {ok = text}
end
redis.sha1hex = raises(function(...)
  if select("#", ...) ~= 1 then
    return failed("wrong number of arguments")
  end
  local text = ...
  host.tick()
  return true, host.sha1hex(type(text) == "string" and text or tostring(text))
end)
redis.log = raises(function(level, ...)
  if select("#", ...) < 1 then
    return failed("redis.log() requires two arguments or more.")
  end
  if type(level) ~= "number" then
    return failed("First argument must be a number (log level).")
  end
  if not (level >= 0 and level <= 3) then
    return failed("Invalid debug level.")
  end
  local words = {}
  for n = 1, select("#", ...) do
    local word = select(n, ...)
    if type(word) == "string" or type(word) == "number" then
      words[#words + 1] = word
    end
  end
  host.log(floor(level), table.concat(words, " "))
  return true
end)
redis.setresp = raises(function(...)
  if select("#", ...) ~= 1 then
    return failed("redis.setresp() requires one argument.")
  end
  local version = floor(tonumber((...)) or 0) -- also of a string, as in C
  if version ~= 2 and version ~= 3 then
    return failed("RESP version must be 2 or 3.")
  end
  host.setresp(version)
  return true
end)
redis.set_repl = raises(function(...)
  if select("#", ...) ~= 1 then
    return failed("redis.set_repl() requires two arguments.")
  end
  local flags = ...
  if type(flags) ~= "number" or flags < 0 or flags > 3 then
    return failed("Invalid replication flags. Use REPL_AOF, REPL_REPLICA, REPL_ALL or REPL_NONE.")
  end
  return true
end)
redis.replicate_commands = function()
  return true
end
redis.breakpoint = function()
  return false
end
redis.debug = function() end

local function new_json()
  local json = host.json()
  local library = {
    _NAME = "cjson", _VERSION = "2.1.0", null = null,
    encode = of_host(json.encode), decode = of_host(json.decode),
    encode_max_depth = of_host(json.encode_max_depth),
    decode_max_depth = of_host(json.decode_max_depth),
    encode_number_precision = of_host(json.encode_number_precision),
    encode_keep_buffer = of_host(json.encode_keep_buffer),
    encode_invalid_numbers = of_host(json.encode_invalid_numbers),
    decode_invalid_numbers = of_host(json.decode_invalid_numbers),
    encode_sparse_array = of_host(json.encode_sparse_array),
  }
  library.new = new_json
  return library
end

local bit = {}
for name, f in next, host.bit do
  bit[name] = of_host(f)
end

globals.string = show(strings)
globals.table = show(tables)
globals.math = show(maths)
globals.coroutine = show(coroutines)
globals.os = show({clock = host.clock})
globals.redis = show(redis)
globals.bit = show(bit)
globals.cjson = show(new_json())
globals.cmsgpack = show({
  _NAME = "cmsgpack", _VERSION = "lua-cmsgpack 0.4.0",
  _COPYRIGHT = "Copyright (C) 2012, Salvatore Sanfilippo",
  _DESCRIPTION = "MessagePack C implementation for Lua",
  pack = raises(function(...)
    return host.pack.pack(select("#", ...), {...})
  end),
  unpack = of_host(function(...)
    return unpacked(host.pack.unpack(...))
  end),
  unpack_one = of_host(function(...)
    return unpacked(host.pack.unpack_one(...))
  end),
  unpack_limit = of_host(function(...)
    return unpacked(host.pack.unpack_limit(...))
  end),
})
globals.struct = show({
  pack = of_host(host.layout.pack), unpack = of_host(host.layout.unpack), size = of_host(host.layout.size),
})

local meta = getmetatable("")
meta.__index, meta.__metatable = globals.string, locked

local missing = {__index = function(_, name)
  error("Script attempted to access nonexistent global variable '" .. tostring(name) .. "'", 2)
end}

-- The globals of functions are those of scripts. While their library is loaded, there is no more
-- than `redis`, with which it registers them.
local function_globals, library_redis = {}, {}
for name, value in next, globals do
  function_globals[name] = value
end
for name, value in next, redis do
  if type(value) ~= "function" then
    library_redis[name] = value
  end
end
library_redis.log = redis.log
local library_globals = setmetatable({redis = show(setmetatable(library_redis, missing))}, missing)

local environment_meta = {__index = function_globals, __newindex = refuse, __metatable = locked}
local environment = setmetatable({}, environment_meta)
shown[environment] = function_globals
function_globals._G = environment
setmetatable(function_globals, missing)

-- The functions of the library that is being loaded.
local registered, registered_names

local ARGUMENTS = {
  function_name = {"string", "function_name argument given to redis.register_function must be a string"},
  description = {"string", "description argument given to redis.register_function must be a string"},
  callback = {"function", "callback argument given to redis.register_function must be a function"},
  flags = {"table", "flags argument to redis.register_function must be a table representing function flags"},
}

local function is_of(value, wanted)
  return type(value) == wanted or wanted == "string" and type(value) == "number"
end

local function named_arguments(given)
  local known = {}
  for name, value in next, given do
    if not is_of(name, "string") then
      return nil, "named argument key given to redis.register_function is not a string"
    end
    local argument = type(name) == "string" and ARGUMENTS[name:lower()]
    if not argument then
      return nil, "unknown argument given to redis.register_function"
    end
    if not is_of(value, argument[1]) then
      return nil, argument[2]
    end
    known[name:lower()] = value
  end
  if known.function_name == nil then
    return nil, "redis.register_function must get a function name argument"
  end
  if known.callback == nil then
    return nil, "redis.register_function must get a callback argument"
  end
  return known
end

local function arguments(...)
  local count, first, second = select("#", ...), ...
  if count < 1 or count > 2 then
    return nil, "wrong number of arguments to redis.register_function"
  end
  if count == 1 then
    if type(first) ~= "table" then
      return nil, "calling redis.register_function with a single argument is only applicable to Lua table (representing named arguments)."
    end
    return named_arguments(first)
  end
  if not is_of(first, "string") then
    return nil, "first argument to redis.register_function must be a string"
  end
  if type(second) ~= "function" then
    return nil, "second argument to redis.register_function must be a function"
  end
  return {function_name = first, callback = second}
end

library_redis.register_function = raises(function(...)
  if not registered then
    return failed("redis.register_function can only be called on FUNCTION LOAD command")
  end
  local given, why = arguments(...)
  if not given then
    return failed(why)
  end
  local flags = {}
  for n = 1, #(given.flags or {}) do
    local flag = rawget(given.flags, n)
    if not is_of(flag, "string") or not host.is_flag(tostring(flag)) then
      return failed("unknown flag given")
    end
    flags[n] = tostring(flag)
  end
  local name = tostring(given.function_name)
  if not name:match("^[%w_]+$") then
    return failed("Library names can only contain letters, numbers, or underscores(_) and must be at least one character long")
  end
  if registered_names[name:lower()] then
    return failed("Function already exists in the library")
  end
  registered_names[name:lower()] = true
  registered[#registered + 1] = {
    name = name, callback = given.callback, flags = flags,
    description = given.description and tostring(given.description),
  }
  return true
end)

-- Runs the text of a library; returns its functions, or an error.
local function load_library(f)
  environment_meta.__index, shown[environment] = library_globals, library_globals
  registered, registered_names = {}, {}
  local ok, err = raw_pcall(f)
  local functions = registered
  registered = nil
  environment_meta.__index, shown[environment] = function_globals, function_globals
  if ok then
    return true, functions
  end
  if type(err) == "string" then
    return false, "ERR " .. err
  end
  if type(err) == "table" and not shown[err] then
    err = rawget(err, "err")
  end
  return false, err
end

setmetatable(globals, missing)
globals._G = show(globals)
return {
  run = run, call_function = call_function, load_library = load_library,
  shown = globals._G, environment = environment,
}
