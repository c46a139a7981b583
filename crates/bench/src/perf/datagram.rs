//! Datagrams between two programs, each attached to a node of this machine: the performance that an
//! application sees, its node included.
//!
//! Both programs are threads of this process. Each side has an attachment of its own, so only the
//! nodes connect them. A stream is a port and a thread at each end, in the requested waiting mode.
//! The receiver checks every message as in other measurements. It answers each (latency), or
//! reports at intervals how many have arrived (bandwidth). The CPU time of a side is that of its
//! threads and of its node.

use std::{
    path::PathBuf,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU8, AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};

use plexus_base::{Nanos, Waiting, clock};
use plexus_client::{Address, Client, DatagramPort, Error};

use super::{
    Live, Measured, Op, PerfError, Test, Trial, Until, payload,
    result::{Demand, Flow},
    wire::number,
};
use crate::{Responses, Usage, responses::thousandths};

/// The timeout of a message. A node that stops ends the attachment sooner.
const TIMEOUT: Duration = Duration::from_secs(10);

/// The interval at which the end of a trial is checked, and that of progress reports.
const LOOK_EVERY: Duration = Duration::from_millis(1);
const TELL_EVERY: Nanos = Nanos(250_000_000);

/// The socket and process of a node that programs attach to.
#[derive(Clone, Debug)]
pub struct Attachment {
    /// The node's socket for programs.
    pub socket: PathBuf,
    /// The node's process.
    pub pid: u32,
}

/// Measures datagrams from a program of the first node to one of the second; `tell` receives
/// the progress; it ends the measurement by refusing more.
///
/// # Errors
/// See [`PerfError`].
pub fn datagrams(
    between: &[Attachment; 2],
    waiting: Waiting,
    trials: &[Trial],
    until: Until,
    tell: &mut dyn FnMut(Live) -> bool,
) -> Result<Vec<Measured>, PerfError> {
    let attach = |to: &Attachment| {
        let client = Client::attach(&to.socket).map_err(refused)?;
        client.set_waiting(waiting);
        Ok::<_, PerfError>(client)
    };
    let [here, there] = [attach(&between[0])?, attach(&between[1])?];
    let mut measured = Vec::with_capacity(trials.len());
    for (index, trial) in trials.iter().enumerate() {
        trial.check()?;
        let mut told = |messages| tell(Live { trial: index, messages });
        measured.push(measure(trial, [&here, &there], [between[0].pid, between[1].pid], until, &mut told)?);
    }
    Ok(measured)
}

fn refused(error: Error) -> PerfError {
    match error {
        Error::TimedOut => PerfError::Silent,
        other => PerfError::Refused(other.to_string()),
    }
}

/// The state shared by all threads of a trial.
struct Run {
    phase: AtomicU8,
    /// The messages of all streams that were answered during the warm-up.
    warmed: AtomicU64,
    /// The messages of each stream that were answered during the measurement.
    answered: Vec<AtomicU64>,
    failed: Mutex<Option<PerfError>>,
}

/// The phases: messages are not counted, are counted, are no longer sent.
const WARMING: u8 = 0;
const COUNTING: u8 = 1;
const OVER: u8 = 2;

impl Run {
    fn phase(&self) -> u8 {
        self.phase.load(Ordering::Acquire)
    }

    fn enter(&self, phase: u8) {
        self.phase.store(phase, Ordering::Release);
    }

    fn answered(&self) -> u64 {
        self.answered.iter().map(|answered| answered.load(Ordering::Relaxed)).sum()
    }

    /// Ends the trial with this error, unless it has failed already.
    fn fail(&self, error: PerfError) {
        self.failed.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
        self.enter(OVER);
    }
}

