//! Scripts in an interpreter whose commands are answered by the test.

mod arguments;
mod replies;
mod slices;

use duramen_script::{
    Answer, Arguments, Event, Job, LibraryText, Limits, Machine, Outcome, Program, Script,
};
use std::sync::Arc;
use std::time::Duration;

fn limits() -> Limits {
    Limits {
        memory_bytes: 8 << 20,
        version: "7.4.0",
        version_number: 0x0007_0400,
    }
}

fn machine() -> Machine {
    Machine::new(limits()).expect("memory for a stack")
}

fn job(text: &str, args: &[&str]) -> Box<Job> {
    Box::new(Job {
        program: Program::Script(Arc::new(Script::new(text.as_bytes()).expect("a script"))),
        keys: Arguments::of([&b"key"[..]].into_iter()),
        args: Arguments::of(args.iter().map(|arg| arg.as_bytes())),
        resp3: false,
        slice: Duration::from_millis(1),
        reply_bytes_max: 1 << 20,
    })
}

/// Runs a script; `reply` answers its commands. Slices go on, up to `slices` of them.
fn run_with(
    machine: &mut Machine,
    job: Box<Job>,
    slices: usize,
    mut reply: impl FnMut(&[Vec<u8>]) -> Vec<u8>,
) -> Outcome {
    let mut left = slices;
    let mut event = machine.start(job);
    loop {
        let answer = match event {
            Event::Done(outcome) => return outcome,
            Event::Call { args, .. } | Event::Allowed { args } => {
                let args: Vec<Vec<u8>> = args.iter().map(<[u8]>::to_vec).collect();
                Answer::Reply(reply(&args))
            }
            Event::Log { .. } => Answer::GoOn,
            Event::Slice { .. } if left == 0 => Answer::Stop,
            Event::Slice { .. } => {
                left -= 1;
                Answer::GoOn
            }
        };
        event = machine.resume(answer);
    }
}

fn reply_of(text: &str) -> String {
    let outcome = run_with(&mut machine(), job(text, &[]), 10_000, |args| {
        match &args[0][..] {
            b"error" => b"-ERR no\r\n".to_vec(),
            b"list" => b"*3\r\n$1\r\na\r\n$-1\r\n:7\r\n".to_vec(),
            name => format!("+{}\r\n", String::from_utf8_lossy(name)).into_bytes(),
        }
    });
    assert!(!outcome.stopped, "{text}");
    String::from_utf8_lossy(&outcome.reply).into_owned()
}

#[test]
fn a_command_gets_its_own_arguments_as_texts() {
    let text = "local f = coroutine.wrap(function() return redis.call('a', 'x\\0y', 60) end) f()
        pcall(redis.call) pcall(redis.call, 'b', {}) pcall(redis.call, 'c', nil)
        redis.pcall('d', '', 0.5, 'z') redis.acl_check_cmd('e', '1')
        return {redis.pcall().err, redis.pcall('b', {}).err}";
    let mut seen = Vec::new();
    let outcome = run_with(&mut machine(), job(text, &[]), 10_000, |args| {
        seen.push(args.join(&b' '));
        b":1\r\n".to_vec()
    });
    let expected: [&[u8]; 3] = [b"a x\0y 60", b"d  0.5 z", b"e 1"];
    assert_eq!(seen, expected);
    let reply = String::from_utf8_lossy(&outcome.reply).into_owned();
    assert!(
        reply.contains("Please specify at least one argument"),
        "{reply}"
    );
    assert!(reply.contains("must be strings or integers"), "{reply}");
}

