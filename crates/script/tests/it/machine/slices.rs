//! Long work in one call of a library.

use super::*;

/// How often a script is suspended while it does `work`, if its slices are of a microsecond.
fn slices_of(before: &str, work: &str) -> usize {
    let text = format!("{before} redis.call('begin') {work} redis.call('end')");
    let mut job = job(&text, &[]);
    job.slice = Duration::from_micros(1);
    let mut machine = machine();
    let (mut calls, mut slices) = (0, 0);
    let mut event = machine.start(job);
    loop {
        event = match event {
            Event::Done(outcome) => {
                let reply = String::from_utf8_lossy(&outcome.reply);
                assert!(!outcome.failed && calls == 2, "{work}: {reply}");
                return slices;
            }
            Event::Call { .. } => {
                calls += 1;
                machine.resume(Answer::Reply(b"+OK\r\n".to_vec()))
            }
            _ => {
                slices += usize::from(calls == 1);
                machine.resume(Answer::GoOn)
            }
        };
    }
}

/// A script kept its thread for up to a second: the clock was looked at after a hundred
/// instructions, and each of these was as long as it wanted.
#[test]
fn calls_that_work_for_long_are_done_in_slices() {
    let code = "local t = ('x=1 '):rep(5000)";
    for (before, work, least) in [
        (code, "for n = 1, 40 do loadstring(t) end", 40),
        (
            code,
            "for n = 1, 40 do local s = t load(function() local part = s s = nil return part end) end",
            40,
        ),
        (
            "local t = {} for n = 1, 20000 do t[n] = {n} end",
            "collectgarbage()",
            20,
        ),
        ("local t = ('b'):rep(1e6)", "struct.size(t)", 100),
        ("local t = ('x'):rep(1e6)", "struct.pack(t)", 100),
        ("local t = ('x'):rep(1e6)", "struct.unpack(t, t)", 100),
        (
            "local t = ('x'):rep(1e6)",
            "for n = 1, 40 do struct.unpack('c1', t) end",
            40,
        ),
        (
            "local t = ('x'):rep(1e5)",
            "for n = 1, 40 do t:sub(2) end",
            40,
        ),
        (
            "local t = ('x'):rep(1e5)",
            "for n = 1, 40 do ('%q'):format(t) end",
            40,
        ),
    ] {
        let slices = slices_of(before, work);
        assert!(slices >= least, "{work}: {slices} slices");
    }
}

/// They call Lua's own functions in a frame of theirs.
#[test]
fn functions_that_look_at_the_clock_have_their_own_errors() {
    for (text, reply) in [
        ("return ('abc'):sub(2)", "$2\r\nbc\r\n"),
        ("return ('x'):rep(9999):sub(-3, -2)", "$2\r\nxx\r\n"),
        ("return ('%5.1f|%s'):format(0.25, 'x')", "$7\r\n  0.2|x\r\n"),
        ("return #('%s'):format(('x'):rep(9999))", ":9999\r\n"),
        (
            "local ok, why = pcall(function() return (string.sub({}, 1)) end) return why",
            "bad argument #1 to 'sub' (string expected, got table)",
        ),
        (
            "local ok, why = pcall(function() return (('%d'):format('x')) end) return why",
            "bad argument #1 to 'format' (number expected, got string)",
        ),
    ] {
        let got = reply_of(text);
        assert!(got.contains(reply), "{text}: {got}");
    }
}

/// A number of millions of zeros was read in one piece.
#[test]
fn a_number_in_a_layout_has_few_digits() {
    for (format, reply) in [
        ("'i' .. ('0'):rep(31) .. '4'", ":4\r\n"),
        ("'i' .. ('0'):rep(32) .. '4'", "integral size overflow"),
        ("'c2147483647'", ":2147483647\r\n"),
        ("'c2147483648'", "integral size overflow"),
    ] {
        let got = reply_of(&format!("return struct.size({format})"));
        assert!(got.contains(reply), "{format}: {got}");
    }
}

#[test]
fn the_text_of_a_chunk_has_the_limit_of_a_script() {
    let parts = "local n = 0 local function part() n = n + 1 return ('x=1 '):rep(1000) end ";
    for (text, reply) in [
        (
            "local f, why = loadstring((' '):rep(524289)) return {f == nil, why}",
            "*2\r\n:1\r\n$13\r\ntext too long\r\n",
        ),
        (
            "return type(loadstring((' '):rep(524288)))",
            "$8\r\nfunction\r\n",
        ),
        (
            "local f, why = load(part) return {f == nil, why, n}",
            "*3\r\n:1\r\n$13\r\ntext too long\r\n:132\r\n",
        ),
        (
            "local s = {'return ', '7'} return load(function() n = n + 1 return s[n] end)()",
            ":7\r\n",
        ),
    ] {
        assert_eq!(reply_of(&[parts, text].concat()), reply, "{text}");
    }
}

/// The cycle that was under way found nothing that had died since its begin.
#[test]
fn a_full_collection_finds_all_garbage() {
    let text = "local before = collectgarbage('count')
        local t = {} for n = 1, 20000 do t[n] = {n} end
        local most = collectgarbage('count')
        t = nil
        local done = collectgarbage()
        local left = collectgarbage('count') - before
        return {done, most - before > 1000, left < 100, collectgarbage('stop')}";
    assert_eq!(reply_of(text), "*4\r\n:0\r\n:1\r\n:1\r\n:0\r\n");
}
