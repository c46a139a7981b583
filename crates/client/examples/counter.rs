//! A counter that programs of all nodes increment at once without losing a count.
//!
//!     cargo run -p plexus-client --example counter -- c1/run/n1.attach make
//!     cargo run -p plexus-client --example counter -- c1/run/n2.attach count 1000

use plexus_client::{Client, ClientWindow, Error};

/// Creates the counter. It exists as long as the returned window.
pub(crate) fn make(client: &Client) -> Result<ClientWindow, Error> {
    client.create_window("counter", 8)
}

/// Increments the counter `times` times. Returns its value before the last increment.
pub(crate) fn count(client: &Client, times: u64) -> Result<u64, Error> {
    let counter = client.find_window("counter")?;
    let mut before = 0;
    for _ in 0..times {
        before = counter.fetch_add(0, 1)?;
    }
    Ok(before)
}

#[allow(dead_code, reason = "tests run the two halves themselves")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        [socket, "make"] => {
            let counter = make(&Client::attach(socket)?)?;
            let mut seen = 0;
            loop {
                seen = counter.wait_word(0, None, |word| word != seen)?;
                println!("{seen}");
            }
        }
        [socket, "count", times] => {
            let before = count(&Client::attach(socket)?, times.parse()?)?;
            println!("it was {before} before the last");
        }
        _ => eprintln!("usage: counter SOCKET make | SOCKET count TIMES"),
    }
    Ok(())
}
