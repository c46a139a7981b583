//! A survey of the resources that masters know, for people. It lists as much as people can read and
//! counts the rest.

use plexus_base::{Nanos, NodeId};

use crate::protocol::{LockId, Mode, Name, Owner, Resource, Shard, Token, Validity};

/// The most holders and waiters in one survey. A worker has up to millions, and does nothing else
/// while it lists them.
const ROWS_MAX: usize = 10_000;

/// Resources of one worker whose holders and waiters are counted; each resource beyond counts as
/// one.
const COUNTED_MAX: usize = 100_000;

/// The resources that are held or waited for.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct LockSurvey {
    /// The listed resources. The survey of all workers is sorted by name.
    pub resources: Vec<SurveyedResource>,
    /// A lower bound of the holders and waiters that are not listed.
    pub more: usize,
    /// The owners of this node's waiting requests, at any master; at most the row limit.
    pub waiting: Vec<(LockId, Owner)>,
    /// The owners of this node's other locks, as many as fit in the row limit.
    pub holding: Vec<(LockId, Owner)>,
}

/// One resource that is held or waited for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SurveyedResource {
    /// The name of the resource.
    pub name: Name,
    /// The holders.
    pub granted: Vec<SurveyedHolder>,
    /// The waiting conversions, then the waiting requests for new locks, each in queue order.
    pub waiting: Vec<SurveyedWaiter>,
    /// The validity of the value block.
    pub value: Validity,
}

/// One granted lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SurveyedHolder {
    /// The node of the client that holds the lock.
    pub node: NodeId,
    /// The number of the lock on that node.
    pub lock: u64,
    /// The mode that is held.
    pub mode: Mode,
    /// The fencing token of the grant.
    pub token: Token,
}

/// A request that waits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SurveyedWaiter {
    /// The node of the client that waits.
    pub node: NodeId,
    /// The number of the lock on that node.
    pub lock: u64,
    /// The mode that the request wants.
    pub mode: Mode,
    /// How long the request has waited.
    pub waited: Nanos,
    /// True if the request converts a lock that is held in another mode.
    pub converts: bool,
}

impl LockSurvey {
    /// Returns the survey of the resources that one worker masters, and of its clients' locks.
    pub(crate) fn of(shard: &Shard, now: Nanos) -> Self {
        let first = Self::first((ROWS_MAX, COUNTED_MAX), shard, now);
        Self { waiting: waiting(ROWS_MAX, shard), holding: holding(ROWS_MAX, shard), ..first }
    }

    fn first((rows, counted): (usize, usize), shard: &Shard, now: Nanos) -> Self {
        let (mut survey, mut left) = (Self::default(), rows);
        for (name, resource) in shard.resources().take(counted) {
            let all = resource.granted().len() + resource.queued();
            let told = all.min(left);
            if told > 0 {
                survey.resources.push(SurveyedResource::of(name, resource, told, now));
            }
            survey.more += all - told;
            left -= told;
        }
        survey.more += shard.resource_count().saturating_sub(counted);
        survey
    }

    /// Joins the surveys of all workers.
    pub(crate) fn joined(parts: impl IntoIterator<Item = Self>) -> Self {
        Self::first_of(ROWS_MAX, parts)
    }

    fn first_of(rows: usize, parts: impl IntoIterator<Item = Self>) -> Self {
        let mut all = Self::default();
        for part in parts {
            all.resources.extend(part.resources);
            all.more += part.more;
            all.waiting.extend(part.waiting);
            all.holding.extend(part.holding);
        }
        all.waiting.truncate(rows);
        all.holding.truncate(rows - all.waiting.len());
        all.resources.sort_by(|one, other| one.name.bytes().cmp(other.name.bytes()));
        let mut left = rows;
        for resource in &mut all.resources {
            let before = resource.rows();
            resource.granted.truncate(left);
            resource.waiting.truncate(left - resource.granted.len());
            left -= resource.rows();
            all.more += before - resource.rows();
        }
        all.resources.retain(|resource| resource.rows() > 0);
        all
    }

    /// True if no resource is held or waited for.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.resources.is_empty()
    }
}

/// Returns the waiting requests of a node's clients with their owners.
fn waiting(rows: usize, shard: &Shard) -> Vec<(LockId, Owner)> {
    shard.waiting().take(rows).collect()
}

/// Returns the first of the clients' other locks with their owners.
fn holding(rows: usize, shard: &Shard) -> Vec<(LockId, Owner)> {
    let others = shard.locks().take(rows).filter(|(_, held)| !held.waits());
    others.map(|(lock, held)| (lock, held.owner())).collect()
}

