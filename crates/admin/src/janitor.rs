//! A process that cleans up after another one, however that one ends.
//!
//! A process that makes something temporary reports it to its janitor over a pipe that only the two
//! share, *before* or as soon as it exists. The pipe closes when the work is finished or the
//! process is killed. Then the janitor kills the processes that it watches, waits for their end,
//! removes the directories, and ends. It has a session of its own and ignores the signals of a
//! terminal, so it survives a Ctrl-C.
//!
//! It never harms others. It holds processes by pidfds that were opened while the caller still had
//! them as children, so it cannot hit a reused number. It removes a directory only if it has the
//! mark ([`mark`]) or is empty.
//!
//! Each line on the pipe is `dir PATH` or `pid NUMBER`; the answer is `ok` or an error.

use std::{
    fs::File,
    io::{self, BufRead, BufReader, Write},
    os::{fd::OwnedFd, unix::ffi::OsStrExt},
    path::{Path, PathBuf},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    sync::{Arc, atomic::AtomicBool},
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal},
};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

/// The file that allows the removal of its directory.
const MARK: &str = ".plexus-temporary";

/// The longest that a killed process may take to end; only a disk write takes long.
const END_WITHIN: Timespec = Timespec { tv_sec: 10, tv_nsec: 0 };

/// Allows a janitor to remove `dir`.
///
/// # Errors
/// The system's.
pub fn mark(dir: &Path) -> io::Result<()> {
    File::create_new(dir.join(MARK)).map(drop)
}

/// The end of the pipe in the process that makes temporary things.
#[derive(Debug)]
pub struct Janitor {
    process: Child,
    orders: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
}

impl Janitor {
    /// Starts a janitor, which is `program janitor`, and waits until it is ready.
    ///
    /// # Errors
    /// The system's.
    pub fn start(program: &Path) -> io::Result<Self> {
        let mut process =
            Command::new(program).arg("janitor").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let orders = process.stdin.take();
        let answers = process.stdout.take().ok_or(io::ErrorKind::BrokenPipe)?;
        let mut janitor = Self { process, orders, answers: BufReader::new(answers) };
        janitor.answer()?;
        Ok(janitor)
    }

    /// Registers `dir` for removal. It need not exist yet; it must be [marked](mark) by then.
    ///
    /// # Errors
    /// The path is not absolute or has a line break, or the janitor has ended.
    pub fn watch_dir(&mut self, dir: &Path) -> io::Result<()> {
        let bytes = dir.as_os_str().as_bytes();
        if !dir.is_absolute() || bytes.contains(&b'\n') {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "a janitor needs a whole path on one line",
            ));
        }
        self.order(&[b"dir ", bytes, b"\n"].concat())
    }

    /// Registers the process `pid` for a kill. It must be a child of this process and not yet
    /// reaped.
    ///
    /// # Errors
    /// There is no such process, or the janitor has ended.
    pub fn watch_pid(&mut self, pid: u32) -> io::Result<()> {
        self.order(format!("pid {pid}\n").as_bytes())
    }

    /// Cleans up now and waits for the end.
    ///
    /// # Errors
    /// Something remains; the janitor has printed the reason on standard error.
    pub fn finish(mut self) -> io::Result<()> {
        match self.end()? {
            true => Ok(()),
            false => Err(io::Error::other("the janitor could not remove everything")),
        }
    }

    fn order(&mut self, line: &[u8]) -> io::Result<()> {
        self.orders.as_ref().ok_or(io::ErrorKind::BrokenPipe)?.write_all(line)?;
        self.answer()
    }

    fn answer(&mut self) -> io::Result<()> {
        let mut line = String::new();
        self.answers.read_line(&mut line)?;
        match line.trim_end() {
            "ok" => Ok(()),
            "" => Err(io::Error::new(io::ErrorKind::BrokenPipe, "the janitor has ended")),
            why => Err(io::Error::other(why.to_owned())),
        }
    }

    fn end(&mut self) -> io::Result<bool> {
        drop(self.orders.take());
        self.process.wait().map(|status| status.success())
    }
}

impl Drop for Janitor {
    fn drop(&mut self) {
        if self.orders.is_some() {
            // Runs only after a failure, and that failure is reported.
            let _ = self.end();
        }
    }
}

/// Runs the janitor's own process: it reads orders from standard input until that closes, then
/// cleans up. Returns true if everything was removed.
///
/// # Errors
/// The system's, before anything was watched.
pub fn serve() -> io::Result<bool> {
    // Fails only for a session leader, which has a session of its own already.
    let _ = rustix::process::setsid();
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        // The handler does nothing: the process only must not end.
        signal_hook::flag::register(signal, Arc::new(AtomicBool::new(false)))?;
    }
    let (mut dirs, mut processes) = (Vec::new(), Vec::new());
    let answer = |line: &str| {
        let mut out = io::stdout().lock();
        // The end of the caller closes standard input as well.
        let _ = writeln!(out, "{line}").and_then(|()| out.flush());
    };
    answer("ok");
    // A broken pipe ends the orders like a closed one.
    for line in io::stdin().lock().split(b'\n').map_while(Result::ok) {
        match take(&line, &mut dirs, &mut processes) {
            Ok(()) => answer("ok"),
            Err(why) => answer(&why),
        }
    }
    Ok(clean_up(dirs, processes))
}

fn take(line: &[u8], dirs: &mut Vec<PathBuf>, processes: &mut Vec<OwnedFd>) -> Result<(), String> {
    if let Some(path) = line.strip_prefix(b"dir ") {
        dirs.push(PathBuf::from(std::ffi::OsStr::from_bytes(path)));
        return Ok(());
    }
    let number = line.strip_prefix(b"pid ").and_then(|number| std::str::from_utf8(number).ok());
    let pid = number.and_then(|number| number.parse().ok()).filter(|pid| *pid > 1).and_then(Pid::from_raw);
    let pid = pid.ok_or_else(|| format!("not an order: {}", String::from_utf8_lossy(line)))?;
    processes
        .push(pidfd_open(pid, PidfdFlags::empty()).map_err(|error| format!("process {pid:?}: {error}"))?);
    Ok(())
}

fn clean_up(dirs: Vec<PathBuf>, processes: Vec<OwnedFd>) -> bool {
    for process in &processes {
        // Fails if the process has ended already.
        let _ = pidfd_send_signal(process, Signal::KILL);
    }
    for process in &processes {
        let _ = poll(&mut [PollFd::new(process, PollFlags::IN)], Some(&END_WITHIN));
    }
    // All are tried, whatever the result of the others.
    dirs.iter().filter(|dir| !remove(dir)).count() == 0
}

/// Removes a directory that is marked or empty; returns true if it is gone.
fn remove(dir: &Path) -> bool {
    let removed = match dir.join(MARK).exists() {
        true => std::fs::remove_dir_all(dir),
        false => std::fs::remove_dir(dir),
    };
    match removed {
        Ok(()) => true,
        Err(error) if error.kind() == io::ErrorKind::NotFound => true,
        Err(error) => {
            eprintln!("plexus: {}: not removed: {error}", dir.display());
            false
        }
    }
}
