//! How the command line speaks: results on standard output, everything else on standard error.

use std::io::{self, IsTerminal, Write};

use plexus_node::registry::Bytes;
use rustix::{
    event::{PollFd, PollFlags, poll},
    time::Timespec,
};
use serde::Serialize;

/// Says why a command failed, in one line.
pub(crate) fn error(error: &anyhow::Error) {
    let line = reasons(error).split_whitespace().collect::<Vec<_>>().join(" ");
    // Where standard error is closed the exit code must do.
    let _ = writeln!(io::stderr(), "plexus: {line}");
}

/// What went wrong and why, from the outside in. Many errors say their reason themselves: none is said twice.
pub(crate) fn reasons(error: &anyhow::Error) -> String {
    let mut said = error.to_string();
    for cause in error.chain().skip(1).map(ToString::to_string) {
        if !said.ends_with(&cause) {
            said = format!("{said}: {cause}");
        }
    }
    said
}

/// Prints a result as JSON, on one line if somebody is to read it by machine, else indented.
pub(crate) fn json(value: &impl Serialize) -> anyhow::Result<()> {
    let text = match io::stdout().is_terminal() {
        true => serde_json::to_string_pretty(value)?,
        false => serde_json::to_string(value)?,
    };
    line(&text)
}

/// Prints a result as one line of JSON, whoever reads it.
pub(crate) fn json_line(value: &impl Serialize) -> anyhow::Result<()> {
    line(&serde_json::to_string(value)?)
}

/// Prints a line of a result. A reader that has gone (`| head`) is no failure.
pub(crate) fn line(text: &str) -> anyhow::Result<()> {
    match writeln!(io::stdout(), "{text}") {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error.into()),
        _ => Ok(()),
    }
}

/// Whether anybody may still read what is printed: what goes on and on ends when nobody does (`| head`).
pub(crate) fn is_read() -> bool {
    let stdout = io::stdout();
    let mut event = [PollFd::new(&stdout, PollFlags::empty())];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    !matches!(poll(&mut event, Some(&now)), Ok(1))
}

/// A value without what a terminal would obey.
pub(crate) fn shown(value: &Bytes) -> String {
    let text = match value {
        Bytes::Hex(digits) => return format!("0x{digits}"),
        Bytes::Text(text) => text,
    };
    let mut shown = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter.is_control() {
            true => shown.extend(letter.escape_default()),
            false => shown.push(letter),
        }
    }
    shown
}

/// Prints bytes as they are.
pub(crate) fn bytes(bytes: &[u8]) -> anyhow::Result<()> {
    match io::stdout().write_all(bytes) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error.into()),
        _ => Ok(()),
    }
}

/// Says what is being done, to whoever waits for it.
pub(crate) fn progress(text: &str) {
    let _ = writeln!(io::stderr(), "{text}");
}

/// Says on a terminal how far something is, over what was said so last; nothing takes that away.
pub(crate) fn over(text: &str) {
    let _ = write!(io::stderr(), "\r\x1b[K{text}");
    let _ = io::stderr().flush();
}

#[cfg(test)]
mod tests {
    use anyhow::anyhow;
    use plexus_node::control::ControlError;

    use super::*;

    #[test]
    fn a_value_that_is_shown_steers_no_terminal() {
        let text = |text: &str| shown(&Bytes::Text(text.into()));
        assert_eq!(text("größe \"1\""), "größe \"1\"");
        assert_eq!(text("a\x1b[2J\n\u{9b}"), "a\\u{1b}[2J\\n\\u{9b}");
        assert_eq!(shown(&Bytes::Hex("ff00".into())), "0xff00");
    }

    #[test]
    fn a_reason_is_said_once() {
        let refused = || io::Error::other("no room");
        let says = || anyhow::Error::from(ControlError::Io { name: "n1".into(), source: refused() });
        assert_eq!(reasons(&says()), "n1: control socket: no room");
        assert_eq!(reasons(&says().context("asking n1")), "asking n1: n1: control socket: no room");
        let silent = anyhow::Error::from(refused()).context("writing a");
        assert_eq!(reasons(&silent), "writing a: no room");
        assert_eq!(reasons(&anyhow!("no room")), "no room");
    }
}
