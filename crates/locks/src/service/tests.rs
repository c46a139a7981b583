//! The service on a worker without links: what is asked of members that are not there yet.

use std::sync::Arc;

use plexus_base::{Epoch, Waiting};
use plexus_fabric::{Bell, Lost};
use plexus_interconnect::{Service, Signal, Worker, WorkerParts};
use plexus_membership::subsystem::enter;

use super::*;
use crate::protocol::{Mode, Name, Owner, WaitLimit};

const ME: NodeId = NodeId(0);
const OTHER: NodeId = NodeId(1);
const THIRD: NodeId = NodeId(2);

struct Just(LockService);

impl Service for Just {
    type Task = LockTask;

    fn message(&mut self, net: &mut Net, message: Message<'_>) {
        self.0.message(net, message);
    }

    fn task(&mut self, net: &mut Net, task: LockTask) {
        self.0.task(net, task);
    }

    fn peer_gone(&mut self, _: &mut Net, _: NodeId, _: &Lost) {}
}

/// Leads to no worker.
struct Nowhere;

impl WorkerPort<LockService> for Nowhere {
    fn submit(&self, _: WorkerId, _: LockTask) {}

    fn offer(&self, _: WorkerId, _: LockTask) {}

    fn visit(&self, _: WorkerId, _: &mut dyn FnMut(&mut LockService, &mut Net)) -> bool {
        false
    }

    fn attend(&self, _: WorkerId) {}

    fn wait(&self, _: WorkerId, _: Option<LockTask>, _: &Signal) {}
}

fn view() -> Members {
    let incarnation = Incarnation(1);
    Members { epoch: Epoch(1), members: vec![(ME, incarnation), (OTHER, incarnation), (THIRD, incarnation)] }
}

/// Has the worker and then its service take up a view.
fn view_in(service: &mut LockService, net: &mut Net, last: Option<&Members>, next: &Members) {
    enter(net, last, next);
    service.view(net, next, LossHistory { needs: Epoch(0), intact: Epoch(0) });
}

fn want(lock: u64, master: NodeId) -> Want {
    let named = |byte: u8| Name::new(&[byte]).unwrap();
    let name = (0..=255).map(named).find(|name| view().master(name.partition()) == master);
    let (mode, timeout) = (Mode::EX, WaitLimit::Forever);
    let name = name.expect("each masters something");
    Want { lock: LockId(lock), owner: Owner(1), start_time: 1, name, mode, timeout, notify: false }
}

/// A worker that nobody has a link to.
fn worker() -> Worker<Just> {
    let bell = Arc::new(Bell::create().unwrap());
    let port: Weak<Port> = Weak::<Nowhere>::new();
    let settings = Settings { me: ME, incarnation: Incarnation(1), workers: 1 };
    let mut services = wire(settings, &port, &Arc::default()).unwrap();
    let service = Just(services.remove(0));
    Worker::new(WorkerParts::alone(ME, bell, Waiting::Adaptive), service).unwrap()
}

#[test]
fn of_what_waits_for_a_member_its_next_incarnation_is_told_nothing() {
    worker().with(|Just(service), net| {
        view_in(service, net, None, &view());
        let said_in = |net: &Net, node| {
            let decoded =
                net.early(node).map(|(_, bytes)| protocol::Message::decode(bytes).expect("our own"));
            decoded.map(|message| message.epoch.0).collect::<Vec<_>>()
        };
        for (lock, node) in [(1, OTHER), (2, THIRD)] {
            assert_eq!(service.ask(net, Asked::Lock(want(lock, node), None)), None);
        }
        // The view in which the one was out was never seen here.
        let lives = [(ME, Incarnation(1)), (OTHER, Incarnation(2)), (THIRD, Incarnation(1))];
        view_in(service, net, Some(&view()), &Members { epoch: Epoch(3), members: lives.into() });
        let (to_other, to_third) = (said_in(net, OTHER), said_in(net, THIRD));
        assert!(!to_other.is_empty() && to_other.iter().all(|epoch| *epoch == 3), "{to_other:?}");
        assert!(to_third.contains(&1) && to_third.contains(&3), "{to_third:?}");
    });
}

#[test]
fn of_a_member_that_is_not_there_only_so_much_is_asked() {
    worker().with(|Just(service), net| {
        view_in(service, net, None, &view());
        let mut next = 0;
        let mut ask = |service: &mut LockService, net: &mut Net, master| {
            next += 1;
            service.ask(net, Asked::Lock(want(next, master), None))
        };
        // The view has left something to say as well.
        let asked = (0..).take_while(|_| ask(service, net, OTHER).is_none()).count();
        assert!((BEHIND_MAX - 9..=BEHIND_MAX).contains(&asked), "{asked}");
        let swamped = Some(Err(LockError::Refused(LockRefusal::Overloaded)));
        assert_eq!(ask(service, net, OTHER), swamped);
        service.program(net, Event::Lock(Want { lock: LockId(crate::OF_PROGRAMS), ..want(0, OTHER) }));
        let refused = Err(LockError::Refused(LockRefusal::Overloaded));
        let told: Vec<_> = service.take_news().collect();
        assert_eq!(told, [ProgramNews::Answer(LockId(crate::OF_PROGRAMS), refused)]);
        assert_eq!(ask(service, net, ME), None, "waits for the view to open, not for the other");
        assert_eq!(ask(service, net, THIRD), None, "what the other is to be told does not wait for this one");
        // What was asked can be given up, and the other is asked again once it has been told.
        service.unlock(net, LockId(1), None);
        assert!(net.backlog(OTHER) > asked);
        // As when a link takes all of it at once.
        net.enter(view().epoch, |node| node != OTHER);
        assert_eq!(ask(service, net, OTHER), None);
    });
}