fn measure(
    trial: &Trial,
    [here, there]: [&Client; 2],
    nodes: [u32; 2],
    until: Until,
    tell: &mut dyn FnMut(u64) -> bool,
) -> Result<Measured, PerfError> {
    let ports = |client: &Client| {
        (0..trial.streams).map(|_| client.bind(0).map_err(refused)).collect::<Result<Vec<_>, _>>()
    };
    let (senders, receivers) = (ports(here)?, ports(there)?);
    let run = Run {
        phase: AtomicU8::new(WARMING),
        warmed: AtomicU64::new(0),
        answered: (0..trial.streams).map(|_| AtomicU64::new(0)).collect(),
        failed: Mutex::default(),
    };
    let run = &run;
    let outcome = thread::scope(|scope| {
        let receiving: Vec<_> =
            receivers.iter().map(|port| scope.spawn(move || receive(trial, port, run))).collect();
        let sending: Vec<_> = (0..)
            .zip(&senders)
            .zip(&receivers)
            .map(|((stream, port), to)| (stream, port, to.address()))
            .map(|(stream, port, to)| scope.spawn(move || send(trial, stream, port, to, run)))
            .collect();
        let (elapsed, of_nodes) = watch(run, until, nodes, tell);
        let mut responses = Responses::new();
        let mut cpu = of_nodes;
        for share in sending {
            let share = share.join().unwrap_or_else(|_| Share::default());
            responses.merge(&share.responses);
            cpu[0] += share.cpu_ns;
        }
        for share in receiving {
            cpu[1] += share.join().unwrap_or_default();
        }
        (elapsed, cpu, responses)
    });
    if let Some(error) = run.failed.lock().unwrap_or_else(PoisonError::into_inner).take() {
        return Err(error);
    }
    let (elapsed, [client, server], responses) = outcome;
    let each: Vec<u64> = run.answered.iter().map(|answered| answered.load(Ordering::Relaxed)).collect();
    let flow = Flow::of(trial, &each, elapsed, &responses);
    let (messages, bytes) = (flow.messages, flow.messages * u64::from(trial.bytes));
    Ok(Measured {
        trial: *trial,
        flow,
        reverse: None,
        load_mb_per_s: None,
        seconds: thousandths(elapsed as f64 / 1e9),
        client: Demand::of(client, messages, bytes, elapsed),
        server: Demand::of(server, messages, bytes, elapsed),
    })
}

/// Moves through the phases. Returns the measured time in nanoseconds, and the CPU time of both
/// nodes in it.
fn watch(run: &Run, until: Until, nodes: [u32; 2], tell: &mut dyn FnMut(u64) -> bool) -> (u64, [u64; 2]) {
    let cpu = || nodes.map(Usage::cpu_ns_of);
    let mut began = clock::now();
    let (mut told, mut before) = (began, [0; 2]);
    loop {
        thread::sleep(LOOK_EVERY);
        let (now, phase) = (clock::now(), run.phase());
        let (spent, answered) = (now.since(began).0, run.answered());
        let (limit, so_far) = match phase {
            WARMING => (until.warm_up(), run.warmed.load(Ordering::Relaxed)),
            _ => (until, answered),
        };
        let over = match limit {
            Until::Ms(ms) => spent >= u64::from(ms) * 1_000_000 && so_far > 0,
            Until::Count(count) => so_far >= count,
        };
        match phase {
            OVER => return (1, [0; 2]),
            WARMING if over => {
                before = cpu();
                began = clock::now();
                run.enter(COUNTING);
            }
            _ if over => {
                run.enter(OVER);
                let (elapsed, after) = (clock::now().since(began).0, cpu());
                return (
                    elapsed.max(1),
                    std::array::from_fn(|node| after[node].saturating_sub(before[node])),
                );
            }
            _ => {}
        }
        if now.since(told).0 >= TELL_EVERY.0 {
            told = now;
            if !tell(answered) {
                run.fail(PerfError::Unwanted);
            }
        }
    }
}

/// The counts of a sending thread.
#[derive(Default)]
struct Share {
    responses: Responses,
    cpu_ns: u64,
}

/// The CPU time of a thread during the measurement.
#[derive(Default)]
struct Cpu {
    from: Option<u64>,
}

impl Cpu {
    fn look(&mut self, phase: u8) {
        if phase == COUNTING && self.from.is_none() {
            self.from = Some(Usage::cpu_ns_of_thread());
        }
    }

    fn used(&self) -> u64 {
        self.from.map_or(0, |from| Usage::cpu_ns_of_thread().saturating_sub(from))
    }
}

