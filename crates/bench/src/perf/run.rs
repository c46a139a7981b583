//! Starts and ends the two sides within their nodes, and drives the worker where that is asked for.
//!
//! What polls is a thread of its own. The calling thread sleeps beside it, looks now and then
//! whether it is still wanted, and says how far the measurement is: nothing of that is on the
//! measured path.

use std::{
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use plexus_base::NodeId;
use plexus_fabric::Window;
use plexus_interconnect::{Kind, Net, Service, Worker};
use plexus_node::port::{Port, Ports};
use serde::{Deserialize, Serialize};

use super::{
    Driving, Measured, PerfError, Plan, Serve,
    client::{Client, Outcome},
    parameters::{BULK, PROMPT},
    progress::Progress,
    server::Server,
    wire::{Tag, What},
};

/// The client asks this often whether the server is there.
const HELLO_EVERY: Duration = Duration::from_millis(20);

/// What a run may take longer than its trials need.
const TIMEOUT: Duration = Duration::from_secs(10);

/// How often a run says how far it is, and looks whether anybody still wants it.
const TELL_EVERY: Duration = Duration::from_millis(250);

/// How often the worker turns where nobody polls: as fine as a load with a rate is paced then.
const TURN_EVERY: Duration = Duration::from_millis(1);

/// Where a measurement runs: a worker, and the window of its node that belongs to benchmarks.
pub struct Place<S: Service> {
    /// The worker.
    pub worker: Worker<S>,
    /// The window called [`WINDOW`](super::WINDOW).
    pub window: Arc<Window>,
}

impl<S: Service> Clone for Place<S> {
    fn clone(&self) -> Self {
        Self { worker: self.worker.clone(), window: self.window.clone() }
    }
}

/// How far a run is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Live {
    /// The place of the trial in the plan.
    pub trial: usize,
    /// Messages that have counted so far.
    pub messages: u64,
}

/// Carries out `plan` here; the same worker of the peer must [`serve`] meanwhile. `tell` is called
/// now and then, and ends the run by saying that nobody wants it any more.
///
/// # Errors
/// See [`PerfError`].
pub fn run<S: Service + AsMut<Ports>>(
    place: &Place<S>,
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
    // Nobody polls yet: a worker that is driven cannot be asked for anything.
    let hello = |net: &mut Net| net.send(peer, PROMPT, Kind::Request, Tag::plain(What::Hello), &[]);
    while Instant::now() < deadline {
        worker.with(|_, net| hello(net)).map_err(|_| PerfError::NoLink(peer))?;
        // Only the first of several answers starts the trials; from there on the port needs nobody.
        if progress.wait_begun(HELLO_EVERY) {
            break;
        }
        if !tell(Live::default()) {
            return Err(PerfError::Unwanted);
        }
    }
    driven(worker, plan.driving, paced, &progress, || {
        while Instant::now() < deadline && !progress.wait(TELL_EVERY) {
            let (trial, messages) = progress.reached();
            if !tell(Live { trial, messages }) {
                progress.finish(Err(PerfError::Unwanted));
            }
        }
        progress.finish(Err(PerfError::Silent));
    });
    progress.take().unwrap_or(Err(PerfError::Silent))
}

/// Serves one [`run`] of a peer; `wanted` is asked now and then whether to go on.
///
/// # Errors
/// See [`PerfError`].
pub fn serve<S: Service + AsMut<Ports>>(
    place: &Place<S>,
    serve: &Serve,
    wanted: &mut dyn FnMut() -> bool,
) -> Result<(), PerfError> {
    let progress = Arc::<Progress<Result<(), PerfError>>>::default();
    let server = Server::new(place.window.clone(), progress.clone());
    let _attached = Attached::new(&place.worker, Box::new(server))?;
    let deadline = Instant::now() + Duration::from_millis(serve.peer_timeout_ms) + TIMEOUT;
    driven(&place.worker, serve.driving, false, &progress, || {
        while Instant::now() < deadline && !progress.wait(TELL_EVERY) {
            if !wanted() {
                progress.finish(Err(PerfError::Unwanted));
            }
        }
        progress.finish(Err(PerfError::Silent));
    });
    progress.take().unwrap_or(Err(PerfError::Silent))
}

/// Calls `beside` while the worker is driven as asked; until there is a result.
fn driven<S: Service + AsMut<Ports>, T: Send>(
    worker: &Worker<S>,
    driving: Driving,
    paced: bool,
    progress: &Progress<T>,
    beside: impl FnOnce(),
) {
    thread::scope(|scope| {
        match driving {
            Driving::Polling => {
                scope.spawn(move || worker.drive(|_, _| progress.is_done().then_some(())));
            }
            Driving::Waiting if paced => {
                scope.spawn(move || {
                    while !progress.wait(TURN_EVERY) {
                        worker.with(|_, _| ());
                    }
                });
            }
            Driving::Waiting => {}
        }
        beside();
    });
}

/// A port in its place, taken out again however the measurement ends.
struct Attached<'a, S: Service + AsMut<Ports>>(&'a Worker<S>);

impl<'a, S: Service + AsMut<Ports>> Attached<'a, S> {
    fn new(worker: &'a Worker<S>, port: Box<dyn Port>) -> Result<Self, PerfError> {
        worker.with(|service, _| {
            let ports = service.as_mut();
            match ports.set(PROMPT, Some(port)) {
                None => {
                    ports.share(BULK, PROMPT);
                    ports.watch(Some(PROMPT));
                    Ok(Self(worker))
                }
                Some(other) => {
                    ports.set(PROMPT, Some(other));
                    Err(PerfError::Busy)
                }
            }
        })
    }
}

impl<S: Service + AsMut<Ports>> Drop for Attached<'_, S> {
    fn drop(&mut self) {
        self.0.with(|service, _| {
            let ports = service.as_mut();
            ports.watch(None);
            ports.set(PROMPT, None);
            ports.share(BULK, BULK);
        });
    }
}
