//! Tests of one shard alone, and of several by hand, as a client sees them.

mod backlog;
mod values;

use plexus_base::{Epoch, Incarnation, WorkerId, wire::Fault};

use super::*;

const FIRST: Owner = Owner(1);

fn config(me: u8) -> Config {
    Config {
        me: NodeId(me),
        incarnation: Incarnation(1),
        worker: WorkerId(0),
        workers: 1,
        deadlock_ns: 1_000,
        waiting_max: 2,
        locks_max: 8,
    }
}

fn view(epoch: u32, nodes: &[u8]) -> Members {
    Members {
        epoch: Epoch(epoch),
        members: nodes.iter().map(|node| (NodeId(*node), Incarnation(1))).collect(),
    }
}

/// Returns a member's first request for a new lock in EX.
fn new_lock(lock: LockId, name: Name) -> LockMessage {
    let (seq, mode, kind) = (1, Mode::EX, MasterRequestKind::New { notify: false });
    LockMessage::Request(MasterRequest {
        lock,
        seq,
        name,
        mode,
        attempt: false,
        again: false,
        waited_ns: 0,
        kind,
    })
}

/// A few shards. Messages between them pass at once, or not at all while they are held up.
struct Few {
    shards: Vec<Shard>,
    now: u64,
    held_up: bool,
    said: Vec<(usize, NodeId, Message)>,
    /// The actions for clients: node, and grant, refusal or blocking notice.
    told: Vec<(usize, Action)>,
}

impl Few {
    fn new(nodes: &[u8]) -> Self {
        let mut few = Self { shards: Vec::new(), now: 0, held_up: true, said: Vec::new(), told: Vec::new() };
        for node in nodes {
            let mut out = Vec::new();
            few.shards.push(Shard::new(config(*node), view(1, nodes), &mut out));
            few.took(usize::from(*node), out);
        }
        few.go_on();
        few
    }

    fn took(&mut self, node: usize, out: Vec<Action>) {
        for action in out {
            match action {
                Action::Send { to, message } => self.said.push((node, to, message)),
                Action::Open { .. } => {}
                Action::Fault { .. } => panic!("{action:?}"),
                other => self.told.push((node, other)),
            }
        }
    }

    fn go_on(&mut self) {
        self.held_up = false;
        while !self.said.is_empty() && !self.held_up {
            self.deliver(0);
        }
    }

    /// Delivers one of the messages under way.
    fn deliver(&mut self, at: usize) {
        let (from, to, message) = self.said.remove(at);
        let event = Event::Message { from: NodeId(from as u8), incarnation: Incarnation(1), message };
        self.hand(to.index(), event);
    }

    fn hand(&mut self, node: usize, event: Event) {
        let mut out = Vec::new();
        self.shards[node].handle(Nanos(self.now), event, &mut out);
        self.took(node, out);
    }

    fn event(&mut self, node: usize, event: Event) {
        self.hand(node, event);
        if !self.held_up {
            self.go_on();
        }
    }

    fn enter<const COUNT: usize>(&mut self, nodes: [usize; COUNT], view: &Members) {
        nodes.into_iter().for_each(|node| self.event(node, Event::View(view.clone())));
    }

    fn lock(&mut self, node: usize, lock: u64, owner: Owner, name: &[u8], mode: Mode, timeout: WaitLimit) {
        let name = Name::new(name).expect("a name");
        let (lock, start_time) = (LockId(lock), lock);
        let kind = RequestKind::New(NewLock { owner, start_time, name, notify: true });
        self.event(node, Event::Request(LockRequest { lock, mode, timeout, kind }));
    }

    fn convert(&mut self, node: usize, lock: u64, mode: Mode, value: Option<[u8; VALUE_LEN]>) {
        let (lock, timeout, kind) = (LockId(lock), WaitLimit::Forever, RequestKind::Conversion { value });
        self.event(node, Event::Request(LockRequest { lock, mode, timeout, kind }));
    }

