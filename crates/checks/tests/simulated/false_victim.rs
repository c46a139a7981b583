//! A request that replaces another while a deadlock with that one is confirmed is no victim.
//!
//! Three nodes and the messages between them, one by one: no seed has found this timing of a
//! client.

use plexus_base::{Epoch, Incarnation, Nanos, NodeId, WorkerId};
use plexus_checks::harness::{Cluster, Lane};
use plexus_locks::protocol::{
    Action, Config, Event, Kind, LockId, LockMessage, LockRefusal, LockRequest, Members, Message, Mode, Name,
    NewLock, Owner, RequestKind, Shard, WaitLimit,
};

const DEADLOCK_NS: u64 = 1_000;

struct Three {
    cluster: Cluster<Shard, Message>,
    now: Nanos,
    refused: Vec<(LockId, LockRefusal)>,
    /// After node 1 has sent so many searches back to node 0, no further message of that node is
    /// delivered there.
    chases: usize,
}

impl Three {
    fn new() -> Self {
        let mut run =
            Self { cluster: Cluster::new(3), now: Nanos(1), refused: Vec::new(), chases: usize::MAX };
        let members = [0, 1, 2].map(|node| (NodeId(node), Incarnation(1)));
        let view = Members { epoch: Epoch(1), members: members.into() };
        let mut said = Vec::new();
        for node in run.cluster.nodes() {
            let mut actions = Vec::new();
            run.cluster.start(node, |instance| {
                let (me, incarnation) = instance.member();
                let config = Config {
                    me,
                    incarnation,
                    worker: WorkerId(0),
                    workers: 1,
                    deadlock_ns: DEADLOCK_NS,
                    waiting_max: 9,
                    locks_max: 9,
                };
                Shard::new(config, view.clone(), &mut actions)
            });
            said.push((node, actions));
        }
        said.into_iter().for_each(|(node, actions)| run.act(node, actions));
        run.settle();
        run
    }

    fn handle(&mut self, node: usize, event: Event) {
        let mut actions = Vec::new();
        let now = self.now;
        self.cluster.node_mut(node).expect("it is up").handle(now, event, &mut actions);
        self.act(node, actions);
    }

    fn act(&mut self, node: usize, actions: Vec<Action>) {
        for action in actions {
            match action {
                Action::Send { to, message } => {
                    let [from, to] = [node, to.index()].map(|node| self.cluster.instance(node));
                    let class = usize::from(message.kind() == Kind::Reply);
                    self.cluster.send(Lane { from, to, class }, message, 0, 0);
                }
                Action::Refused { lock, why } => self.refused.push((lock, why)),
                Action::Fault { from, what } => panic!("{from}: {what}"),
                _ => {}
            }
        }
    }

    /// Delivers all messages that may be delivered.
    fn settle(&mut self) {
        loop {
            let chases = self.chases;
            let may_be = |lane: &Lane| chases > 0 || (lane.from.node, lane.to.node) != (1, 0);
            let Some(lane) = self.cluster.busy().find(may_be) else { return };
            let Some(message) = self.cluster.receive(lane) else { continue };
            if (lane.from.node, lane.to.node) == (1, 0) && matches!(message.body, LockMessage::Chase(..)) {
                self.chases -= 1;
            }
            let (from, incarnation) = lane.from.member();
            self.handle(lane.to.node, Event::Message { from, incarnation, message });
        }
    }

    fn lock(&mut self, (node, owner): (usize, u64), lock: u64, name: &Name, mode: Mode) {
        // Owner 1 is the youngest.
        let kind = RequestKind::New(NewLock {
            owner: Owner(owner),
            start_time: 100 - owner,
            name: name.clone(),
            notify: false,
        });
        self.request(node, LockId(lock), mode, kind);
    }

    fn request(&mut self, node: usize, lock: LockId, mode: Mode, kind: RequestKind) {
        let timeout = WaitLimit::Forever;
        self.handle(node, Event::Request(LockRequest { lock, mode, timeout, kind }));
        self.settle();
    }

    fn convert(&mut self, mode: Mode) {
        self.request(0, LockId(1), mode, RequestKind::Conversion { value: None });
    }
}

/// Makes two clients wait for each other. The younger's search has come back once and is confirmed
/// while the youngest `thinks_again`.
fn circle(thinks_again: bool) -> Vec<(LockId, LockRefusal)> {
    let mut run = Three::new();
    let (young, old, third) = ((0, 1), (1, 2), (1, 3));
    let view = run.cluster.node(0).expect("it is up").view().clone();
    let mut names = (0..).map(|n| Name::new(format!("{n}").as_bytes()).expect("a name"));
    let mut mastered_at =
        |node| names.find(|name| view.master(name.partition()) == NodeId(node)).expect("one of many");
    let [a, b] = [mastered_at(2), mastered_at(1)];
    run.lock(young, 1, &a, Mode::CR);
    run.lock(young, 2, &b, Mode::EX);
    run.lock(old, 3, &a, Mode::CR);
    run.lock(third, 5, &a, Mode::PR);
    run.convert(Mode::EX);
    run.lock(old, 4, &b, Mode::EX);
    run.now = Nanos(run.now.0 + 2 * DEADLOCK_NS);
    run.chases = 1;
    run.handle(0, Event::Tick);
    run.settle();
    assert_eq!(
        (run.chases, &run.refused[..]),
        (0, &[][..]),
        "it is found, and confirmed all but the last step"
    );
    if thinks_again {
        run.handle(0, Event::Cancel { lock: LockId(1) });
        run.settle();
        // Only the third client blocks this request, and that one waits for no other.
        run.convert(Mode::PW);
    }
    run.chases = usize::MAX;
    run.settle();
    run.refused
}

#[test]
fn request_made_after_a_deadlock_was_found_is_not_its_victim() {
    assert_eq!(circle(false), [(LockId(1), LockRefusal::Deadlock)]);
    assert_eq!(circle(true), [(LockId(1), LockRefusal::Cancelled)]);
}