#[test]
fn results_become_replies() {
    for (text, reply) in [
        ("return 1", ":1\r\n"),
        ("return 3.99", ":3\r\n"),
        ("return 'a'", "$1\r\na\r\n"),
        ("return {1,'b',{}}", "*3\r\n:1\r\n$1\r\nb\r\n*0\r\n"),
        ("return true", ":1\r\n"),
        ("return false", "$-1\r\n"),
        ("return {ok='fine'}", "+fine\r\n"),
        ("return redis.error_reply('MY bad')", "-MY bad\r\n"),
        ("return redis.error_reply('bad')", "-ERR bad\r\n"),
        ("return redis.call('ping')", "+ping\r\n"),
        (
            "local l = redis.call('list') return {l[1], l[2] == false, l[3]}",
            "*3\r\n$1\r\na\r\n:1\r\n:7\r\n",
        ),
        ("return KEYS[1]", "$3\r\nkey\r\n"),
        ("return {pcall(error, 'x')}", "*2\r\n$-1\r\n$1\r\nx\r\n"),
        (
            "local ok, e = pcall(redis.call, 'error') return e",
            "$6\r\nERR no\r\n",
        ),
        ("return redis.pcall('error').err", "$6\r\nERR no\r\n"),
        (
            "return cjson.encode({1,'x',{a=0.1}})",
            "$17\r\n[1,\"x\",{\"a\":0.1}]\r\n",
        ),
        ("return cmsgpack.unpack(cmsgpack.pack({1,2}))[2]", ":2\r\n"),
        (
            "return struct.unpack('>I2', struct.pack('>I2', 513))",
            ":513\r\n",
        ),
        ("return bit.band(0xff, 15)", ":15\r\n"),
        (
            "return redis.sha1hex('')",
            "$40\r\nda39a3ee5e6b4b0d3255bfef95601890afd80709\r\n",
        ),
        ("return #loadstring('return {1,2}')()", ":2\r\n"),
        ("return ('x'):rep(3)", "$3\r\nxxx\r\n"),
        (
            "return tostring(2^53)",
            "$16\r\n9.007199254741e+15\r\n"
                .replace("$16", "$18")
                .as_str(),
        ),
    ] {
        assert_eq!(reply_of(text), *reply, "{text}");
    }
}

/// An error reply lost a `-` at the beginning of its text, and the text of an error that passed the
/// host's functions had a traceback of the interpreter behind it.
#[test]
fn an_error_has_its_text_alone() {
    for (text, reply) in [
        ("return {err='-x'}", "--x\r\n"),
        ("return {err='a\\n'}", "-a\r\n"),
        ("return redis.error_reply('--x y')", "--x y\r\n"),
        ("return redis.error_reply('a \\nb')", "-a b\r\n"),
        (
            "local function f(s) return (s:gsub('.', f)) end local _, e = pcall(f, 'a') return e",
            "-ERR C stack overflow\r\n",
        ),
    ] {
        assert_eq!(reply_of(text), reply, "{text}");
    }
}

#[test]
fn a_version_of_the_protocol_may_be_a_text() {
    for (version, reply) in [("'3'", "$-1\r\n"), ("3.9", "$-1\r\n"), ("'x'", "-ERR RESP")] {
        let got = reply_of(&format!("redis.setresp({version}) return nil"));
        assert!(got.starts_with(reply), "{version}: {got}");
    }
}

/// A capture of a position that its pattern named again was a match of the empty text, which ended
/// beyond the text: `string.find` failed with an error that no `pcall` caught. Fuzzing found it.
#[test]
fn a_captured_position_is_no_text() {
    for text in [
        "return string.find('ab', '()%1')",
        "return string.find('ab', '()b%1')",
        "return string.match('ab', 'a()%1')",
    ] {
        assert_eq!(reply_of(text), "$-1\r\n", "{text}");
    }
    let text = "return (string.gsub('abab', '()a%1', 'x'))";
    assert_eq!(reply_of(text), "$4\r\nabab\r\n");
    assert_eq!(
        reply_of("return (string.gsub('abab', '(a)b%1', 'x'))"),
        "$2\r\nxb\r\n"
    );
}

/// `string.rep('ab', '1e19')` ended the server: the limit of memory was compared with numbers
/// alone, and the host was asked for more bytes than there are addresses.
#[test]
fn a_text_is_repeated_within_the_limit_of_memory() {
    for text in [
        "'ab', '1e19'",
        "'ab', 1e19",
        "12, 1e18",
        "1, '4e9'",
        "'a', 9e15",
    ] {
        let reply = reply_of(&format!("return #string.rep({text})"));
        assert!(
            reply.starts_with("-ERR not enough memory"),
            "{text}: {reply}"
        );
    }
    for text in [
        "'ab', 0/0",
        "'ab', '-1'",
        "'', 1e300",
        "5, 0.5",
        "'ab', -1e300",
    ] {
        assert_eq!(
            reply_of(&format!("return string.rep({text})")),
            "$0\r\n\r\n",
            "{text}"
        );
    }
    assert_eq!(reply_of("return string.rep(12, '2')"), "$4\r\n1212\r\n");
}