    fn unlock(&mut self, node: usize, lock: u64, value: Option<[u8; VALUE_LEN]>) {
        self.event(node, Event::Unlock { lock: LockId(lock), value });
    }

    /// Returns the actions for clients since the last call: lock, and `+MODE`, `-reason` or
    /// `?MODE`.
    fn notices(&mut self) -> Vec<String> {
        let told = self.told.drain(..).map(|(_, action)| match action {
            Action::Granted { lock, mode, .. } => format!("{}+{mode:?}", lock.0),
            Action::Refused { lock, why } => format!("{}-{why:?}", lock.0),
            Action::Blocking { lock, wanted } => format!("{}?{wanted:?}", lock.0),
            other => format!("{other:?}"),
        });
        told.collect()
    }

    /// Returns the value and its validity that came with the last grant of `lock`.
    fn value_of(&self, lock: u64) -> (u8, Validity) {
        let found = self.told.iter().rev().find_map(|(_, action)| match action {
            Action::Granted { lock: granted, value, .. } if granted.0 == lock => Some(*value),
            _ => None,
        });
        let value = found.expect("a grant");
        (value.bytes[0], value.validity)
    }

    /// Returns a name that `node` masters.
    fn name_at(&self, node: u8) -> Vec<u8> {
        let view = self.shards[0].view();
        let mut names = (0..=255).map(|byte| vec![byte]);
        let mastered =
            |name: &Vec<u8>| view.master(Name::new(name).expect("a name").partition()) == NodeId(node);
        names.find(mastered).expect("each node masters something")
    }
}

#[test]
fn a_resource_mastered_here_is_granted_without_a_message() {
    let mut few = Few::new(&[0, 1]);
    let name = few.name_at(0);
    few.held_up = true;
    few.lock(0, 1, FIRST, &name, Mode::EX, WaitLimit::Forever);
    few.unlock(0, 1, None);
    assert_eq!((few.notices(), few.said.len()), (vec!["1+EX".to_owned()], 0));
}

#[test]
fn requests_are_served_in_order_and_holders_notified() {
    let mut few = Few::new(&[0, 1]);
    let name = few.name_at(1);
    few.lock(0, 1, FIRST, &name, Mode::PR, WaitLimit::Forever);
    few.lock(1, 2, FIRST, &name, Mode::EX, WaitLimit::Forever);
    few.lock(0, 3, Owner(2), &name, Mode::PR, WaitLimit::Forever);
    assert_eq!(few.notices(), ["1+PR", "1?EX"]);
    few.lock(0, 4, Owner(3), &name, Mode::PR, WaitLimit::Forever);
    few.lock(0, 5, Owner(3), &name, Mode::PR, WaitLimit::Try);
    few.lock(0, 6, Owner(3), &name, Mode::NL, WaitLimit::Try);
    assert_eq!(few.notices(), ["4-TooManyWaiting", "5-TooManyWaiting", "6+NL"]);
    few.unlock(0, 1, None);
    assert_eq!(few.notices(), ["2+EX", "2?PR"]);
    few.lock(0, 7, Owner(3), &name, Mode::PR, WaitLimit::Try);
    assert_eq!(few.notices(), ["7-NotGranted"]);
    few.unlock(1, 2, None);
    assert_eq!(few.notices(), ["3+PR"]);
}

#[test]
fn conversions_go_before_new_locks_and_to_less_at_once() {
    let mut few = Few::new(&[0, 1]);
    let name = few.name_at(0);
    few.lock(0, 1, FIRST, &name, Mode::PR, WaitLimit::Forever);
    few.lock(1, 2, FIRST, &name, Mode::PR, WaitLimit::Forever);
    few.lock(1, 3, Owner(2), &name, Mode::EX, WaitLimit::Forever);
    few.convert(1, 2, Mode::PW, None);
    assert_eq!(few.notices(), ["1+PR", "2+PR", "1?EX", "2?EX"]);
    few.convert(0, 1, Mode::CR, None);
    assert_eq!(few.notices(), ["1+CR", "1?EX", "2+PW", "2?EX"]);
    few.convert(1, 2, Mode::NL, None);
    few.unlock(0, 1, None);
    assert_eq!(few.notices(), ["2+NL", "3+EX"]);
}

