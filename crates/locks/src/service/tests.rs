//! The service on a worker without links: requests to members that are not connected yet.

use std::sync::Arc;

use plexus_base::{Epoch, Waiting};
use plexus_fabric::{Bell, Lost};
use plexus_interconnect::{Service, Worker, WorkerParts};
use plexus_membership::subsystem::enter;

use super::*;
use crate::protocol::{Mode, Name, NewLock, Owner, WaitLimit};

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

/// A port that leads to no worker.
struct Nowhere;

impl WorkerPort<LockService> for Nowhere {
    fn submit(&self, _: WorkerId, _: LockTask) {}

    fn offer(&self, _: WorkerId, _: LockTask) {}

    fn visit(&self, _: WorkerId, _: &mut dyn FnMut(&mut LockService, &mut Net)) -> bool {
        false
    }

    fn attend(&self, _: WorkerId) {}
}

fn view() -> Members {
    let incarnation = Incarnation(1);
    Members { epoch: Epoch(1), members: vec![(ME, incarnation), (OTHER, incarnation), (THIRD, incarnation)] }
}

/// Takes the worker and then its service into a view.
fn view_in(service: &mut LockService, net: &mut Net, last: Option<&Members>, next: &Members) {
    enter(net, last, next);
    service.view(net, next);
}

fn request(lock: u64, master: NodeId) -> LockRequest {
    let named = |byte: u8| Name::new(&[byte]).unwrap();
    let name = (0..=255).map(named).find(|name| view().master(name.partition()) == master);
    let name = name.expect("each node masters a name");
    let kind = RequestKind::New(NewLock { owner: Owner(1), start_time: 1, name, notify: false });
    LockRequest { lock: LockId(lock), mode: Mode::EX, timeout: WaitLimit::Forever, kind }
}

/// A worker without links.
fn worker() -> Worker<Just> {
    let bell = Arc::new(Bell::create().unwrap());
    let port: Weak<LockPort> = Weak::<Nowhere>::new();
    let settings = LockSettings { me: ME, incarnation: Incarnation(1), workers: 1 };
    let mut services = wire(settings, &port, &Arc::default()).unwrap();
    let service = Just(services.remove(0));
    Worker::new(WorkerParts::alone(ME, bell, Waiting::Adaptive), service).unwrap()
}

#[test]
fn messages_queued_for_a_member_are_not_sent_to_its_next_incarnation() {
    worker().with(|Just(service), net| {
        view_in(service, net, None, &view());
        let said_in = |net: &Net, node| {
            let decoded =
                net.early(node).map(|(_, bytes)| protocol::Message::decode(bytes).expect("our own"));
            decoded.map(|message| message.epoch.0).collect::<Vec<_>>()
        };
        for (lock, node) in [(1, OTHER), (2, THIRD)] {
            assert_eq!(service.ask(net, request(lock, node), None), None);
        }
        // This node never saw the view without the other node.
        let incarnations = [(ME, Incarnation(1)), (OTHER, Incarnation(2)), (THIRD, Incarnation(1))];
        view_in(service, net, Some(&view()), &Members { epoch: Epoch(3), members: incarnations.into() });
        let (to_other, to_third) = (said_in(net, OTHER), said_in(net, THIRD));
        assert!(!to_other.is_empty() && to_other.iter().all(|epoch| *epoch == 3), "{to_other:?}");
        assert!(to_third.contains(&1) && to_third.contains(&3), "{to_third:?}");
    });
}

#[test]
fn requests_to_an_unconnected_member_are_limited() {
    worker().with(|Just(service), net| {
        service.config.locks_max = 1000;
        view_in(service, net, None, &view());
        let mut next = 0;
        let mut ask = |service: &mut LockService, net: &mut Net, master| {
            next += 1;
            service.ask(net, request(next, master), None)
        };
        // Requests that are given up are no locks any more, and two messages each.
        let asked = (1..).take_while(|number| {
            let answer = ask(service, net, OTHER);
            service.unlock(net, LockId(*number), None);
            answer.is_none()
        });
        let asked = asked.count();
        assert!((495..=500).contains(&asked), "the view change has queued messages as well: {asked}");
        let refused = Err(LockError::Refused(LockRefusal::TooManyLocks));
        assert_eq!(ask(service, net, OTHER), Some(refused));
        service.program(net, Event::Request(request(crate::OF_PROGRAMS, OTHER)));
        let told: Vec<_> = service.take_notices().collect();
        assert_eq!(told, [ProgramNotice::Answer(LockId(crate::OF_PROGRAMS), refused)]);
        assert_eq!(ask(service, net, ME), None, "waits for the view to open, not for the other member");
        assert_eq!(ask(service, net, THIRD), None, "the backlog of one member does not block another");
        // New requests are sent again once the backlog has gone.
        // Simulates a link that takes the whole backlog at once.
        net.enter(view().epoch, |node| node != OTHER);
        assert_eq!(ask(service, net, OTHER), None);
    });
}
