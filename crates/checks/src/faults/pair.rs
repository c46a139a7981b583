//! Two members, their reports, and the conditions that must hold at the end.

use std::{
    fs,
    io::{BufRead, BufReader, Write},
    net::{SocketAddr, TcpListener},
    path::{Path, PathBuf},
    process::{Child, ChildStdin, Command, Stdio},
    sync::mpsc::{Receiver, channel},
    thread,
    time::{Duration, Instant},
};

use plexus_fabric::RailKind;
use rustix::process::{Pid, Signal, kill_process};

use super::{Net, Report, Side, member::Member};

/// The longest time for any wait.
const TIMEOUT: Duration = Duration::from_secs(40);

/// The interval at which a wait checks its condition.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// The acknowledgements on every channel after which traffic counts as flowing.
const FLOWING: u64 = 40;

/// The parameters of a pair.
#[derive(Clone, Debug)]
pub struct Spec {
    /// The program `torture`.
    pub program: PathBuf,
    /// The kind of rail between the two.
    pub rail: RailKind,
    /// True if the rail is encrypted.
    pub encrypt: bool,
}

struct Running {
    child: Child,
    commands: ChildStdin,
    answers: Receiver<String>,
}

/// Two members, in the namespaces of a [`Net`] or both on this host. Dropping the pair ends them.
pub struct Pair {
    spec: Spec,
    cluster: u64,
    incarnations: [u64; 2],
    addresses: [Vec<SocketAddr>; 2],
    /// The addresses at which each member reaches the other, possibly those of a relay.
    routes: [Vec<SocketAddr>; 2],
    namespaces: [Option<PathBuf>; 2],
    running: [Option<Running>; 2],
    /// The resources of each incarnation when its traffic first flowed.
    flowing: [Option<Holds>; 2],
}

impl Pair {
    /// Starts both members on the hosts of `net`, or on this one.
    ///
    /// # Errors
    /// A member does not start.
    pub fn start(spec: Spec, net: Option<&Net>) -> Result<Self, String> {
        let addresses = match net {
            Some(net) => Side::BOTH.map(|side| net.addresses(side)),
            None => [vec![free()?], vec![free()?]],
        };
        let routes = [addresses[1].clone(), addresses[0].clone()];
        Self::routed(spec, net, addresses, routes)
    }

    /// Starts both members; each reaches the other at its entry of `routes`.
    ///
    /// # Errors
    /// A member does not start.
    pub fn routed(
        spec: Spec,
        net: Option<&Net>,
        addresses: [Vec<SocketAddr>; 2],
        routes: [Vec<SocketAddr>; 2],
    ) -> Result<Self, String> {
        let namespaces = Side::BOTH.map(|side| net.map(|net| net.namespace(side)));
        // A number that no other pair on this machine has: the process id and a port reserved for
        // it.
        let cluster = u64::from(std::process::id()) << 16 | u64::from(free()?.port());
        let mut pair = Self {
            spec,
            cluster,
            incarnations: [0; 2],
            addresses,
            routes,
            namespaces,
            running: [None, None],
            flowing: [None; 2],
        };
        for side in Side::BOTH {
            pair.begin(side)?;
        }
        Ok(pair)
    }