#[test]
fn an_impossible_request_is_refused_with_the_reason() {
    let mut few = Few::new(&[0]);
    few.convert(0, 1, Mode::EX, None);
    few.lock(0, 1, FIRST, b"a", Mode::EX, WaitLimit::Forever);
    few.lock(0, 2, Owner(2), b"a", Mode::EX, WaitLimit::Forever);
    few.convert(0, 2, Mode::PR, None);
    few.convert(0, 1, Mode::EX, Some([1; VALUE_LEN]));
    few.convert(0, 1, Mode::PR, None);
    few.convert(0, 1, Mode::EX, Some([1; VALUE_LEN]));
    few.unlock(0, 1, Some([1; VALUE_LEN]));
    assert_eq!(
        few.notices(),
        ["1-Unknown", "1+EX", "1?EX", "2-Busy", "1+EX", "1?EX", "1+PR", "1?EX", "1-NotWriter", "1-NotWriter"]
    );
    few.unlock(0, 1, None);
    assert_eq!(few.notices(), ["2+EX"]);
    few.shards[0].home.locks.get_mut(&LockId(2)).and_then(|held| held.hold.as_mut()).expect("held").seq =
        u32::MAX;
    few.convert(0, 2, Mode::PR, None);
    assert_eq!(few.notices(), ["2-TooManyConversions"]);
    (3..11).for_each(|lock| few.lock(0, lock, FIRST, b"b", Mode::CR, WaitLimit::Forever));
    assert_eq!(few.notices().last().map(String::as_str), Some("10-TooManyLocks"));
}

#[test]
fn a_cancellation_and_a_grant_that_cross_give_one_answer() {
    let mut few = Few::new(&[0, 1]);
    let name = few.name_at(1);
    few.held_up = true;
    few.lock(0, 1, FIRST, &name, Mode::EX, WaitLimit::Forever);
    few.event(0, Event::Cancel { lock: LockId(1) });
    few.event(0, Event::Cancel { lock: LockId(1) });
    few.go_on();
    assert_eq!(few.notices(), ["1+EX"]);
    few.lock(0, 2, FIRST, &name, Mode::EX, WaitLimit::Forever);
    few.event(0, Event::Cancel { lock: LockId(2) });
    assert_eq!(few.notices(), ["1?EX", "2-Cancelled"]);
    few.lock(0, 3, FIRST, &name, Mode::EX, WaitLimit::Forever);
    few.held_up = true;
    few.unlock(0, 3, None);
    few.unlock(0, 1, None);
    few.go_on();
    assert_eq!(few.notices(), ["3-Cancelled"]);
    few.lock(1, 4, FIRST, &name, Mode::EX, WaitLimit::Try);
    assert_eq!(few.notices(), ["4+EX"]);
}

#[test]
fn a_request_times_out_at_its_limit_and_not_before() {
    let mut few = Few::new(&[0, 1]);
    let name = few.name_at(1);
    few.lock(1, 1, FIRST, &name, Mode::EX, WaitLimit::Forever);
    few.lock(0, 2, FIRST, &name, Mode::EX, WaitLimit::Until(Nanos(300)));
    assert_eq!(few.shards[0].next_tick(), Some(Nanos(300)));
    few.now = 299;
    few.event(0, Event::Tick);
    assert_eq!(few.notices(), ["1+EX", "1?EX"]);
    few.now = 300;
    few.event(0, Event::Tick);
    assert_eq!((few.notices(), few.shards[0].next_tick()), (vec!["2-TimedOut".to_owned()], None));
}