/// `string.find('a', 'a', 0/0)`, `redis.log(0/0, 'x')` and `math.randomseed('x')` failed with an
/// error of the host, which no `pcall` caught.
#[test]
fn no_number_is_too_strange_for_a_function() {
    // `insert` moves as many values as its number says, as in Lua.
    let text = "
        local left_out = {rep = true, insert = true}
        local numbers = {0/0, 1/0, -1/0, 1e300, -1e300, 1e19, -1e19, 2^63, -2^63, 2^53, 2^32, 2^31,
            -2^31, 256, -1, 0, 0.5, '1e19', '0x10', 'nan'}
        for _, library in ipairs({string, table, math, bit, cjson, cmsgpack, struct, redis}) do
            for name, f in pairs(library) do
                if type(f) == 'function' and not left_out[name] then
                    for _, n in ipairs(numbers) do
                        pcall(f, n) pcall(f, n, n) pcall(f, n, 'x') pcall(f, 'ab', n)
                        pcall(f, 'ab', n, n) pcall(f, 'ab', 'b', n) pcall(f, 'ab', 'b', n, true)
                        pcall(f, 'ab', 'b', 'c', n) pcall(f, {1, 2}, n) pcall(f, {1, 2}, n, n)
                        pcall(f, {1, 2}, 'x', n) pcall(f, true, n, n) pcall(f, 'I8d', n, n)
                        pcall(f, 'bi4', n, n) pcall(f, {n, a = n})
                    end
                end
            end
        end
        return 'ok'";
    assert_eq!(reply_of(text), "$2\r\nok\r\n");
}

#[test]
fn errors_tell_their_line() {
    for (text, reply) in [
        (
            "return foo",
            "-ERR user_script:1: Script attempted to access nonexistent global variable 'foo' script: 47e30a5d10d5694f99208f9adc4fe3bf2450edbd, on @user_script:1.\r\n",
        ),
        (
            "foo=1",
            "-ERR user_script:1: Attempt to modify a readonly table script: 5bddd8336e5f711bfa499383fc73c17560c6250b, on @user_script:1.\r\n",
        ),
        (
            "rawset(_G,\"x\",1)",
            "-ERR Attempt to modify a readonly table script: 517037cf275e7e72b5879174217c6ec3d56fb107, on @user_script:1.\r\n",
        ),
        (
            "error(\"x\")",
            "-ERR user_script:1: x script: ada89932db851ca262f39d814ce59006e53278cc, on @user_script:1.\r\n",
        ),
        (
            "error({err=\"My err\"})",
            "-My err script: e447c5f7ae455635c6c86b416a6928eabbd818b1, on @user_script:1.\r\n",
        ),
        (
            "local a = nil; return a.b",
            "-ERR user_script:1: attempt to index local 'a' (a nil value) script: a4f98b90454ae717765b45eb6f71312d37f994c6, on @user_script:1.\r\n",
        ),
        (
            "x x",
            "-ERR Error compiling script (new function): user_script:1: '=' expected near 'x'\r\n",
        ),
        (
            "string.x=1",
            "-ERR user_script:1: Attempt to modify a readonly table script: 0200261db1e7771c266e77366576961c8f228af1, on @user_script:1.\r\n",
        ),
        (
            "return redis.call()",
            "-ERR Please specify at least one argument for this redis lib call script: 0a907e1429221a4d85516cab7fd219a82a9439d8, on @user_script:1.\r\n",
        ),
        (
            "return cjson.encode(1/0)",
            "-ERR user_script:1: Cannot serialise number: must not be NaN or Inf script: 08ffdaa5e7f117332da21c3b5222c2ede9492c60, on @user_script:1.\r\n",
        ),
    ] {
        assert_eq!(reply_of(text), reply, "{text}");
    }
}

