//! The command that runs under a lock: started, told of signals and waited for, whatever else happens.
//!
//! Whoever ends `plexus lock` means the command: SIGTERM and SIGHUP are passed on. The keys of a terminal reach the command by themselves, and it
//! decides what comes of them, so SIGINT and SIGQUIT are left to it. Signals that were ignored from the start (`nohup`) stay so, for both.

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

use super::Failed;

/// The code for a command that is there and cannot be run; as of `env`, like the next.
const NOT_RUN: u8 = 126;

/// The code for a command that is not there.
const NOT_FOUND: u8 = 127;

/// A command that runs, or has ended.
pub(super) struct Running(OwnedFd);

impl Running {
    /// Starts it. A thread waits for its end, and says it to `ended`.
    pub(super) fn start(
        mut command: Command,
        ended: impl FnOnce(io::Result<ExitStatus>) + Send + 'static,
    ) -> Result<Self> {
        // First of all: without a thread nobody would wait for the child.
        let (hand_over, handed_over) = mpsc::channel::<Child>();
        thread::Builder::new().spawn(move || {
            if let Ok(mut child) = handed_over.recv() {
                ended(child.wait());
            }
        })?;
        let mut child = command.spawn().map_err(|error| Failed {
            code: if error.kind() == ErrorKind::NotFound { NOT_FOUND } else { NOT_RUN },
            why: anyhow::Error::from(error).context(command.get_program().display().to_string()),
        })?;
        let process = process_of(&child);
        let process = process.inspect_err(|_| end(&mut child))?;
        hand_over.send(child).context("who waits for the command has ended")?;
        Ok(Self(process))
    }

    /// Sends it a signal, if it has not ended.
    pub(super) fn tell(&self, signal: Signal) -> io::Result<()> {
        match pidfd_send_signal(&self.0, signal) {
            Ok(()) | Err(Errno::SRCH) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

fn process_of(child: &Child) -> Result<OwnedFd> {
    let pid = Pid::from_raw(child.id() as i32).context("a process has a number")?;
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
        let (tell, told) = mpsc::channel();
        let running = Running::start(sleeps(), move |status| tell.send(status).unwrap()).unwrap();
        running.tell(Signal::TERM).unwrap();
        assert_eq!(ended(told.recv().unwrap().unwrap()), Some(SIGTERM));
        running.tell(Signal::TERM).unwrap();
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