#[test]
fn values_are_written_on_the_way_down_and_lost_with_their_writer() {
    let mut few = Few::new(&[0, 1]);
    let name = few.name_at(1);
    few.lock(1, 1, FIRST, &name, Mode::NL, WaitLimit::Forever);
    few.lock(0, 2, FIRST, &name, Mode::EX, WaitLimit::Forever);
    assert_eq!(few.value_of(2), (0, Validity::Unwritten));
    few.convert(0, 2, Mode::PR, Some([5; VALUE_LEN]));
    assert_eq!(few.value_of(2), (5, Validity::Valid));
    few.unlock(0, 2, Some([6; VALUE_LEN]));
    few.unlock(0, 2, None);
    few.lock(0, 3, FIRST, &name, Mode::PW, WaitLimit::Forever);
    assert_eq!(few.value_of(3), (5, Validity::Valid), "PR writes nothing");
    few.unlock(0, 3, Some([7; VALUE_LEN]));
    few.lock(0, 4, FIRST, &name, Mode::EX, WaitLimit::Forever);
    assert_eq!(few.value_of(4), (7, Validity::Valid));
    few.event(0, Event::ClientGone { locks: vec![LockId(4)] });
    few.lock(1, 5, FIRST, &name, Mode::PW, WaitLimit::Forever);
    assert_eq!(few.value_of(5), (7, Validity::Lost));
    few.unlock(1, 5, Some([8; VALUE_LEN]));
    few.unlock(1, 1, None);
    few.lock(1, 6, FIRST, &name, Mode::EX, WaitLimit::Forever);
    assert_eq!(
        few.value_of(6),
        (0, Validity::Unwritten),
        "no client had a lock: another resource of the same name"
    );
}

#[test]
fn a_dead_client_did_not_write_with_locks_that_it_waited_for() {
    let mut few = Few::new(&[0, 1]);
    let name = few.name_at(1);
    few.lock(1, 1, FIRST, &name, Mode::PW, WaitLimit::Forever);
    few.convert(1, 1, Mode::NL, Some([5; VALUE_LEN]));
    few.lock(0, 2, FIRST, &name, Mode::CR, WaitLimit::Forever);
    few.lock(0, 3, FIRST, &name, Mode::PR, WaitLimit::Forever);
    few.lock(0, 4, FIRST, &name, Mode::EX, WaitLimit::Forever);
    few.convert(0, 2, Mode::EX, None);
    // Each release admits the next request, for which its client waited.
    few.event(0, Event::ClientGone { locks: [3, 2, 4].map(LockId).into() });
    few.lock(1, 5, FIRST, &name, Mode::PW, WaitLimit::Forever);
    assert_eq!(few.value_of(5), (5, Validity::Valid));
}

#[test]
fn the_youngest_of_a_circle_is_refused() {
    let mut few = Few::new(&[0, 1]);
    let (here, there) = (few.name_at(0), few.name_at(1));
    few.lock(0, 1, FIRST, &here, Mode::EX, WaitLimit::Forever);
    few.lock(1, 2, Owner(2), &there, Mode::EX, WaitLimit::Forever);
    few.lock(0, 3, FIRST, &there, Mode::EX, WaitLimit::Forever);
    few.lock(1, 4, Owner(2), &here, Mode::EX, WaitLimit::Forever);
    few.notices();
    few.now = 5_000;
    few.event(0, Event::Tick);
    assert_eq!(few.notices(), [""; 0], "the search of the older request finds nothing");
    few.event(1, Event::Tick);
    assert_eq!(few.notices(), ["4-Deadlock"]);
    few.event(1, Event::ClientGone { locks: vec![LockId(2), LockId(4)] });
    assert_eq!(few.notices(), ["3+EX"]);
}