#[test]
fn a_script_that_loops_is_stopped_wherever_it_is() {
    for text in [
        "while true do end",
        "while true do pcall(function() while true do end end) end",
        "local function f() pcall(f) while true do end end f()",
        "coroutine.wrap(function() while true do end end)()",
        "while true do coroutine.resume(coroutine.create(function() while true do end end)) end",
        "while true do xpcall(function() while true do end end, function(e) while true do end end) end",
        "table.sort({3,2,1}, function(a, b) while true do end end)",
        "return ('a'):rep(100000):find('.-.-.-.-b')",
        "return ('a'):rep(100000):gsub('.-.-.-.-b', '')",
        "return ('a'):rep(100000):gsub('.-.-.-.-b', function() end)",
        "for w in ('a'):rep(100000):gmatch('.-.-.-.-b') do end",
        "while true do redis.pcall('x') end",
        "setmetatable({}, {__index = function() while true do end end}).x()",
    ] {
        let mut machine = machine();
        let mut calls = 0;
        let mut event = machine.start(job(text, &[]));
        let mut slices = 0;
        let outcome = loop {
            let answer = match event {
                Event::Done(outcome) => break outcome,
                Event::Call { .. } => {
                    calls += 1;
                    if calls > 1_000 {
                        Answer::Stop
                    } else {
                        Answer::Reply(b"+OK\r\n".to_vec())
                    }
                }
                Event::Slice { .. } if slices < 3 => {
                    slices += 1;
                    Answer::GoOn
                }
                _ => Answer::Stop,
            };
            event = machine.resume(answer);
        };
        assert!(outcome.stopped, "{text}");
        let next = run_with(&mut machine, job("return 5", &[]), 0, |_| Vec::new());
        assert_eq!(
            next.reply, b":5\r\n",
            "{text}: the interpreter takes another script"
        );
    }
}

#[test]
fn a_recursion_has_an_end() {
    for text in [
        "local function f() return pcall(f) end return f()",
        "local function f() return (pcall(f)) end return f()",
        "local function f() f() end f()",
        "local function f() return 1 + f() end return f()",
        "local function f() return coroutine.wrap(f)() end return f()",
        "local function f() return coroutine.resume(coroutine.create(f)) end return f()",
        "local function f(s) return s:gsub('.', f) end return f('x')",
        "local function f() return table.sort({1,2,3}, f) end return f()",
        "return ('a'):rep(10):find(('a*'):rep(300000))",
        "return ('a'):rep(300000):find(('a?'):rep(300000))",
        "return ('a'):find(('('):rep(300000))",
        "return ('a'):find(('()'):rep(300000))",
        "return ('a'):rep(300000):gsub(('a-'):rep(300000), 'x')",
        "local t = setmetatable({}, {}) getmetatable(t).__index = function(t, k) return t[k] end return t.x",
        "local s = ('('):rep(10000) return loadstring('return ' .. s)",
        "return loadstring('return ' .. ('{'):rep(100000))",
        "local t = {} for n = 1, 100000 do t = {t} end return t",
        "local t = {} for n = 1, 100000 do t = {t} end return cjson.encode(t)",
        "local t = {} for n = 1, 100000 do t = {t} end return cmsgpack.pack(t)",
    ] {
        let mut used = machine();
        run_with(&mut used, job(text, &[]), 10_000, |_| Vec::new());
        if used.is_heavy() {
            used = machine();
        }
        let next = run_with(&mut used, job("return 5", &[]), 100, |_| Vec::new());
        assert_eq!(next.reply, b":5\r\n", "{text}");
    }
}

#[test]
fn long_tables_are_handled_like_short_ones() {
    for text in [
        "local t = {} for n = 1, 12345 do t[n] = n * 7919 % 12347 end table.sort(t) for n = 2, #t do assert(t[n - 1] < t[n]) end return #t",
        "local t = {} for n = 1, 12345 do t[n] = n % 10 end table.sort(t, function(a, b) return a > b end) for n = 2, #t do assert(t[n - 1] >= t[n]) end return #t",
        "local t = {} for n = 1, 12345 do t[n] = n end assert(#table.concat(t, ',') == 12344 + 9 + 180 + 2700 + 36000 + 11730) return #t",
        "local t = {} for n = 1, 12345 do t[n] = n end assert(table.concat(t, ',', 3, 8002):sub(1, 8) == '3,4,5,6,') return #t",
        "local t = {} for n = 1, 12344 do t[n] = n end table.insert(t, 5, 'x') assert(t[5] == 'x' and t[6] == 5 and t[12345] == 12344) return #t",
        "local t = {} for n = 1, 12346 do t[n] = n end assert(table.remove(t, 5) == 5) assert(t[5] == 6 and t[12345] == 12346) return #t",
        "local t = ('ab'):rep(6173):sub(2) assert(t:upper():lower() == t and t:reverse():reverse() == t) return #t",
    ] {
        assert_eq!(reply_of(text), ":12345\r\n", "{text}");
    }
}

