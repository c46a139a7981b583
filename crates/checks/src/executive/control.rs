//! A node's control socket, asked by somebody who goes on waiting while it holds something.

use std::{
    io::{self, BufRead, BufReader, Write},
    os::unix::net::UnixStream,
    path::Path,
    time::Duration,
};

use serde_json::{Value, json};

/// A connection to a node.
pub struct Control(BufReader<UnixStream>);

/// What a node says.
#[derive(Clone, PartialEq, Debug)]
pub enum Said {
    /// Something on the way.
    Progress(Value),
    /// It is done.
    Done(Value),
    /// It is refused; why.
    Refused(String),
    /// Nothing in time.
    Nothing,
    /// The node, or the connection, is gone.
    Gone,
}

impl Control {
    /// Connects to the node with this socket, which must answer within `patience` whenever it is listened to.
    ///
    /// # Errors
    /// It does not run.
    pub fn connect(socket: &Path, patience: Duration) -> io::Result<Self> {
        let stream = UnixStream::connect(socket)?;
        stream.set_write_timeout(Some(patience))?;
        let mut control = Self(BufReader::new(stream));
        control.set_patience(patience)?;
        Ok(control)
    }

    /// How long [`Control::hear`] waits.
    ///
    /// # Errors
    /// The system's.
    pub fn set_patience(&mut self, patience: Duration) -> io::Result<()> {
        self.0.get_ref().set_read_timeout(Some(patience.max(Duration::from_millis(1))))
    }

    /// Asks for something. Dropping the connection takes it back.
    ///
    /// # Errors
    /// The connection is gone.
    pub fn ask(&mut self, command: &str, args: &Value) -> io::Result<()> {
        let line = format!("{}\n", json!({ "command": command, "args": args }));
        self.0.get_mut().write_all(line.as_bytes())
    }

    /// What the node says next.
    pub fn hear(&mut self) -> Said {
        let mut line = String::new();
        match self.0.read_line(&mut line) {
            Ok(0) => Said::Gone,
            Ok(_) => said(&line),
            // A line that has come in part comes no further: a node writes it at once.
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
                Said::Nothing
            }
            Err(_) => Said::Gone,
        }
    }

    /// Asks for something that is done at once.
    pub fn call(&mut self, command: &str, args: &Value) -> Said {
        match self.ask(command, args) {
            Ok(()) => self.hear(),
            Err(_) => Said::Gone,
        }
    }
}

fn said(line: &str) -> Said {
    let Ok(mut value) = serde_json::from_str::<Value>(line) else { return Said::Gone };
    if let Some(refused) = value["error"].as_str() {
        return Said::Refused(refused.to_owned());
    }
    match value.get_mut("progress") {
        Some(progress) => Said::Progress(progress.take()),
        None => Said::Done(value["ok"].take()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_nodes_say_is_understood() {
        assert_eq!(said("{\"progress\":{\"a\":1}}\n"), Said::Progress(json!({ "a": 1 })));
        assert_eq!(said("{\"ok\":null}\n"), Said::Done(Value::Null));
        assert_eq!(said("{\"error\":\"no\"}\n"), Said::Refused("no".into()));
        assert_eq!(said("half a li"), Said::Gone);
    }
}