#[test]
fn two_conversions_are_a_circle_and_so_is_a_request_that_waits_for_itself() {
    let mut few = Few::new(&[0]);
    few.lock(0, 1, FIRST, b"a", Mode::PR, WaitLimit::Forever);
    few.lock(0, 2, Owner(2), b"a", Mode::PR, WaitLimit::Forever);
    few.convert(0, 1, Mode::EX, None);
    few.convert(0, 2, Mode::EX, None);
    few.notices();
    few.now = 5_000;
    few.event(0, Event::Tick);
    assert_eq!(few.notices(), ["2-Deadlock"], "the conversion, not the lock");
    few.unlock(0, 2, None);
    assert_eq!(few.notices(), ["1+EX"]);
    few.lock(0, 3, FIRST, b"a", Mode::CR, WaitLimit::Forever);
    few.now = 10_000;
    few.event(0, Event::Tick);
    assert_eq!(few.notices(), ["1?CR", "3-Deadlock"]);
}

#[test]
fn a_confirmation_of_an_earlier_request_makes_no_victim_of_the_next() {
    let mut few = Few::new(&[0, 1]);
    let name = few.name_at(1);
    few.lock(0, 1, FIRST, &name, Mode::CR, WaitLimit::Forever);
    few.lock(0, 2, FIRST, &name, Mode::CR, WaitLimit::Forever);
    few.lock(1, 3, Owner(3), &name, Mode::CW, WaitLimit::Forever);
    few.convert(0, 2, Mode::EX, None);
    few.notices();
    // The request waits for a lock of its own owner. The search and its second round come back, and
    // the second is delivered late.
    (few.held_up, few.now) = (true, 5_000);
    few.event(0, Event::Tick);
    (0..3).for_each(|_| few.deliver(0));
    let late = few.said.pop().filter(|(_, _, message)| matches!(message.body, LockMessage::Chase(..)));
    few.held_up = false;
    few.event(0, Event::Cancel { lock: LockId(2) });
    // The next request of the same lock waits for another owner only.
    few.convert(0, 2, Mode::PR, None);
    assert_eq!((few.notices(), few.said.len()), (vec!["2-Cancelled".to_owned()], 0));
    few.said.extend(late);
    assert_eq!(few.said.len(), 1);
    few.go_on();
    assert_eq!(few.notices(), [""; 0]);
}

/// Makes two clients wait for each other, and the search of the younger come back. Its confirmation
/// comes back late, after the younger has perhaps replaced its request. Returns the refusals.
fn confirmed_late(replaces: bool) -> Vec<String> {
    let mut few = Few::new(&[0, 1, 2]);
    let (a, b) = (few.name_at(2), few.name_at(1));
    few.lock(0, 8, FIRST, &a, Mode::CR, WaitLimit::Forever);
    few.lock(0, 9, FIRST, &b, Mode::EX, WaitLimit::Forever);
    few.lock(1, 2, Owner(2), &a, Mode::CR, WaitLimit::Forever);
    few.lock(1, 1, Owner(3), &a, Mode::PR, WaitLimit::Forever);
    few.convert(0, 8, Mode::EX, None);
    few.lock(1, 3, Owner(2), &b, Mode::EX, WaitLimit::Forever);
    few.notices();
    (few.now, few.held_up) = (5_000, true);
    few.event(0, Event::Tick);
    // No message of the second node reaches the first after its first search.
    let mut is_back = false;
    let mut settle = |few: &mut Few| {
        let is_held = |from: usize, to: NodeId| (from, to.0) == (1, 0);
        while let Some(at) = few.said.iter().position(|(from, to, _)| !(is_back && is_held(*from, *to))) {
            let (from, to, message) = &few.said[at];
            is_back |= is_held(*from, *to) && matches!(message.body, LockMessage::Chase(..));
            few.deliver(at);
        }
    };
    settle(&mut few);
    assert!(
        matches!(&few.said[..], [(1, NodeId(0), message)] if matches!(message.body, LockMessage::Chase(..)))
    );
    assert_eq!(few.notices(), [""; 0]);
    if replaces {
        few.event(0, Event::Cancel { lock: LockId(8) });
        settle(&mut few);
        // Only the third client blocks this request, and that one waits for no other.
        few.convert(0, 8, Mode::PW, None);
        settle(&mut few);
    }
    few.go_on();
    few.notices().into_iter().filter(|told| told.contains('-')).collect()
}