#[test]
fn many_values_at_once_are_no_harm() {
    let mut used = machine();
    let list = "local t = {} for n = 1, 7900 do t[n] = 'x' .. n end ";
    let grow = "local function grow(n, f, ...) if n == 0 then return f(...) end return grow(n - 1, f, 'a' .. n, 'b', 'c', ...) end ";
    for text in [
        "return redis.call(unpack(t))",
        "return redis.pcall('x', pcall(unpack, t))",
        "return pcall(redis.call, unpack(t))",
        "return pcall(grow, 3000, redis.call)",
        "return pcall(grow, 3000, redis.acl_check_cmd)",
        "return pcall(grow, 3000, cmsgpack.pack)",
        "return pcall(grow, 3000, struct.pack)",
        "return pcall(grow, 3000, bit.band)",
        "return pcall(grow, 3000, cjson.encode)",
        "return pcall(grow, 3000, redis.log)",
        "return pcall(grow, 3000, redis.sha1hex)",
        "return pcall(grow, 3000, string.format)",
        "return pcall(grow, 3000, select)",
        "return pcall(grow, 3000, math.max)",
        "local m = {} for n, v in pairs(t) do m[v] = v end return #cmsgpack.pack(m)",
        "local m = {} for n, v in pairs(t) do m[v] = v end return #cjson.encode(m)",
        "local m = {} for n, v in pairs(t) do m[v] = v end return {map = m}",
        "return {pcall(cmsgpack.unpack, ('\\161x'):rep(10000))}",
        "return {pcall(struct.unpack, ('s'):rep(10000), ('x\\0'):rep(10000))}",
        "return #cjson.decode(cjson.encode(t))",
        "return #cmsgpack.unpack(cmsgpack.pack(t))",
        "local d = 'x' for n = 1, 999 do d = {d, {}, 'x'} end return d",
        "local d = 'x' for n = 1, 999 do d = {map = {x = d}} end return d",
        "local d = 'x' for n = 1, 999 do d = {a = d} end return #cjson.encode(d)",
    ] {
        let text = format!("{list}{grow}{text}");
        let outcome = run_with(&mut used, job(&text, &[]), 10_000, |args| {
            format!(":{}\r\n", args.len()).into_bytes()
        });
        assert!(!outcome.reply.is_empty(), "{text}");
        if used.is_heavy() {
            used = machine();
        }
        let next = run_with(&mut used, job("return 5", &[]), 100, |_| Vec::new());
        assert_eq!(next.reply, b":5\r\n", "{text}");
    }
    // 600 other scripts, and a library with many functions, are kept.
    for n in 0..600 {
        run_with(&mut used, job(&format!("return {n}"), &[]), 100, |_| {
            Vec::new()
        });
    }
    let many = "local n = 0 while n < 8100 do n = n + 1 redis.register_function('f' .. n, function() end) end";
    let loaded = load(&mut machine(), many);
    assert_eq!(loaded.map(|all| all.len()), Ok(8_100));
}

#[test]
fn a_suspended_script_is_dropped_with_its_interpreter() {
    let mut machine = machine();
    let mut job = job("pcall(redis.call, 'get') return 1", &[]);
    job.slice = Duration::from_secs(3_600); // on a busy machine it would end before the call
    assert!(matches!(machine.start(job), Event::Call { .. }));
    drop(machine);
}

