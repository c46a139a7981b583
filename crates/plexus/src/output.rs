//! Output of the command line: results on standard output, everything else on standard error.

use std::io::{self, IsTerminal, Write};

use plexus_node::registry::Bytes;
use rustix::{
    event::{PollFd, PollFlags, poll},
    time::Timespec,
};
use serde::Serialize;

use crate::commands::CommandExit;

/// The exit code of a command whose output has no reader: 128 and the number of SIGPIPE.
const PIPE_CLOSED: u8 = 141;

/// Prints the reason of a failure on standard error, in one line.
pub(crate) fn error(error: &anyhow::Error) {
    let line = reasons(error).split_whitespace().collect::<Vec<_>>().join(" ");
    // If standard error is closed, the exit code is the only report.
    let _ = writeln!(io::stderr(), "plexus: {line}");
}

/// Returns the error and its causes, outermost first. A cause that the text already ends with is
/// not repeated.
pub(crate) fn reasons(error: &anyhow::Error) -> String {
    let mut text = error.to_string();
    for cause in error.chain().skip(1).map(ToString::to_string) {
        if !text.ends_with(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    text
}

/// Prints a result as JSON: indented on a terminal, else on one line.
pub(crate) fn json(value: &impl Serialize) -> anyhow::Result<()> {
    let text = match io::stdout().is_terminal() {
        true => serde_json::to_string_pretty(value)?,
        false => serde_json::to_string(value)?,
    };
    line(&text)
}

/// Prints a result as one line of JSON.
pub(crate) fn json_line(value: &impl Serialize) -> anyhow::Result<()> {
    line(&serde_json::to_string(value)?)
}

/// Prints a line of a result. If its reader has closed the pipe (`| head`), the command ends with
/// the exit code of SIGPIPE and without a message.
pub(crate) fn line(text: &str) -> anyhow::Result<()> {
    bytes(format!("{text}\n").as_bytes())
}

/// Returns whether standard output still has a reader; continuous output ends without one (`|
/// head`).
pub(crate) fn is_read() -> bool {
    let stdout = io::stdout();
    let mut event = [PollFd::new(&stdout, PollFlags::empty())];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    !matches!(poll(&mut event, Some(&now)), Ok(1))
}

/// Returns a value as text, with control characters escaped so that a terminal ignores them.
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

/// Prints raw bytes.
pub(crate) fn bytes(bytes: &[u8]) -> anyhow::Result<()> {
    let mut out = io::stdout();
    out.write_all(bytes).and_then(|()| out.flush()).map_err(|error| match error.kind() {
        io::ErrorKind::BrokenPipe => CommandExit(PIPE_CLOSED).into(),
        _ => anyhow::Error::from(error).context("standard output"),
    })
}

/// Prints a progress message on standard error.
pub(crate) fn progress(text: &str) {
    let _ = writeln!(io::stderr(), "{text}");
}

/// Prints a progress line on a terminal, over the previous one.
pub(crate) fn overwrite_line(text: &str) {
    let _ = write!(io::stderr(), "\r\x1b[K{text}");
    let _ = io::stderr().flush();
}

#[cfg(test)]
mod tests {
    use anyhow::anyhow;
    use plexus_admin::control::ControlError;

    use super::*;

    #[test]
    fn shown_values_have_no_control_characters() {
        let text = |text: &str| shown(&Bytes::Text(text.into()));
        assert_eq!(text("größe \"1\""), "größe \"1\"");
        assert_eq!(text("a\x1b[2J\n\u{9b}"), "a\\u{1b}[2J\\n\\u{9b}");
        assert_eq!(shown(&Bytes::Hex("ff00".into())), "0xff00");
    }

    #[test]
    fn each_reason_is_printed_once() {
        let refused = || io::Error::other("no room");
        let with_cause = || anyhow::Error::from(ControlError::Io { name: "n1".into(), source: refused() });
        assert_eq!(reasons(&with_cause()), "n1: control socket: no room");
        assert_eq!(reasons(&with_cause().context("asking n1")), "asking n1: n1: control socket: no room");
        let without_cause = anyhow::Error::from(refused()).context("writing a");
        assert_eq!(reasons(&without_cause), "writing a: no room");
        assert_eq!(reasons(&anyhow!("no room")), "no room");
    }
}