#[test]
fn a_request_made_after_a_deadlock_was_found_is_not_its_victim() {
    assert_eq!(confirmed_late(false), ["8-Deadlock"]);
    assert_eq!(confirmed_late(true), ["8-Cancelled"]);
}

#[test]
fn a_new_master_serves_requests_in_the_order_of_their_waiting() {
    // Not in the order of nodes, nor those of its own clients first.
    for (first, second) in [(0, 1), (1, 0)] {
        let mut few = Few::new(&[0, 1, 2]);
        let moved = few.name_at(2);
        few.lock(first, 1, FIRST, &moved, Mode::EX, WaitLimit::Forever);
        few.now = 100;
        few.lock(second, 2, Owner(2), &moved, Mode::EX, WaitLimit::Forever);
        few.now = 200;
        few.lock(first, 3, Owner(3), &moved, Mode::EX, WaitLimit::Forever);
        few.notices();
        few.held_up = true;
        few.enter([0, 1], &view(2, &[0, 1]));
        few.go_on();
        few.unlock(first, 1, None);
        few.unlock(second, 2, None);
        let told = few.notices().into_iter().filter(|told| told.contains('+')).collect::<Vec<_>>();
        assert_eq!(told, ["2+EX", "3+EX"]);
    }
}

#[test]
fn a_node_that_missed_a_view_hands_over_no_value_block() {
    let (before, joined) = (view(1, &[0, 1]), [0, 1, 2]);
    for epoch in [2, 3] {
        let mut few = Few::new(&[0, 1]);
        let next = view(epoch, &joined);
        let moves = |name: &Name| {
            let masters = [&before, &next].map(|view| view.master(name.partition()));
            masters == [NodeId(0), NodeId(2)]
        };
        let name = (0..=255).map(|byte| Name::new(&[byte]).expect("a name")).find(moves).expect("one moves");
        few.lock(1, 1, FIRST, name.bytes(), Mode::NL, WaitLimit::Forever);
        few.lock(1, 2, FIRST, name.bytes(), Mode::EX, WaitLimit::Forever);
        few.unlock(1, 2, Some([5; VALUE_LEN]));
        few.held_up = true;
        few.event(0, Event::View(next));
        let need = [few.shards[0].core.masters.slot(name.partition())].into_iter().collect();
        let message = Message { epoch: Epoch(epoch), body: LockMessage::Ask(need) };
        few.hand(0, Event::Message { from: NodeId(2), incarnation: Incarnation(1), message });
        let handed = few.said.iter().any(|(_, _, message)| matches!(message.body, LockMessage::Values(_)));
        assert_eq!(handed, epoch == 2, "the view before the one of epoch {epoch} was the first");
    }
}

#[test]
fn the_locks_of_a_dead_node_are_released_and_those_that_it_mastered_are_found_again() {
    let mut few = Few::new(&[0, 1, 2]);
    let (kept, moved) = (few.name_at(0), few.name_at(2));
    few.lock(2, 1, FIRST, &kept, Mode::EX, WaitLimit::Forever);
    few.lock(0, 2, FIRST, &kept, Mode::NL, WaitLimit::Forever);
    few.lock(1, 3, FIRST, &kept, Mode::EX, WaitLimit::Forever);
    few.lock(0, 4, FIRST, &moved, Mode::EX, WaitLimit::Forever);
    few.lock(1, 5, FIRST, &moved, Mode::PR, WaitLimit::Forever);
    assert_eq!(few.notices(), ["1+EX", "2+NL", "1?EX", "4+EX", "4?PR"]);
    few.said.clear();
    few.enter([0, 1], &view(2, &[0, 1]));
    few.go_on();
    assert_eq!(few.value_of(3), (0, Validity::Lost));
    assert_eq!(few.notices(), ["3+EX", "4?PR"]);
    few.unlock(0, 4, Some([9; VALUE_LEN]));
    assert_eq!(few.value_of(5), (9, Validity::Valid));
    assert!(few.shards[..2].iter().all(Shard::is_open));
}