#[test]
fn memory_has_a_limit_and_an_interpreter_that_is_full_of_garbage_tells_it() {
    for text in [
        "local t = {} for n = 1, 1e9 do t[n] = ('x'):rep(1000) .. n end",
        "return #('x'):rep(1e9)",
        "local s = 'x' while true do s = s .. s end",
        "local t = {} while true do t = {t} end",
        "return cjson.encode({('x'):rep(7e6), ('y'):rep(7e6)})",
        "local s = ('x'):rep(2e6) local t = {} for n = 1, 1000 do t[n] = s end return t",
    ] {
        let mut used = machine();
        let outcome = run_with(&mut used, job(text, &[]), usize::MAX, |_| Vec::new());
        assert!(
            outcome.failed,
            "{text}: {}",
            String::from_utf8_lossy(&outcome.reply)
        );
        if used.is_heavy() {
            continue; // its caller takes another
        }
        let next = run_with(&mut used, job("return 5", &[]), 100, |_| Vec::new());
        assert_eq!(next.reply, b":5\r\n", "{text}");
    }
}

#[test]
fn a_script_leaves_nothing_for_the_next() {
    let mut machine = machine();
    for text in [
        "table.insert(redis, 1)",
        "table.insert(_G, 1)",
        "local _, t = pairs(redis) t.call = nil",
        "getmetatable('').__index = nil",
        "getmetatable(_G).__index = nil",
        "string.format = nil",
        "redis.call = function() return 'evil' end",
        "for name, f in pairs(redis) do if name == 'call' then redis[name] = nil end end",
        "setmetatable(_G, {})",
        "loadstring('x = 1')()",
        "math.randomseed(7)",
        "collectgarbage('stop')",
        "cjson.encode_number_precision(3)",
        "rawset(string, 'format', nil)",
        "return setfenv(1, {})",
        "return debug.getinfo(1)",
        "return io.open('x')",
        "return os.execute('x')",
        "return require('x')",
        "return string.dump(function() end)",
        "return loadstring('\\27Lua')()",
        "return load(function() return '\\27Lua' end)()",
        "return unpack({}, 1, 1e8)",
        "return unpack({}, -2147483648, 2147483647)",
    ] {
        run_with(&mut machine, job(text, &[]), 10, |_| b"+OK\r\n".to_vec());
        let check = "return {redis.call('x').ok, string.format('%d', 3), #_G}";
        let next = run_with(&mut machine, job(check, &[]), 10, |_| b"+OK\r\n".to_vec());
        let reply = String::from_utf8_lossy(&next.reply).into_owned();
        assert_eq!(reply, "*3\r\n$2\r\nOK\r\n$1\r\n3\r\n:0\r\n", "{text}");
    }
}

fn load(machine: &mut Machine, text: &str) -> Result<Vec<String>, String> {
    let library =
        LibraryText::new(format!("#!lua name=lib\n{text}").as_bytes()).expect("a library");
    let mut event = machine.load(Arc::new(library), Duration::from_millis(1));
    let mut slices = 0;
    loop {
        event = match event {
            Event::Done(outcome) if outcome.stopped => return Err("stopped".to_owned()),
            Event::Done(outcome) if outcome.failed => {
                return Err(String::from_utf8_lossy(&outcome.reply)
                    .trim_end()
                    .to_owned());
            }
            Event::Done(outcome) => {
                let all = outcome.registered.into_iter();
                return Ok(all
                    .map(|it| format!("{} {:?}", it.name, it.flags.names()))
                    .collect());
            }
            Event::Slice { .. } => {
                slices += 1;
                machine.resume(if slices > 2_000 {
                    Answer::Stop
                } else {
                    Answer::GoOn
                })
            }
            _ => panic!("a library calls nothing"),
        };
    }
}

fn call(machine: &mut Machine, text: &str, name: &str) -> String {
    let library =
        LibraryText::new(format!("#!lua name=lib\n{text}").as_bytes()).expect("a library");
    let job = Box::new(Job {
        program: Program::Function {
            library: Arc::new(library),
            name: name.to_owned(),
        },
        ..*job("", &["arg"])
    });
    let outcome = run_with(machine, job, 100, |_| b"+PONG\r\n".to_vec());
    String::from_utf8_lossy(&outcome.reply).into_owned()
}

