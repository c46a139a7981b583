//! Starts and ends the two sides within their nodes, and drives the worker where that is asked for.

use std::{
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use plexus_base::NodeId;
use plexus_interconnect::{Channel, Kind, Service, Worker};
use plexus_node::port::{Port, Ports};

use super::{
    Driving, Measured, PerfError, Plan, Serve,
    client::{Client, Outcome},
    progress::Progress,
    server::Server,
    wire,
};

/// The client asks this often whether the server is there.
const HELLO_EVERY: Duration = Duration::from_millis(20);

/// What a run may take longer than its trials need.
const PATIENCE: Duration = Duration::from_secs(10);

/// A driver looks at the clock, and lets others run, every so many turns (about a millisecond): where cores are
/// missing, the peer may be what waits for this one.
const TURNS_BETWEEN_CLOCKS: u32 = 1 << 14;

/// Carries out `plan` over this worker; the peer's same worker must [`serve`] meanwhile.
///
/// # Errors
/// See [`PerfError`].
pub fn run<S: Service + AsMut<Ports>>(worker: &Worker<S>, plan: &Plan) -> Result<Vec<Measured>, PerfError> {
    plan.check()?;
    let peer = NodeId(plan.peer);
    let progress = Arc::<Progress<Outcome>>::default();
    let _attached = Attached::new(worker, Box::new(Client::new(plan, progress.clone())))?;
    let deadline = Instant::now() + Duration::from_millis(plan.total_ms()) + PATIENCE;
    while !progress.has_begun() {
        let hello = |net: &mut plexus_interconnect::Net| {
            net.send(peer, Channel::Benchmark, Kind::Request, wire::HELLO, &[])
        };
        worker.with(|_, net| hello(net)).map_err(|_| PerfError::NoLink(peer))?;
        // Only the first of several answers starts the trials; from there on the port needs nobody.
        if wait(worker, plan.driving, Instant::now() + HELLO_EVERY, &progress) || Instant::now() > deadline {
            break;
        }
    }
    wait(worker, plan.driving, deadline, &progress);
    progress.take().unwrap_or(Err(PerfError::Silent))
}

/// Serves one [`run`] of a peer.
///
/// # Errors
/// See [`PerfError`].
pub fn serve<S: Service + AsMut<Ports>>(worker: &Worker<S>, serve: &Serve) -> Result<(), PerfError> {
    let progress = Arc::<Progress<Result<(), PerfError>>>::default();
    let _attached = Attached::new(worker, Box::new(Server::new(progress.clone())))?;
    let deadline = Instant::now() + Duration::from_millis(serve.patience_ms) + PATIENCE;
    wait(worker, serve.driving, deadline, &progress);
    progress.take().unwrap_or(Err(PerfError::Silent))
}

/// Waits for the port's result until `deadline`, driving the worker if that is asked for; whether it is there.
fn wait<S: Service, T>(
    worker: &Worker<S>,
    driving: Driving,
    deadline: Instant,
    progress: &Progress<T>,
) -> bool {
    match driving {
        Driving::Waiting => progress.wait(deadline.saturating_duration_since(Instant::now())),
        Driving::Polling => {
            let mut turns = 0_u32;
            worker.drive(|_, _| {
                turns = turns.wrapping_add(1);
                let mut late = false;
                if turns.is_multiple_of(TURNS_BETWEEN_CLOCKS) {
                    late = Instant::now() > deadline;
                    thread::yield_now();
                }
                (progress.is_done() || late).then_some(())
            });
            progress.is_done()
        }
    }
}

/// A port in its place, taken out again however the measurement ends.
struct Attached<'a, S: Service + AsMut<Ports>>(&'a Worker<S>);

impl<'a, S: Service + AsMut<Ports>> Attached<'a, S> {
    fn new(worker: &'a Worker<S>, port: Box<dyn Port>) -> Result<Self, PerfError> {
        worker.with(|service, _| {
            let ports = service.as_mut();
            match ports.set(Channel::Benchmark, Some(port)) {
                None => Ok(Self(worker)),
                Some(other) => {
                    ports.set(Channel::Benchmark, Some(other));
                    Err(PerfError::Busy)
                }
            }
        })
    }
}

impl<S: Service + AsMut<Ports>> Drop for Attached<'_, S> {
    fn drop(&mut self) {
        self.0.with(|service, _| service.as_mut().set(Channel::Benchmark, None));
    }
}
