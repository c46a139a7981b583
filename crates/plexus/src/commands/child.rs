//! The child command that runs under a lock: starts it, passes signals on and waits for its end.
//!
//! SIGTERM and SIGHUP are passed on to the command. SIGINT and SIGQUIT from a terminal reach the
//! command directly, so they are not passed on. Signals that were ignored from the start (`nohup`)
//! stay ignored for both.

use std::{
    fs,
    io::{self, ErrorKind},
    os::{fd::OwnedFd, unix::process::ExitStatusExt},
    process::{Child, Command, ExitStatus},
    sync::mpsc,
    thread,
};

use anyhow::{Context, Result};
use rustix::{
    io::Errno,
    process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal},
};
use signal_hook::{
    consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM},
    iterator::Signals,
};

use super::CommandFailure;

/// The exit code for a command that exists but cannot be run, as in `env`.
const NOT_RUN: u8 = 126;

/// The exit code for a command that does not exist, as in `env`.
const NOT_FOUND: u8 = 127;

/// A child command, running or ended.
pub(super) struct RunningCommand(OwnedFd);

impl RunningCommand {
    /// Starts the command. A thread waits for its end and calls `ended`.
    pub(super) fn start(
        mut command: Command,
        ended: impl FnOnce(io::Result<ExitStatus>) + Send + 'static,
    ) -> Result<Self> {
        // The thread starts first: if it cannot, no child is left without a waiter.
        let (hand_over, handed_over) = mpsc::channel::<Child>();
        thread::Builder::new().spawn(move || {
            if let Ok(mut child) = handed_over.recv() {
                ended(child.wait());
            }
        })?;
        let mut child = command.spawn().map_err(|error| CommandFailure {
            code: if error.kind() == ErrorKind::NotFound { NOT_FOUND } else { NOT_RUN },
            why: anyhow::Error::from(error).context(command.get_program().display().to_string()),
        })?;
        let process = process_of(&child);
        let process = process.inspect_err(|_| end(&mut child))?;
        hand_over.send(child).context("the thread that waits for the command has ended")?;
        Ok(Self(process))
    }

    /// Sends the command a signal; does nothing if it has ended.
    pub(super) fn send_signal(&self, signal: Signal) -> io::Result<()> {
        match pidfd_send_signal(&self.0, signal) {
            Ok(()) | Err(Errno::SRCH) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

fn process_of(child: &Child) -> Result<OwnedFd> {
    let pid = Pid::from_raw(child.id() as i32).context("the child's process id is invalid")?;
    Ok(pidfd_open(pid, PidfdFlags::empty())?)
}

/// Ends a command that cannot be looked after.
fn end(child: &mut Child) {
    // It is our child and not waited for yet, so neither fails.
    let _ = child.kill();
    let _ = child.wait();
}

/// Takes signals from now on, and hands those to `pass` that the command is to be told of.
pub(super) fn take_signals(pass: impl Fn(Signal) + Send + 'static) -> Result<()> {
    let ignored = ignored(&fs::read_to_string("/proc/self/status").context("/proc/self/status")?);
    let taken =
        [SIGTERM, SIGHUP, SIGINT, SIGQUIT].into_iter().filter(|signal| ignored >> (signal - 1) & 1 == 0);
    let mut signals = Signals::new(taken).context("cannot take signals")?;
    thread::Builder::new().spawn(move || {
        for signal in signals.forever() {
            match signal {
                SIGTERM => pass(Signal::TERM),
                SIGHUP => pass(Signal::HUP),
                _ => {}
            }
        }
    })?;
    Ok(())
}

/// The signals that a process ignores, a bit for each, by its `status`.
fn ignored(status: &str) -> u64 {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or_default()
}

/// As shells say it: 128 and the signal, for who was ended by one.
pub(super) fn code(status: ExitStatus) -> u8 {
    match (status.code(), status.signal()) {
        (Some(code), _) => code as u8,
        (None, signal) => 128 + signal.unwrap_or_default() as u8,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sleeps() -> Command {
        let mut command = Command::new("sleep");
        command.arg("60");
        command
    }

    fn ended(status: ExitStatus) -> Option<i32> {
        status.signal()
    }

    #[test]
    fn a_command_is_told_and_telling_one_that_has_ended_is_no_failure() {
        let (sender, receiver) = mpsc::channel();
        let running = RunningCommand::start(sleeps(), move |status| sender.send(status).unwrap()).unwrap();
        running.send_signal(Signal::TERM).unwrap();
        assert_eq!(ended(receiver.recv().unwrap().unwrap()), Some(SIGTERM));
        running.send_signal(Signal::TERM).unwrap();
    }

    #[test]
    fn a_command_that_cannot_be_looked_after_is_ended_and_waited_for() {
        let mut child = sleeps().spawn().unwrap();
        end(&mut child);
        assert_eq!(ended(child.try_wait().unwrap().unwrap()), Some(9));
        assert!(!std::path::Path::new(&format!("/proc/{}", child.id())).exists(), "waited for");
    }

    #[test]
    fn ignored_signals_are_found() {
        let status = "Name:\tplexus\nSigBlk:\t00000000ffffffff\nSigIgn:\t0000000000001003\nSigCgt:\t00000000fffffe00\n";
        assert_eq!(ignored(status), 1 << (SIGHUP - 1) | 1 << (SIGINT - 1) | 1 << 12);
        assert_eq!(ignored("Name:\tplexus\n"), 0);
    }
}