#[test]
fn libraries_register_functions() {
    let mut used = machine();
    let two = "local n = 0\nlocal function next() n = n + 1 return n end\n\
        redis.register_function('f', function(keys, args) return {keys[1], args[1], next()} end)\n\
        redis.register_function{function_name='g', callback=function() return redis.call('ping') end,\n\
        flags={'no-writes', 'allow-stale'}, description='d'}";
    let names = ["f []", "g [\"no-writes\", \"allow-stale\"]"];
    assert_eq!(load(&mut used, two).unwrap(), names);
    assert_eq!(
        call(&mut used, two, "f"),
        "*3\r\n$3\r\nkey\r\n$3\r\narg\r\n:1\r\n"
    );
    assert_eq!(call(&mut used, two, "g"), "+PONG\r\n");
    // Another interpreter loads it when it is called.
    assert_eq!(call(&mut machine(), two, "g"), "+PONG\r\n");
}

#[test]
fn libraries_with_faults_are_not_loaded() {
    let mut used = machine();
    for (text, why) in [
        ("return 1", "-ERR No functions registered"),
        ("x = 1", "Attempt to modify a readonly table"),
        (
            "bad code",
            "-ERR Error compiling function: user_function:2:",
        ),
        ("return math.random()", "nonexistent global variable 'math'"),
        (
            "return redis.call('ping')",
            "nonexistent global variable 'call'",
        ),
        (
            "redis.register_function('f')",
            "is only applicable to Lua table",
        ),
        (
            "redis.register_function('f', 1)",
            "second argument to redis.register_function",
        ),
        (
            "redis.register_function('a b', function() end)",
            "can only contain letters",
        ),
        (
            "redis.register_function{callback=function() end}",
            "must get a function name",
        ),
        (
            "redis.register_function{function_name='f', x=1}",
            "unknown argument",
        ),
        (
            "redis.register_function{function_name='f', callback=function() end, flags={'x'}}",
            "unknown flag given",
        ),
    ] {
        let error = load(&mut used, text).expect_err(text);
        assert!(error.contains(why), "{text}: {error}");
    }
}

#[test]
fn functions_see_less_than_scripts() {
    let mut used = machine();
    let inner = "local r = redis\n\
        redis.register_function('f', function() r.register_function('g', function() end) end)\n\
        redis.register_function('g', function() return redis.register_function end)\n\
        redis.register_function('h', function() x = 1 end)\n\
        redis.register_function('k', function() return KEYS end)\n\
        redis.register_function('l', function() return loadstring('return ARGV')() end)\n\
        redis.register_function('m', function() r.x = 1 end)\n";
    for (name, reply) in [
        (
            "f",
            "can only be called on FUNCTION LOAD command script: f, on @user_function:3.",
        ),
        ("g", "$-1"),
        ("h", "Attempt to modify a readonly table script: h"),
        ("k", "nonexistent global variable 'KEYS'"),
        ("l", "nonexistent global variable 'ARGV'"),
        ("m", "Attempt to modify a readonly table"),
    ] {
        let got = call(&mut used, inner, name);
        assert!(got.contains(reply), "{name}: {got}");
    }
    assert_eq!(
        run_with(&mut used, job("return #KEYS", &[]), 10, |_| Vec::new()).reply,
        b":1\r\n"
    );
}

