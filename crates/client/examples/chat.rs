//! A chat between the nodes of a cluster, by datagrams.
//!
//!     cargo run -p plexus-client --example chat -- c1/run/n1.attach 100
//!     cargo run -p plexus-client --example chat -- c1/run/n2.attach 100 0

use std::{io::BufRead, sync::Arc, thread};

use plexus_client::{Address, Client, DatagramPort, Error, NodeId};

/// Sends a line to all listeners; skips ports that no program has.
pub(crate) fn say(port: &DatagramPort, to: &[Address], line: &str) -> Result<(), Error> {
    for listener in to {
        match port.send(*listener, line.as_bytes(), None) {
            Ok(()) | Err(Error::Undelivered { .. } | Error::NodeGone(_)) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Receives the next line and its sender.
pub(crate) fn hear(port: &DatagramPort) -> Result<(Address, String), Error> {
    let heard = port.receive(None)?;
    Ok((heard.from, String::from_utf8_lossy(&heard.bytes).into_owned()))
}

#[allow(dead_code, reason = "tests run the two halves themselves")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [socket, number, nodes @ ..] = &arguments[..] else {
        eprintln!("usage: chat SOCKET PORT [NODE...]");
        return Ok(());
    };
    let client = Client::attach(socket)?;
    let number = number.parse()?;
    let port = Arc::new(client.bind(number)?);
    let nodes: Result<Vec<u8>, _> = nodes.iter().map(|node| node.parse()).collect();
    let others: Vec<_> = nodes?.into_iter().map(|node| Address::new(NodeId(node), number)).collect();
    let heard = Arc::clone(&port);
    // The thread ends with the program.
    thread::spawn(move || {
        while let Ok((from, line)) = hear(&heard) {
            println!("{from}: {line}");
        }
    });
    for line in std::io::stdin().lock().lines() {
        say(&port, &others, &line?)?;
    }
    Ok(())
}
