//! The supervisor of a node that `plexus up` started: the parent of the node's process. It starts
//! the node again, as a new incarnation, after the node was evicted or has lost its lease.
//!
//! A node that may no longer act must end at once, and nodes of its host kill it as a fence. So it
//! cannot start its own successor. A node that was stopped, removed or killed by a user does not
//! return.
//!
//! The supervisor holds `run/NAME.supervisor` from before the first run of the node to the end of
//! the last one, also while no process of the node exists. A command that ends a node thus always
//! finds one of the two. In place of an incarnation it signs the time at which the node returns, in
//! milliseconds of the host's clock since boot; 0 while the node runs. It receives these signals:
//!
//! | signal | action |
//! |---|---|
//! | SIGTERM, SIGINT | tells the node to end, and does not return it |
//! | SIGUSR1 | a node of this host is about to kill the node as a fence: it returns |

use std::{
    fs,
    io::{self, Read},
    os::{fd::AsFd, unix::net::UnixStream, unix::process::ExitStatusExt},
    path::Path,
    process::{Child, Command, ExitStatus},
    thread,
    time::{Duration, Instant},
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal},
    time::{ClockId, clock_gettime},
};
use signal_hook::{
    consts::{SIGINT, SIGTERM, SIGUSR1},
    low_level::{pipe, signal_name},
};

use crate::{
    records::durable::{Holder, Lock, Look},
    records::state::StateError,
    {last_end, launch::EVICTED_CODE, layout::ClusterDir, service_manager},
};

/// The pause before a node returns: it doubles up to the longest with each return.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// The length of a run after which the pauses begin with the first again.
const LONG_RUN: Duration = Duration::from_secs(300);

/// The longest wait for the end of a supervisor and its node, and the polling interval.
const END_WITHIN: Duration = Duration::from_secs(10);
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// Runs the node called `name` with the command `node` until it ends for good. Returns the exit
/// code of its last run.
///
/// # Errors
/// The node has a supervisor already, or the system cannot start it.
pub fn run(dir: &ClusterDir, name: &str, mut node: Command) -> Result<u8, StateError> {
    let path = dir.supervisor(name);
    let failed = |error| StateError::io("supervising the node", path.clone())(error);
    // A holder of the lock must have its handlers, because it receives signals.
    let mut signals = Signals::take().map_err(failed)?;
    let lock = match Lock::try_take(&path, 0).map_err(failed)? {
        Ok(lock) => lock,
        Err(holder) => {
            return Err(StateError::Running { name: name.into(), holder });
        }
    };
    for variable in service_manager::VARIABLES {
        node.env_remove(variable);
    }
    let (mut pause, mut is_return) = (FIRST_PAUSE, false);
    loop {
        let started = Instant::now();
        // An announcement of before concerns an earlier incarnation.
        signals.evicted.take();
        let out_of_memory = memory_kills();
        match node.spawn() {
            Ok(child) => {
                let ended = signals.wait_for(child).map_err(failed)?;
                let code = ended.code().unwrap_or_else(|| 128 + ended.signal().unwrap_or_default());
                let code = u8::try_from(code).unwrap_or(u8::MAX);
                let was_killed = ended.signal() == Some(Signal::KILL.as_raw()) && signals.evicted.take();
                let is_noted = || last_end::is_noted(dir, name);
                if let Some(signal) = ended.signal().filter(|_| !was_killed && !is_noted()) {
                    let name = signal_name(signal).unwrap_or("a signal");
                    let memory = match memory_kills() > out_of_memory {
                        true => ": the system killed a process of its control group for lack of memory",
                        false => "",
                    };
                    last_end::note_failure(&format!("it was ended by {name}{memory}"));
                }
                if signals.end.is_set || !returns(was_killed, ended, is_return) {
                    return Ok(code);
                }
                if was_killed {
                    last_end::note_failure("it was evicted, and a node of its host has killed it as a fence");
                }
            }
            // Its file is away while a package is replaced, or the host has no room for a process.
            Err(error) if is_return => tracing::warn!("{name}: its program does not start: {error}"),
            Err(error) => return Err(failed(error)),
        }
        if started.elapsed() >= LONG_RUN {
            pause = FIRST_PAUSE;
        }
        tracing::warn!("{name} returns in {} s", pause.as_secs());
        // The time is only shown to users.
        let _ = lock.sign((since_boot() + pause).as_millis() as u64, 0);
        if signals.end_within(pause).map_err(failed)? {
            return Ok(0);
        }
        let _ = lock.sign(0, 0);
        (pause, is_return) = ((pause * 2).min(LONGEST_PAUSE), true);
    }
}