/// Each value to which Rust refers takes a place on a stack of 8,000, and the process ends if
/// there is none. An array of 9,000 strings was too many, and so were 7,000 results before a value
/// of 500 levels.
#[test]
fn many_values_at_once_are_no_matter() {
    let strings = "local t = {} for i = 1, 9000 do t[i] = 'x' end ";
    let deep = "local function pack(n) return ('\\129\\161k'):rep(n) .. '\\1' end ";
    for (text, reply) in [
        ("return #cjson.encode(t)", ":36001\r\n"),
        ("return #cmsgpack.pack(t)", ":18003\r\n"),
        ("return #cmsgpack.unpack(cmsgpack.pack(t))", ":9000\r\n"),
        (
            "return #cmsgpack.pack(1,2,3,4,5,6,7,8,9,unpack(t, 1, 7900))",
            ":15809\r\n",
        ),
        (
            "local a, b = {}, 'ping' t[1] = b return redis.call('ping', 1, 2, 3, unpack(t, 1, 7990))",
            "+ping\r\n",
        ),
        (
            "return select('#', cmsgpack.unpack(('\\161x'):rep(6990) .. pack(490)))",
            ":6991\r\n",
        ),
    ] {
        assert_eq!(reply_of(&[strings, deep, text].concat()), reply, "{text}");
    }
    for (text, start) in [
        (
            "local m = {} for i = 1, 9000 do m['k' .. i] = 'x' end return {map=m}",
            "*18000\r\n$",
        ),
        (
            "local m = {} for i = 1, 9000 do m['k' .. i] = 'x' end return {set=m}",
            "*9000\r\n$",
        ),
        (
            "local m = {} for i = 1, 990 do m = {map={x=m}} end return m",
            "*2\r\n$1\r\nx\r\n*2\r\n",
        ),
        (
            "local m = {} for i = 1, 990 do m = {a=m} end return cjson.encode(m)",
            "$5942\r\n",
        ),
    ] {
        let reply = reply_of(text);
        assert!(
            reply.starts_with(start),
            "{text}: {}",
            &reply[..40.min(reply.len())]
        );
    }
}

/// The stack of references must never grow when the interpreter is full: then the process ended.
#[test]
fn a_full_interpreter_takes_arguments() {
    for pieces in (60..400).step_by(30) {
        let text = format!(
            "local t, big = {{}}, {{}} for i = 1, 6900 do t[i] = '1' end
            pcall(function() local n = 0 while true do n = n + 1 big[n] = ('x'):rep(1000) .. n end end)
            for n = #big, #big - {pieces}, -1 do big[n] = nil end
            collectgarbage()
            return bit.band(unpack(t))"
        );
        let reply = reply_of(&text);
        let is_known = reply == ":1\r\n" || reply.contains("not enough memory");
        assert!(is_known, "{pieces}: {reply}");
    }
}

/// Each item of a pattern that may repeat is a call of C in another, and each callback has a
/// buffer: both went beyond the end of the stack.
#[test]
fn the_stack_suffices() {
    let complex = "pattern too complex";
    for (text, part) in [
        (
            "return string.find(('a'):rep(1e6), ('a?'):rep(1e5))",
            complex,
        ),
        (
            "return string.match(('a'):rep(1e6), ('a*'):rep(300))",
            complex,
        ),
        (
            "return string.gsub(('a'):rep(1e6), ('a-'):rep(300) .. 'b', '')",
            complex,
        ),
        (
            "return ('a'):rep(1e6):find(('a'):rep(5e5) .. 'b', 1, true)",
            "$-1\r\n",
        ),
        ("return ('a'):rep(1000):find(('%a?'):rep(150))", ":1\r\n"),
        ("return ('a-'):rep(300):find(('a%-?'):rep(150))", ":1\r\n"),
        (
            "return ('-'):rep(1000):find(('-'):rep(300), 1, true)",
            ":1\r\n",
        ),
    ] {
        let reply = reply_of(text);
        assert!(reply.contains(part), "{text}: {reply}");
    }
    let nested = "local deep, depth, text = {}, 0 for i = 1, 990 do deep = {deep} end
        local function f(s)
          depth = depth + 1
          if depth < 180 then return (string.gsub('a', 'a', f)) end
          text = cjson.encode(deep)
          cjson.decode(('['):rep(990) .. (']'):rep(990))
          return ''
        end
        string.gsub('a', 'a', f)
        return {depth, #text}";
    assert_eq!(reply_of(nested), "*2\r\n:180\r\n:1982\r\n");
}

/// Arguments and results that Rust holds have no place in the memory of the interpreter.
#[test]
fn copies_of_one_string_have_a_limit() {
    let text = "local s, t = ('x'):rep(1e6), {} for i = 1, 100 do t[i] = s end ";
    for (call, part) in [
        ("return redis.call('mset', unpack(t))", "not enough memory"),
        ("return cjson.encode(t)", "not enough memory"),
        ("return cmsgpack.pack(t)", "not enough memory"),
        ("return cjson.encode(('\\1'):rep(3e6))", "not enough memory"),
        ("return t", "does not fit"),
    ] {
        let reply = reply_of(&[text, call].concat());
        assert!(reply.contains(part), "{call}: {}", reply.len());
    }
}
