//! The process that runs a fence command for a node, and ends everything that the command has
//! started.
//!
//! A fence command acts on other hosts. What is left of it could switch a node off that was started
//! again. So nothing of it may go on after its result is reported, after its time, after the node
//! needs it no more, or after the node has ended. The command has a process group of its own, and
//! this process is the reaper of all that the command starts, also in other groups and sessions: a
//! descendant that loses its parent becomes a child of this process.
//!
//! The pipe at standard input closes when the node has ended or needs no result. The reason of a
//! failure goes to standard output. The output of the command goes nowhere, except its last line.

use std::{
    ffi::OsString,
    fs,
    io::{self, BufRead, BufReader, Read},
    os::unix::process::CommandExt,
    process::{Command, Stdio},
    sync::{Arc, Mutex, PoisonError, atomic::AtomicBool, mpsc},
    thread,
    time::{Duration, Instant},
};

use rustix::process::{
    Pid, Signal, WaitId, WaitIdOptions, WaitIdStatus, WaitOptions, getpid, kill_process, kill_process_group,
    set_child_subreaper, wait, waitid,
};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use plexus_admin::lifeline;

/// The time that processes have to end after SIGTERM.
const TERM_FOR: Duration = Duration::from_secs(2);

/// The longest wait for the rest of the output after all processes have ended.
const OUTPUT_WITHIN: Duration = Duration::from_secs(1);

/// The interval at which processes are checked.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// The most bytes of a line of output that are kept.
const LINE_MOST: u64 = 200;

/// Runs a fence command and waits for the end of all its processes. Call it in a process of its
/// own, which has no other children.
///
/// # Errors
/// The command did not end with 0 in this time; the text says why, with its last line of output.
pub fn serve(within: Duration, words: &[OsString]) -> Result<(), String> {
    let failed = |what: &str, error: io::Error| format!("{what}: {error}");
    let [program, words @ ..] = words else { return Err("it is empty".into()) };
    set_child_subreaper(Some(getpid()))
        .map_err(|error| failed("no reaper of its processes", error.into()))?;
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        // The handler does nothing: this process must not end first.
        signal_hook::flag::register(signal, Arc::new(AtomicBool::new(false)))
            .map_err(|error| failed("no signal handler", error))?;
    }
    let (tell, ended) = mpsc::channel();
    let watch = move || {
        // Without a receiver the command has ended.
        let _ = tell.send(());
    };
    lifeline::watch(0, watch).map_err(|error| failed("no pipe at standard input", error))?;
    let (reader, writer) = io::pipe().map_err(|error| failed("no pipe for its output", error))?;
    let (tell, read) = mpsc::channel::<()>();
    let last = Arc::new(Mutex::new(String::new()));
    let kept = Arc::clone(&last);
    let keep = thread::Builder::new().spawn(move || {
        keep_last_line(BufReader::new(reader), &kept);
        drop(tell);
    });
    keep.map_err(|error| failed("no thread for its output", error))?;
    let child = {
        let errors = writer.try_clone().map_err(|error| failed("no pipe for its output", error))?;
        let mut command = Command::new(program);
        command.args(words).stdin(Stdio::null()).stdout(writer).stderr(errors).process_group(0);
        command.spawn().map_err(|error| failed(&program.display().to_string(), error))?
    };
    let (group, end) = (Pid::from_child(&child), Instant::now() + within);
    // The leader stays a zombie, so that the number of the group is not used again.
    let look = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    let why = loop {
        match waitid(WaitId::Pid(group), look) {
            Ok(Some(status)) if status.exit_status() == Some(0) => break None,
            Ok(Some(status)) => break Some(how(&status)),
            Err(error) => break Some(format!("cannot be waited for: {error}")),
            Ok(None) if ended.try_recv().is_ok() => break Some("was not needed any more".into()),
            Ok(None) if Instant::now() >= end => {
                break Some(format!("took more than {} s, and was ended", within.as_secs_f64()));
            }
            Ok(None) => thread::sleep(LOOK_EVERY),
        }
    };
    end_all(group);
    let Some(why) = why else { return Ok(()) };
    // Ends with an error when everything is read.
    let _ = read.recv_timeout(OUTPUT_WITHIN);
    let last = last.lock().unwrap_or_else(PoisonError::into_inner);
    Err(match last.as_str() {
        "" => format!("{why}; it printed nothing"),
        line => format!("{why}; its last line of output: {line}"),
    })
}

fn how(status: &WaitIdStatus) -> String {
    match (status.exit_status(), status.terminating_signal()) {
        (Some(code), _) => format!("ended with exit status {code}"),
        (_, Some(signal)) => format!("was ended by signal {signal}"),
        _ => "ended without success".into(),
    }
}

/// Ends all processes that are left of the command, and waits for the end of each.
fn end_all(group: Pid) {
    let (began, mut is_told) = (Instant::now(), false);
    let mut has_leader = true;
    loop {
        let is_late = began.elapsed() >= TERM_FOR;
        if is_late || !is_told {
            let signal = if is_late { Signal::KILL } else { Signal::TERM };
            // Processes that have ended meanwhile are not missed. A child keeps its number until
            // it is waited for.
            if has_leader {
                let _ = kill_process_group(group, signal);
            }
            for child in children() {
                let _ = kill_process(child, signal);
            }
            is_told = true;
        }
        loop {
            match wait(WaitOptions::NOHANG) {
                Ok(Some((pid, _))) => has_leader &= pid != group,
                Ok(None) => break,
                Err(_) => return,
            }
        }
        // One that cannot be ended now is tried again without haste.
        thread::sleep(if is_late { 20 * LOOK_EVERY } else { LOOK_EVERY });
    }
}

/// Returns the children of this process, of which each thread has a list.
fn children() -> Vec<Pid> {
    let threads = fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    let lists = threads.filter_map(|thread| fs::read_to_string(thread.path().join("children")).ok());
    let numbers = lists.flat_map(|list| {
        list.split_whitespace().filter_map(|number| number.parse().ok()).collect::<Vec<i32>>()
    });
    numbers.filter_map(Pid::from_raw).collect()
}

/// Reads output until its end, and keeps the start of its last line that is not empty.
fn keep_last_line(mut output: impl BufRead, last: &Mutex<String>) {
    loop {
        let mut line = Vec::new();
        match output.by_ref().take(LINE_MOST).read_until(b'\n', &mut line) {
            Ok(1..) => {}
            _ => return,
        }
        if line.last() != Some(&b'\n') && output.skip_until(b'\n').is_err() {
            return;
        }
        let text = String::from_utf8_lossy(&line);
        let text = text.trim().replace(char::is_control, " ");
        if !text.is_empty() {
            *last.lock().unwrap_or_else(PoisonError::into_inner) = text;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_line_is_kept_without_what_could_spoil_a_log() {
        let kept = |output: &[u8]| {
            let last = Mutex::default();
            keep_last_line(output, &last);
            last.into_inner().unwrap()
        };
        assert_eq!(kept(b""), "");
        assert_eq!(kept(b"one\ntwo\n\n"), "two");
        assert_eq!(kept(b"one\n\x1b[31mno\tanswer \xff"), " [31mno answer \u{fffd}");
        let long = [b"x".repeat(100_000), b"\nend".to_vec()].concat();
        assert_eq!(kept(&long), "end");
        assert_eq!(kept(&long[..100_000]).len(), LINE_MOST as usize);
    }
}