#[test]
fn a_message_of_an_older_view_counts_only_if_the_master_stayed() {
    let mut few = Few::new(&[0, 1, 2]);
    let (kept, moved) = (few.name_at(0), few.name_at(2));
    few.lock(1, 1, FIRST, &kept, Mode::EX, WaitLimit::Forever);
    few.lock(1, 2, FIRST, &moved, Mode::EX, WaitLimit::Forever);
    few.notices();
    few.held_up = true;
    few.unlock(1, 1, None);
    few.unlock(1, 2, None);
    few.said.retain(|(_, to, _)| *to != NodeId(2));
    few.event(0, Event::View(view(2, &[0, 1])));
    few.lock(0, 3, FIRST, &kept, Mode::EX, WaitLimit::Forever);
    few.event(1, Event::View(view(2, &[0, 1])));
    few.go_on();
    assert_eq!(few.notices(), ["3+EX"]);
    assert_eq!(few.shards[0].counts().late, 1);
    few.lock(0, 4, FIRST, &moved, Mode::EX, WaitLimit::Try);
    assert_eq!(few.notices(), ["4+EX"]);
}

#[test]
fn a_message_of_a_non_member_is_dropped_and_one_of_a_newer_view_waits() {
    let mut few = Few::new(&[0, 1]);
    let request = |epoch| Message {
        epoch: Epoch(epoch),
        body: new_lock(LockId(9), Name::new(&few.name_at(0)).expect("a name")),
    };
    let (now, later) = (request(1), request(2));
    few.held_up = true;
    few.event(0, Event::Message { from: NodeId(1), incarnation: Incarnation(2), message: now });
    few.event(0, Event::Message { from: NodeId(1), incarnation: Incarnation(1), message: later });
    let counts = *few.shards[0].counts();
    assert_eq!((counts.non_members, counts.new_epoch, few.said.len()), (1, 1, 0));
    few.event(0, Event::View(view(2, &[0, 1])));
    few.event(1, Event::View(view(2, &[0, 1])));
    few.go_on();
    let name = Name::new(&few.name_at(0)).expect("a name");
    let holders = few.shards[0].resource(&name).map(|resource| resource.granted().len());
    assert_eq!(holders, Some(1));
}

#[test]
fn a_node_that_missed_a_view_asks_for_partitions_that_another_may_have_mastered() {
    let mut few = Few::new(&[0, 1, 2]);
    let all = [0, 1, 2, 3];
    // Mastered by node 0, but by node 3 while that is a member.
    let mut names = (0..=255u8).map(|byte| vec![byte]);
    let moved = names.find(|name| {
        let partition = Name::new(name).expect("a name").partition();
        (view(1, &[0, 1, 2]).master(partition), view(2, &all).master(partition)) == (NodeId(0), NodeId(3))
    });
    let moved = moved.expect("a newcomer gets partitions of every node");
    few.held_up = true;
    let mut out = Vec::new();
    few.shards.push(Shard::new(config(3), view(2, &all), &mut out));
    few.took(3, out);
    few.enter([1, 2], &view(2, &all));
    // Node 0 does not know the view yet. It answers all the same, because messages of newer views
    // wait there.
    let late: Vec<_> = few.said.extract_if(.., |(_, to, _)| *to == NodeId(0)).collect();
    few.said.push((0, NodeId(3), Message { epoch: Epoch(2), body: LockMessage::Done }));
    few.said.push((0, NodeId(1), Message { epoch: Epoch(2), body: LockMessage::Done }));
    few.said.push((0, NodeId(2), Message { epoch: Epoch(2), body: LockMessage::Done }));
    few.go_on();
    few.lock(1, 1, FIRST, &moved, Mode::EX, WaitLimit::Forever);
    assert_eq!(few.notices(), ["1+EX"]);
    few.held_up = true;
    few.said.retain(|(_, to, _)| *to != NodeId(3));
    few.said.extend(late);
    few.enter([0, 1, 2], &view(3, &[0, 1, 2]));
    few.go_on();
    few.lock(2, 2, FIRST, &moved, Mode::EX, WaitLimit::Try);
    assert_eq!(few.notices(), ["2-NotGranted"]);
}

