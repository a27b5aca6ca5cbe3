//! Basic use of a cluster by a program: `duramen up`, then `cargo run --example basics --
//! 127.0.0.1:7400`.

use duramen_client::{Client, Condition, Error, Options, Outcome, Write};

fn main() -> Result<(), Error> {
    let coordinators: Vec<String> = std::env::args().skip(1).collect();
    let client = Client::connect(Options::new(coordinators))?;
    let table = client.table("db0")?;

    // Takes effect once, even if servers or connections fail meanwhile.
    table.set(b"greeting", b"hello")?;
    if let Some(object) = table.get(b"greeting")? {
        let text = String::from_utf8_lossy(&object.value).into_owned();
        println!("greeting: {text}, version {}", object.version);

        // Replaced only if no other client has written it since.
        let write = Write {
            condition: Condition::Version(object.version),
            ..Write::default()
        };
        match table.write(b"greeting", b"hello again", write)? {
            Outcome::Written { version } => println!("replaced: version {version}"),
            Outcome::ConditionFailed { current } => println!("somebody was faster: {current:?}"),
            other => println!("{other:?}"),
        }
    }

    // Each increment counts once, even if its answer is lost.
    println!("visits: {}", table.increment(b"visits", 1)?);

    // All servers work in parallel.
    let objects: Vec<(String, String)> = (0..1_000)
        .map(|n| (format!("user:{n}"), format!("name {n}")))
        .collect();
    for result in table.set_many(&objects, Write::default()) {
        result?;
    }
    println!("objects: {}", table.scan().filter(Result::is_ok).count());
    Ok(())
}