fn send(trial: &Trial, stream: usize, port: &DatagramPort, to: Address, run: &Run) -> Share {
    let mut share = Share::default();
    let mut cpu = Cpu::default();
    let mut parcel = Parcel::new(trial);
    let mut answered = 0;
    let mut turn = |share: &mut Share| -> Result<(), PerfError> {
        let phase = run.phase();
        cpu.look(phase);
        let before = clock::now();
        while parcel.number - answered < u64::from(trial.depth) {
            port.send(to, parcel.next(), Some(TIMEOUT)).map_err(refused)?;
        }
        let answer = port.receive(Some(TIMEOUT)).map_err(refused)?.bytes;
        let came = match trial.test {
            Test::Latency if parcel.is(parcel.number, &answer) => parcel.number,
            Test::Bandwidth if (answered + 1..=parcel.number).contains(&number(&answer)) => number(&answer),
            _ => return Err(PerfError::Changed { bytes: trial.bytes }),
        };
        let counter = if phase == COUNTING { &run.answered[stream] } else { &run.warmed };
        counter.fetch_add(came - answered, Ordering::Relaxed);
        if phase == COUNTING && trial.test == Test::Latency {
            share.responses.record(clock::now().since(before).0);
        }
        answered = came;
        Ok(())
    };
    while run.phase() != OVER {
        if let Err(error) = turn(&mut share) {
            run.fail(error);
        }
    }
    share.cpu_ns = cpu.used();
    // An empty message is the last one; without it the receiver would wait for its timeout.
    let _ = port.send(to, &[], Some(TIMEOUT));
    share
}

fn receive(trial: &Trial, port: &DatagramPort, run: &Run) -> u64 {
    let mut cpu = Cpu::default();
    let parcel = Parcel::new(trial);
    let every = u64::from(trial.depth / 4).max(1);
    let mut arrived = 0;
    let mut turn = || -> Result<bool, PerfError> {
        let message = port.receive(Some(2 * TIMEOUT)).map_err(refused)?;
        cpu.look(run.phase());
        if message.bytes.is_empty() {
            return Ok(false);
        }
        arrived += 1;
        if !parcel.is(arrived, &message.bytes) {
            return Err(PerfError::Changed { bytes: trial.bytes });
        }
        let count = arrived.to_le_bytes();
        let answer = match trial.test {
            Test::Latency => &message.bytes[..],
            Test::Bandwidth if arrived.is_multiple_of(every) => &count,
            Test::Bandwidth => return Ok(true),
        };
        port.send(message.from, answer, Some(TIMEOUT)).map_err(refused)?;
        Ok(true)
    };
    loop {
        match turn() {
            Ok(true) => {}
            Ok(false) => break,
            Err(error) => {
                run.fail(error);
                break;
            }
        }
    }
    cpu.used()
}

/// The messages of a trial. The first bytes, up to eight, hold the number of the message.
struct Parcel {
    bytes: Vec<u8>,
    number: u64,
    counted: usize,
    look: u64,
}

impl Parcel {
    fn new(trial: &Trial) -> Self {
        debug_assert!(trial.op == Op::Datagram, "the only operation of programs");
        let bytes = payload::pattern(trial.bytes as usize).to_vec();
        let counted = bytes.len().min(8);
        Self { look: payload::look(&bytes[counted..]), bytes, number: 0, counted }
    }

    /// Returns the next message.
    fn next(&mut self) -> &[u8] {
        self.number += 1;
        self.bytes[..self.counted].copy_from_slice(&self.number.to_le_bytes()[..self.counted]);
        &self.bytes
    }

    /// Returns true if these bytes are message `number`.
    fn is(&self, number: u64, bytes: &[u8]) -> bool {
        bytes.len() == self.bytes.len()
            && bytes[..self.counted] == number.to_le_bytes()[..self.counted]
            && payload::look(&bytes[self.counted..]) == self.look
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_told_from_every_other() {
        for bytes in [1, 7, 8, 9, 64, 1000] {
            let trial = Trial::new(Test::Latency, Op::Datagram, bytes);
            let (mut sent, seen) = (Parcel::new(&trial), Parcel::new(&trial));
            let first = sent.next().to_vec();
            let second = sent.next().to_vec();
            assert!(seen.is(1, &first) && seen.is(2, &second), "{bytes}");
            assert!(!seen.is(1, &second) && !seen.is(2, &first) && !seen.is(1, &first[1..]), "{bytes}");
            let mut changed = first.clone();
            // The receiver checks one word of each line of the rest.
            changed[if bytes > 8 { 8 } else { 0 }] ^= 1;
            assert!(!seen.is(1, &changed), "{bytes}");
        }
    }
}
