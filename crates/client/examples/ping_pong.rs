//! Round trips of a small datagram between two programs.
//!
//!     cargo run -p plexus-client --example ping_pong -- c1/run/n1.attach answer
//!     cargo run -p plexus-client --example ping_pong -- c1/run/n2.attach ask 0 100000

use std::time::Instant;

use plexus_client::{Address, Client, DatagramPort, Error, NodeId, Waiting};

/// The port of the answering program.
pub(crate) const PORT: u32 = 1000;

/// Sends every message back, until an empty one arrives.
pub(crate) fn answer(port: &DatagramPort) -> Result<(), Error> {
    loop {
        let ping = port.receive(None)?;
        if ping.bytes.is_empty() {
            return Ok(());
        }
        port.send(ping.from, &ping.bytes, None)?;
    }
}

/// Measures `rounds` round trips to the program at `node`. Returns microseconds per round trip.
pub(crate) fn ask(client: &Client, node: NodeId, rounds: u32) -> Result<f64, Error> {
    let port = client.bind(0)?;
    let there = Address::new(node, PORT);
    let start = Instant::now();
    for round in 0..rounds {
        port.send(there, &round.to_le_bytes(), None)?;
        let pong = port.receive(None)?;
        assert_eq!(pong.bytes, round.to_le_bytes());
    }
    let each = start.elapsed().as_secs_f64() * 1e6 / f64::from(rounds);
    port.send(there, &[], None)?;
    Ok(each)
}

#[allow(dead_code, reason = "tests run the two halves themselves")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        [socket, "answer"] => {
            let client = Client::attach(socket)?;
            client.set_waiting(Waiting::Polling);
            answer(&client.bind(PORT)?)?;
        }
        [socket, "ask", node, rounds] => {
            let client = Client::attach(socket)?;
            client.set_waiting(Waiting::Polling);
            let each = ask(&client, NodeId(node.parse()?), rounds.parse()?)?;
            println!("{each:.2} us for each round trip");
        }
        _ => eprintln!("usage: ping_pong SOCKET answer | SOCKET ask NODE ROUNDS"),
    }
    Ok(())
}