/// Returns how often the system has killed a process of the control group of this one for lack of
/// memory; 0 if it does not say. Looks at both versions of control groups.
fn memory_kills() -> u64 {
    let own = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let group = own.lines().filter_map(|line| line.split_once(':')?.1.split_once(":/"));
    let kills = group.filter_map(|(controllers, path)| {
        let file = match controllers {
            "" => Path::new("/sys/fs/cgroup").join(path).join("memory.events"),
            "memory" => Path::new("/sys/fs/cgroup/memory").join(path).join("memory.oom_control"),
            _ => return None,
        };
        let events = fs::read_to_string(file).ok()?;
        events.lines().find_map(|line| line.strip_prefix("oom_kill "))?.parse::<u64>().ok()
    });
    kills.sum()
}

/// Returns true if the node returns after this end of a run. A return may fail for a reason that
/// passes, such as storage that is away; a first start reports its failure to the user.
fn returns(was_killed: bool, ended: ExitStatus, is_return: bool) -> bool {
    was_killed || ended.code() == Some(EVICTED_CODE.into()) || is_return && ended.code() == Some(1)
}

/// Informs the supervisor of a node, if it has one, that the node is evicted and will be killed.
pub fn announce_eviction(dir: &ClusterDir, name: &str) {
    let path = dir.supervisor(name);
    if let Ok(Look::Held(Some(holder))) = Lock::look(&path) {
        // Without a supervisor the node does not return, which is safe.
        let _ = Lock::signal(&path, holder, Signal::USR1);
    }
}

/// Returns the time after which the supervisor of a node on this machine starts it again; zero if
/// it runs or starts now. `None`: the node has no supervisor.
pub fn returns_in(dir: &ClusterDir, name: &str) -> Option<Duration> {
    let Ok(Look::Held(holder)) = Lock::look(&dir.supervisor(name)) else { return None };
    let at = holder.map_or(Duration::ZERO, |holder| Duration::from_millis(holder.incarnation));
    Some(at.saturating_sub(since_boot()))
}

/// Returns the time since the host has booted, which all its processes share.
fn since_boot() -> Duration {
    clock_gettime(ClockId::Boottime).try_into().unwrap_or_default()
}

/// Ends the supervisor of a node that is down, so that the node does not return. Returns whether
/// there was one.
///
/// # Errors
/// It does not end. The text is one line for the user.
pub fn dismiss(dir: &ClusterDir, name: &str) -> Result<bool, String> {
    let (path, end) = (dir.supervisor(name), Instant::now() + END_WITHIN);
    let mut told = None;
    while let Look::Held(holder) =
        Lock::look(&path).map_err(|error| format!("{}: {error}", path.display()))?
    {
        if let Some(why) = holder.and_then(Holder::obstacle) {
            return Err(format!("{name}: its supervisor cannot be ended from here: {why}"));
        }
        if let Some(holder) = holder.filter(|holder| told != Some(*holder)) {
            // One that has ended meanwhile is noticed by its lock.
            let _ = Lock::signal(&path, holder, Signal::TERM);
            told = Some(holder);
        }
        if Instant::now() >= end {
            let pid = holder.map(|holder| format!(" (pid {})", holder.pid)).unwrap_or_default();
            return Err(format!(
                "{name}: its supervisor{pid} does not end; see {}, and end it by hand",
                dir.log(name).display()
            ));
        }
        thread::sleep(LOOK_EVERY);
    }
    Ok(told.is_some())
}

/// The signals of a supervisor.
struct Signals {
    end: SignalPipe,
    evicted: SignalPipe,
}