impl SurveyedResource {
    /// Lists a resource with at most `rows` holders and waiters.
    fn of(name: &Name, resource: &Resource, rows: usize, now: Nanos) -> Self {
        let granted = resource.granted().iter().take(rows).map(|holder| SurveyedHolder {
            node: holder.who.node,
            lock: holder.who.lock.0,
            mode: holder.mode,
            token: holder.token,
        });
        let granted: Vec<_> = granted.collect();
        let converting = resource.converting().map(|waiter| (waiter, true));
        let queue = converting.chain(resource.waiting().map(|waiter| (waiter, false)));
        let waiting = queue.take(rows - granted.len()).map(|(waiter, converts)| SurveyedWaiter {
            node: waiter.who.node,
            lock: waiter.who.lock.0,
            mode: waiter.mode,
            waited: Nanos(u64::try_from(now.0 as i64 - waiter.since).unwrap_or(0)),
            converts,
        });
        let waiting = waiting.collect();
        Self { name: name.clone(), granted, waiting, value: resource.value().validity }
    }

    fn rows(&self) -> usize {
        self.granted.len() + self.waiting.len()
    }
}

#[cfg(test)]
mod tests {
    use plexus_base::{Epoch, Incarnation, WorkerId};

    use super::*;
    use crate::protocol::{
        Config, Event, LockId, LockRequest, Members, NewLock, Owner, RequestKind, Shard, WaitLimit,
    };

    /// Returns a single master of resources with these names: each is held once and waited for
    /// twice.
    fn master(names: &[&str]) -> Shard {
        let me = NodeId(0);
        let config = Config {
            me,
            incarnation: Incarnation(1),
            worker: WorkerId(0),
            workers: 1,
            deadlock_ns: 1_000,
            waiting_max: 2,
            locks_max: 100,
        };
        let view = Members { epoch: Epoch(1), members: vec![(me, Incarnation(1))] };
        let mut out = Vec::new();
        let mut shard = Shard::new(config, view, &mut out);
        for (name, start_time) in names.iter().flat_map(|name| [name; 3]).zip(1..) {
            let (lock, owner, name) =
                (LockId(start_time), Owner(start_time), Name::new(name.as_bytes()).unwrap());
            let kind = RequestKind::New(NewLock { owner, start_time, name, notify: false });
            let request = LockRequest { lock, mode: Mode::EX, timeout: WaitLimit::Forever, kind };
            shard.handle(Nanos(10), Event::Request(request), &mut out);
        }
        shard
    }

    /// Returns the names with their numbers of holders and waiters, and the count of the rest.
    fn told(survey: &LockSurvey) -> String {
        let one = |of: &SurveyedResource| {
            let name = String::from_utf8_lossy(of.name.bytes());
            format!("{name}:{}+{} ", of.granted.len(), of.waiting.len())
        };
        let all: String = survey.resources.iter().map(one).collect();
        format!("{all}and {}", survey.more)
    }

    #[test]
    fn a_survey_lists_up_to_its_limit_and_counts_the_rest() {
        let shard = master(&["a", "c", "e"]);
        let of = |rows| LockSurvey::first((rows, 3), &shard, Nanos(30));
        assert_eq!(told(&of(9)), "c:1+2 a:1+2 e:1+2 and 0");
        assert_eq!(told(&of(5)), "c:1+2 a:1+1 and 4");
        assert_eq!(told(&of(4)), "c:1+2 a:1+0 and 5");
        assert_eq!(told(&of(3)), "c:1+2 and 6");
        assert_eq!(told(&of(0)), "and 9");
        assert_eq!(of(9).resources[0].waiting[1].waited, Nanos(20));
        let counted = |most| told(&LockSurvey::first((4, most), &shard, Nanos(30)));
        assert_eq!([counted(2), counted(0)], ["c:1+2 a:1+0 and 3", "and 3"], "the others count as one each");
    }

    #[test]
    fn owners_of_waiting_requests_come_before_owners_of_held_locks() {
        let parts = || [master(&["a", "c"]), master(&["b"])].map(|shard| LockSurvey::of(&shard, Nanos(30)));
        let numbers = |owners: &[(LockId, Owner)]| owners.iter().map(|(lock, _)| lock.0).collect::<Vec<_>>();
        let joined = |rows| {
            let all = LockSurvey::first_of(rows, parts());
            (numbers(&all.waiting), numbers(&all.holding))
        };
        assert_eq!(joined(9), (vec![2, 3, 5, 6, 2, 3], vec![1, 4, 1]));
        assert_eq!(joined(7), (vec![2, 3, 5, 6, 2, 3], vec![1]));
        assert_eq!(joined(5), (vec![2, 3, 5, 6, 2], vec![]));
    }

    #[test]
    fn surveys_of_workers_are_joined_in_the_order_of_names() {
        let (one, other) = (master(&["a", "c"]), master(&["b", "d"]));
        let of = |shard: &Shard| LockSurvey::first((5, 9), shard, Nanos(30));
        let joined = |rows| LockSurvey::first_of(rows, [of(&other), of(&one)]);
        assert_eq!(told(&joined(100)), "a:1+1 b:1+2 c:1+2 d:1+1 and 2");
        assert_eq!(told(&joined(5)), "a:1+1 b:1+2 and 7");
        assert_eq!(told(&joined(3)), "a:1+1 b:1+0 and 9");
        assert!(LockSurvey::first_of(5, []).is_empty());
    }
}
