//! Replies of commands as values of Lua.

use super::{job, machine, run_with};

#[test]
fn a_reply_is_the_same_value_whoever_makes_it() {
    // The same reply by itself, and in a list, whose values another function makes.
    let text = "local one, list = redis.call('one'), redis.call('list')
        local function shown(v)
            if type(v) ~= 'table' then return type(v) .. ':' .. tostring(v) end
            return 'table:' .. tostring(v.ok) .. ':' .. tostring(v.err)
        end
        if shown(one) == shown(list[1]) then return 'same' end
        return shown(one):sub(1, 50) .. ' and ' .. shown(list[1]):sub(1, 50)";
    let texts = [
        0, 1, 9, 10, 16_370, 16_374, 16_375, 16_376, 16_377, 16_384, 100_000,
    ];
    let mut replies = texts
        .map(|length| {
            format!(
                "${length}\r\n{}\r\n",
                "\r\n".repeat(length)[..length].to_owned()
            )
        })
        .to_vec();
    replies.extend(
        [
            ":0",
            ":-1",
            ":9223372036854775807",
            ":-9223372036854775808",
            ":007",
            ":",
            ":x",
            "$-1",
            "*-1",
            "+",
            "+OK",
            "+with blanks",
            "#t",
            "_",
            ",1.5",
            "(123",
        ]
        .map(|line| format!("{line}\r\n")),
    );
    for reply in replies {
        let outcome = run_with(&mut machine(), job(text, &[]), 10_000, |args| {
            match &args[0][..] {
                b"one" => reply.clone().into_bytes(),
                _ => format!("*1\r\n{reply}").into_bytes(),
            }
        });
        let got = String::from_utf8_lossy(&outcome.reply);
        assert_eq!(got, "$4\r\nsame\r\n", "{reply:.40}");
    }
}

#[test]
fn no_memory_for_a_short_reply_is_an_error_of_the_script() {
    let text = "local kept, n = {}, 0
        local ok, err = pcall(function()
            while true do n = n + 1 kept[n] = redis.call('text', n) end
        end)
        return {tostring(ok), tostring(err)}";
    let mut machine = machine();
    let mut calls = 0;
    let outcome = run_with(&mut machine, job(text, &[]), 10_000, |_| {
        calls += 1;
        let text = format!("{calls:010}").repeat(1_000);
        format!("$10000\r\n{text}\r\n").into_bytes()
    });
    let got = String::from_utf8_lossy(&outcome.reply);
    assert!(got.contains("not enough memory"), "{got}");
    assert!(calls > 100, "{calls}");
    assert!(machine.is_heavy());
}
