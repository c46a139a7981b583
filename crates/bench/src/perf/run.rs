//! Starts and ends the two sides within their nodes, and drives the worker if requested.
//!
//! A polling driver is a separate thread. The calling thread sleeps, checks at intervals for
//! cancellation and reports progress; none of that is on the measured path.

use std::{
    io,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use plexus_base::NodeId;
use plexus_fabric::Window;
use plexus_interconnect::{Kind, Net, Service, Worker};
use plexus_node::{ChannelPort, service::MeasuredService};
use serde::{Deserialize, Serialize};

use super::{
    Driving, Measured, PerfError, Plan, Serve,
    client::{Client, Outcome},
    parameters::PROMPT,
    progress::Progress,
    server::Server,
    wire::{MessageKind, Tag},
};

/// The interval at which the client asks for the server.
const HELLO_EVERY: Duration = Duration::from_millis(20);

/// The time that a run may need beyond its trials.
const TIMEOUT: Duration = Duration::from_secs(30);

/// The interval at which a run reports progress and checks for cancellation.
const TELL_EVERY: Duration = Duration::from_millis(250);

/// The interval of the worker's turns without polling: the precision of a load with a rate.
const TURN_EVERY: Duration = Duration::from_millis(1);

/// The path of a measurement: a worker, and the benchmark window of its node.
pub struct MeasuredPath<S: Service> {
    /// The worker that is measured.
    pub worker: Worker<S>,
    /// The window called [`WINDOW`](super::WINDOW).
    pub window: Arc<Window>,
}

impl<S: Service> Clone for MeasuredPath<S> {
    fn clone(&self) -> Self {
        Self { worker: self.worker.clone(), window: self.window.clone() }
    }
}

/// The progress of a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Live {
    /// The index of the trial in the plan.
    pub trial: usize,
    /// The number of messages counted so far.
    pub messages: u64,
}

/// Carries out `plan` here; the same worker of the peer must [`serve`] meanwhile. `tell` is called
/// at intervals and can cancel the run.
///
/// # Errors
/// See [`PerfError`].
pub fn run<S: MeasuredService>(
    place: &MeasuredPath<S>,
    plan: &Plan,
    tell: &mut dyn FnMut(Live) -> bool,
) -> Result<Vec<Measured>, PerfError> {
    plan.check()?;
    let (worker, peer) = (&place.worker, NodeId(plan.peer));
    let progress = Arc::<Progress<Outcome>>::default();
    let client = Client::new(plan, place.window.clone(), progress.clone());
    let paced = plan.trials.iter().any(|trial| trial.load.is_some_and(|load| load.mb_per_s.is_some()));
    let _attached = Attached::new(worker, Box::new(client))?;
    let deadline = Instant::now() + Duration::from_millis(plan.total_ms()) + TIMEOUT;
    // No thread polls yet: a driven worker cannot be asked for anything.
    let hello = |net: &mut Net| net.send(peer, PROMPT, Kind::Request, Tag::plain(MessageKind::Hello), &[]);
    while Instant::now() < deadline {
        worker.with(|_, net| hello(net)).map_err(|_| PerfError::NoLink(peer))?;
        // Only the first answer starts the trials; from then on the port runs alone.
        if progress.wait_begun(HELLO_EVERY) {
            break;
        }
        if !tell(Live::default()) {
            return Err(PerfError::Unwanted);
        }
    }
    let driven = driven(worker, plan.driving, paced, &progress, || {
        while Instant::now() < deadline && !progress.wait(TELL_EVERY) {
            let (trial, messages) = progress.reached();
            if !tell(Live { trial, messages }) {
                progress.finish(Err(PerfError::Unwanted));
            }
        }
        progress.finish(Err(PerfError::Silent));
    });
    driven.map_err(no_thread)?;
    progress.take().unwrap_or(Err(PerfError::Silent))
}

/// Serves one [`run`] of a peer; `wanted` is called at intervals and returns false to cancel.
///
/// # Errors
/// See [`PerfError`].
pub fn serve<S: MeasuredService>(
    place: &MeasuredPath<S>,
    serve: &Serve,
    wanted: &mut dyn FnMut() -> bool,
) -> Result<(), PerfError> {
    let progress = Arc::<Progress<Result<(), PerfError>>>::default();
    let server = Server::new(place.window.clone(), progress.clone());
    let _attached = Attached::new(&place.worker, Box::new(server))?;
    let deadline = Instant::now() + Duration::from_millis(serve.peer_timeout_ms) + TIMEOUT;
    let driven = driven(&place.worker, serve.driving, false, &progress, || {
        while Instant::now() < deadline && !progress.wait(TELL_EVERY) {
            if !wanted() {
                progress.finish(Err(PerfError::Unwanted));
            }
        }
        progress.finish(Err(PerfError::Silent));
    });
    driven.map_err(no_thread)?;
    progress.take().unwrap_or(Err(PerfError::Silent))
}

fn no_thread(error: io::Error) -> PerfError {
    PerfError::Refused(format!("this node has no thread for the measurement: {error}"))
}

/// Drives the worker as requested and calls `beside` until it returns a result.
fn driven<S: MeasuredService, T: Send>(
    worker: &Worker<S>,
    driving: Driving,
    paced: bool,
    progress: &Progress<T>,
    beside: impl FnOnce(),
) -> io::Result<()> {
    thread::scope(|scope| {
        let drives = thread::Builder::new().name("perf-drives".into());
        match driving {
            Driving::Polling => {
                drives.spawn_scoped(scope, move || worker.drive(|_, _| progress.is_done().then_some(())))?;
            }
            Driving::Waiting if paced => {
                let turns = move || {
                    while !progress.wait(TURN_EVERY) {
                        worker.with(|_, _| ());
                    }
                };
                drives.spawn_scoped(scope, turns)?;
            }
            Driving::Waiting => {}
        }
        beside();
        Ok(())
    })
}

/// An attached port, removed when the measurement ends in any way.
struct Attached<'a, S: MeasuredService>(&'a Worker<S>);

impl<'a, S: MeasuredService> Attached<'a, S> {
    fn new(worker: &'a Worker<S>, port: Box<dyn ChannelPort>) -> Result<Self, PerfError> {
        worker.with(|service, _| {
            let place = service.benchmark_port().ok_or(PerfError::Silent)?;
            if place.get().is_some() {
                return Err(PerfError::Busy);
            }
            place.set(Some(port));
            Ok(Self(worker))
        })
    }
}

impl<S: MeasuredService> Drop for Attached<'_, S> {
    fn drop(&mut self) {
        self.0.with(|service, _| drop(service.benchmark_port().and_then(|place| place.set(None))));
    }
}