impl Signals {
    fn take() -> io::Result<Self> {
        Ok(Self { end: SignalPipe::of(&[SIGTERM, SIGINT])?, evicted: SignalPipe::of(&[SIGUSR1])? })
    }

    /// Waits for the end of the node, and passes on a request to end.
    fn wait_for(&mut self, mut node: Child) -> io::Result<ExitStatus> {
        let process = pidfd_open(Pid::from_child(&node), PidfdFlags::empty())?;
        loop {
            if self.end.take() {
                // A node that has ended is noticed below.
                let _ = pidfd_send_signal(&process, Signal::TERM);
            }
            if let Some(ended) = node.try_wait()? {
                return Ok(ended);
            }
            let mut events =
                [PollFd::new(&process, PollFlags::IN), PollFd::new(&self.end.pipe, PollFlags::IN)];
            // A signal interrupts the wait; both sources are checked after every wait.
            let _ = poll(&mut events, None);
        }
    }

    /// Waits for `pause`. Returns true at once when the supervisor is told to end.
    fn end_within(&mut self, pause: Duration) -> io::Result<bool> {
        let until = Instant::now() + pause;
        while !self.end.take() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(false);
            }
            let left = Timespec::try_from(left).map_err(io::Error::other)?;
            let _ = poll(&mut [PollFd::new(&self.end.pipe.as_fd(), PollFlags::IN)], Some(&left));
        }
        Ok(true)
    }
}

/// A pipe into which signal handlers write.
struct SignalPipe {
    pipe: UnixStream,
    /// True once a signal was taken.
    is_set: bool,
}

impl SignalPipe {
    fn of(signals: &[i32]) -> io::Result<Self> {
        let (pipe, writer) = UnixStream::pair()?;
        pipe.set_nonblocking(true)?;
        for signal in signals {
            pipe::register(*signal, writer.try_clone()?)?;
        }
        Ok(Self { pipe, is_set: false })
    }

    /// Returns true if a signal has come since the last call.
    fn take(&mut self) -> bool {
        let is_new = matches!(self.pipe.read(&mut [0; 64]), Ok(1..));
        self.is_set |= is_new;
        is_new
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    /// As while a package is replaced.
    #[test]
    fn a_program_that_is_away_for_a_moment_is_started_when_it_is_back() {
        let directory = tempfile::tempdir().unwrap();
        let dir = ClusterDir::new(directory.path());
        fs::create_dir_all(dir.supervisor("n1").parent().unwrap()).unwrap();
        let [program, away, runs] = ["program", "away", "runs"].map(|name| directory.path().join(name));
        let script = "#!/bin/sh\necho >> \"$0.runs\"\n[ -e away ] && exit 0\nmv program away\nexit 3\n";
        fs::write(&program, script.replace("$0.runs", "runs")).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o700)).unwrap();
        let mut node = Command::new(&program);
        node.current_dir(directory.path());
        let supervisor = thread::spawn(move || run(&dir, "n1", node));
        let start = Instant::now();
        // The first attempt to return fails.
        while !away.exists() || start.elapsed() < FIRST_PAUSE * 3 / 2 {
            assert!(!supervisor.is_finished(), "it has given up");
            thread::sleep(LOOK_EVERY);
        }
        fs::copy(&away, &program).unwrap();
        assert_eq!(supervisor.join().unwrap().unwrap(), 0);
        assert_eq!(fs::read_to_string(runs).unwrap().lines().count(), 2);
    }

    #[test]
    fn only_evictions_and_failed_returns_are_followed_by_a_return() {
        let ended = |code: i32| ExitStatus::from_raw(code << 8);
        for is_return in [false, true] {
            assert!(returns(false, ended(3), is_return));
            assert!(returns(true, ExitStatus::from_raw(9), is_return));
            assert!(!returns(false, ExitStatus::from_raw(9), is_return), "a user has killed it");
            assert_eq!(returns(false, ended(1), is_return), is_return);
            for code in [0, 2, 4, 5, 6] {
                assert!(!returns(false, ended(code), is_return), "{code}");
            }
        }
    }
}