#[test]
fn a_grant_that_does_not_fit_the_request_is_a_fault_and_answers_nothing() {
    let mut few = Few::new(&[0, 1]);
    let name = few.name_at(1);
    few.held_up = true;
    few.lock(0, 1, FIRST, &name, Mode::CR, WaitLimit::Forever);
    let (lock, seq, token) = (LockId(1), 1, Token(1 << 40 | 7));
    let body = LockMessage::Granted(Granted { lock, seq, mode: Mode::EX, token, value: Value::default() });
    let (incarnation, message) = (Incarnation(1), Message { epoch: Epoch(1), body });
    let mut out = Vec::new();
    few.shards[0].handle(Nanos(0), Event::Message { from: NodeId(1), incarnation, message }, &mut out);
    assert!(matches!(out[..], [Action::Fault { from: NodeId(1), .. }]), "{out:?}");
    few.go_on();
    assert_eq!(few.notices(), ["1+CR"]);
}

#[test]
fn many_waiters_are_served_and_notified_like_a_few() {
    const WAITERS: u64 = 600;
    let mut few = Few::new(&[0, 1]);
    for shard in &mut few.shards {
        (shard.core.config.waiting_max, shard.core.config.locks_max) =
            (WAITERS as usize, 2 * WAITERS as usize);
    }
    let name = few.name_at(0);
    (0..WAITERS).for_each(|lock| few.lock(1, lock, Owner(lock), &name, Mode::PR, WaitLimit::Forever));
    few.notices();
    few.lock(0, WAITERS, FIRST, &name, Mode::EX, WaitLimit::Forever);
    assert_eq!(few.notices().len() as u64, WAITERS, "each holder is notified once");
    (WAITERS + 1..2 * WAITERS)
        .for_each(|lock| few.lock(0, lock, Owner(lock), &name, Mode::PR, WaitLimit::Forever));
    few.now = 1_000_000;
    few.event(0, Event::Tick);
    assert_eq!(few.notices(), [""; 0], "no holder is notified twice, and there is no circle");
    (0..WAITERS).for_each(|lock| few.unlock(1, lock, None));
    few.unlock(0, WAITERS, None);
    let notices = few.notices();
    assert_eq!(
        (notices.len() as u64, notices[0].as_str(), notices[2].as_str()),
        (WAITERS + 1, "600+EX", "601+PR")
    );
}

#[test]
fn a_search_that_names_many_locks_is_sent_in_several_messages() {
    let many = MAX_CHASED as u64 + 1;
    let mut few = Few::new(&[0, 1]);
    for shard in &mut few.shards {
        (shard.core.config.waiting_max, shard.core.config.locks_max) = (9, 2 * many as usize);
    }
    let name = few.name_at(0);
    (0..many).for_each(|lock| few.lock(1, lock, Owner(lock), &name, Mode::PR, WaitLimit::Forever));
    few.lock(0, many, FIRST, &name, Mode::EX, WaitLimit::Forever);
    (few.now, few.held_up) = (1_000_000, true);
    few.event(0, Event::Tick);
    let said: Vec<usize> = few
        .said
        .iter()
        .map(|(_, _, message)| match Message::decode(&message.encode()).map(|read| read.body) {
            Ok(LockMessage::Chase(chased, _)) => chased.len(),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(said, [MAX_CHASED, 1]);
    let LockMessage::Chase(chased, probe) = few.said[0].2.body.clone() else { panic!("{:?}", few.said[0]) };
    let too_many =
        LockMessage::Chase([chased, vec![Chased { lock: LockId(0), seq: 1, queued: false }]].concat(), probe);
    let bytes = Message { epoch: Epoch(1), body: too_many }.encode();
    assert_eq!(Message::decode(&bytes).map_err(|error| error.fault), Err(Fault::Field("number of blockers")));
}