    /// Starts a member that is not running.
    ///
    /// # Errors
    /// It does not start.
    pub fn begin(&mut self, side: Side) -> Result<(), String> {
        let index = side.index();
        self.incarnations[index] += 1;
        let member = Member {
            me: index as u8,
            cluster: self.cluster,
            incarnation: self.incarnations[index],
            rail: self.spec.rail,
            encrypt: self.spec.encrypt,
            listen: self.addresses[index].clone(),
            peer: self.routes[index].clone(),
            namespace: self.namespaces[index].clone(),
        };
        let mut command = Command::new(&self.spec.program);
        command.arg("member").arg(member.to_argument()?).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().map_err(|error| format!("a member: {error}"))?;
        let (Some(commands), Some(out)) = (child.stdin.take(), child.stdout.take()) else {
            return Err("a member without pipes".into());
        };
        let (sender, answers) = channel();
        // Ends with the member, whose output it reads.
        thread::spawn(move || {
            for line in BufReader::new(out).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        self.running[index] = Some(Running { child, commands, answers });
        self.flowing[index] = None;
        Ok(())
    }

    /// Returns the process id of a running member.
    ///
    /// # Errors
    /// It is not running.
    pub fn pid(&self, side: Side) -> Result<u32, String> {
        let running = self.running[side.index()].as_ref();
        running.map(|running| running.child.id()).ok_or_else(|| format!("{side:?} does not run"))
    }

    /// Sends a signal to a member.
    ///
    /// # Errors
    /// It is not running.
    pub fn signal(&self, side: Side, signal: Signal) -> Result<(), String> {
        let pid = Pid::from_raw(self.pid(side)? as i32).ok_or("no process")?;
        kill_process(pid, signal).map_err(|error| error.to_string())
    }

    /// Kills a member and waits for its end.
    ///
    /// # Errors
    /// It is not running.
    pub fn kill(&mut self, side: Side) -> Result<(), String> {
        self.signal(side, Signal::KILL)?;
        if let Some(mut running) = self.running[side.index()].take() {
            running.child.wait().map_err(|error| error.to_string())?;
        }
        Ok(())
    }

    /// Asks a member for its report.
    ///
    /// # Errors
    /// It does not answer, or reports an error.
    pub fn report(&mut self, side: Side) -> Result<Report, String> {
        self.ask(side, "report")
    }

    /// Makes both members keep more bulk under way.
    ///
    /// # Errors
    /// One does not answer, or reports an error.
    pub fn bulk(&mut self) -> Result<[Report; 2], String> {
        Ok([self.ask(Side::A, "bulk")?, self.ask(Side::B, "bulk")?])
    }

    /// Waits until both members have `rails` rails.
    ///
    /// # Errors
    /// That does not happen, or a member reports an error.
    pub fn joined(&mut self, rails: usize) -> Result<[Report; 2], String> {
        let up = |report: &Report| report.rails.iter().filter(|rail| rail.is_up()).count();
        self.until("every path is joined", |_, report| up(report) == rails)
    }

    fn ask(&mut self, side: Side, command: &str) -> Result<Report, String> {
        let running = self.running[side.index()].as_mut().ok_or_else(|| format!("{side:?} does not run"))?;
        let ended = |error: &dyn std::fmt::Display| format!("{side:?} does not answer `{command}`: {error}");
        writeln!(running.commands, "{command}").map_err(|error| ended(&error))?;
        let line = running.answers.recv_timeout(TIMEOUT).map_err(|error| ended(&error))?;
        let report: Report = line.parse()?;
        match &report.wrong {
            Some(wrong) => Err(format!("{side:?}: {wrong}; {report}")),
            None => Ok(report),
        }
    }

    /// Waits until the reports of both members satisfy a condition.
    ///
    /// # Errors
    /// That does not happen, or a member reports an error.
    pub fn until(
        &mut self,
        what: &str,
        mut so: impl FnMut(Side, &Report) -> bool,
    ) -> Result<[Report; 2], String> {
        let end = Instant::now() + TIMEOUT;
        loop {
            let reports = [self.report(Side::A)?, self.report(Side::B)?];
            // Both are asked, whatever the first reports.
            let all = Side::BOTH.map(|side| so(side, &reports[side.index()]));
            if all == [true; 2] {
                return Ok(reports);
            }
            if Instant::now() > end {
                return Err(format!("waiting until {what}: A: {}; B: {}", reports[0], reports[1]));
            }
            thread::sleep(LOOK_EVERY);
        }
    }

    /// Waits until new messages on every channel, puts and calls have passed in both directions.
    /// Returns the longest stall meanwhile in microseconds.
    ///
    /// # Errors
    /// They do not pass, or a member reports an error.
    pub fn flows(&mut self) -> Result<u64, String> {
        let mut began: [Option<Report>; 2] = [None, None];
        let mut stall_us = 0;
        self.until("traffic flows both ways", |side, now| {
            stall_us = stall_us.max(now.stall_us);
            let began = began[side.index()].get_or_insert_with(|| now.clone());
            if began.ups != now.ups {
                // A new incarnation of the link counts from zero.
                *began = now.clone();
                return false;
            }
            now.least >= began.least + FLOWING
        })?;
        for side in Side::BOTH {
            let holds = self.holds(side)?;
            self.flowing[side.index()].get_or_insert(holds);
        }
        Ok(stall_us)
    }

    /// Ends the traffic and checks that everything sent was received exactly once.
    ///
    /// # Errors
    /// A message is missing, or a member reports an error.
    pub fn finish(mut self) -> Result<[Report; 2], String> {
        for side in Side::BOTH {
            let report = self.ask(side, "stop")?;
            if !report.idle {
                return Err(format!("{side:?}: messages under way were not acknowledged: {report}"));
            }
        }
        let reports = [self.report(Side::A)?, self.report(Side::B)?];
        let [a, b] = &reports;
        if a.sent != b.received || b.sent != a.received {
            return Err(format!("messages are missing: A: {a}; B: {b}"));
        }
        Ok(reports)
    }

    /// Waits until neither member holds more resources than when traffic first flowed.
    ///
    /// # Errors
    /// A member is not running, or still holds more after the timeout.
    pub fn flat(&self) -> Result<(), String> {
        Side::BOTH.into_iter().zip(&self.flowing).try_for_each(|(side, before)| match before {
            Some(before) => self.flat_since(side, before),
            None => Err(format!("{side:?}: no traffic has flowed")),
        })
    }

    /// Waits until a member holds no more resources than before: threads and descriptors end
    /// shortly after their use.
    ///
    /// # Errors
    /// It is not running, or still holds more after the timeout.
    fn flat_since(&self, side: Side, before: &Holds) -> Result<(), String> {
        let end = Instant::now() + TIMEOUT;
        loop {
            let now = self.holds(side)?;
            if now.is_flat_since(before) {
                return Ok(());
            }
            if Instant::now() > end {
                return Err(format!("{side:?} grew from {before:?} to {now:?}"));
            }
            thread::sleep(LOOK_EVERY);
        }
    }

    /// Returns the resources that a member holds now.
    ///
    /// # Errors
    /// It is not running.
    pub fn holds(&self, side: Side) -> Result<Holds, String> {
        let process = PathBuf::from(format!("/proc/{}", self.pid(side)?));
        let status = fs::read_to_string(process.join("status")).map_err(|error| error.to_string())?;
        let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kib = resident.and_then(|text| text.trim().strip_suffix(" kB")?.parse().ok());
        Ok(Holds {
            resident_kib: kib.ok_or("no resident memory in /proc/PID/status")?,
            descriptors: count(&process.join("fd"))?,
            threads: count(&process.join("task"))?,
        })
    }
}

/// The resources that a process holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Holds {
    /// The resident memory in KiB.
    pub resident_kib: u64,
    /// The number of open descriptors.
    pub descriptors: usize,
    /// The number of threads.
    pub threads: usize,
}

impl Holds {
    /// Returns true if nothing is left over since `before`: no descriptor, no thread, little
    /// memory.
    pub fn is_flat_since(&self, before: &Self) -> bool {
        self.descriptors <= before.descriptors
            && self.threads <= before.threads
            && self.resident_kib <= before.resident_kib + before.resident_kib / 4 + 4096
    }
}

fn count(folder: &Path) -> Result<usize, String> {
    fs::read_dir(folder).map(Iterator::count).map_err(|error| format!("{}: {error}", folder.display()))
}

/// Returns a free loopback address: bound and released, so the system does not reuse the port soon.
fn free() -> Result<SocketAddr, String> {
    let bound = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
    bound.map_err(|error| error.to_string())
}

impl Drop for Pair {
    fn drop(&mut self) {
        for running in self.running.iter_mut().flatten() {
            // A stopped process would never see the end of its input.
            let _ = running.child.kill();
            let _ = running.child.wait();
        }
    }
}
