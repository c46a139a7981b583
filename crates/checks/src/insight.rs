//! What membership reports about the time before a view, and which nodes can know of all earlier
//! deaths, found by counting them.

use plexus_base::{BlockId, Epoch, Incarnation, MAX_NODES, NodeId, NodeSet};
use plexus_membership::protocol::{Clean, FileId, Seat, View};

use crate::{cluster::Cluster, scenario::Params};

/// The knowledge of a worker about deaths.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Insight {
    /// It joined after other nodes had gone: it may not know of all deaths.
    No,
    /// It knows all until the next death: no node has died since its record.
    UntilOneDies,
    /// It was present at all deaths, or no earlier node died after its record.
    Yes,
}

/// The views as membership decided them.
pub(crate) struct Past {
    /// The views, each with the number of unclean deaths by then.
    views: Vec<(View, u64)>,
    clean: [Clean; MAX_NODES],
    /// The number of deaths when it was last known that nothing was lost.
    intact: u64,
    /// The knowledge of each worker.
    insight: Vec<Insight>,
}

impl Past {
    pub(crate) fn new(params: &Params) -> Self {
        let first = View::first(NodeSet::first(params.nodes), [(FileId(1), None)]);
        Self {
            views: vec![(first, 0)],
            clean: [Clean::NONE; MAX_NODES],
            intact: 0,
            insight: vec![Insight::No; usize::from(params.nodes) * usize::from(params.workers)],
        }
    }

    fn at(&self, epoch: Epoch) -> &(View, u64) {
        self.views.iter().find(|(view, _)| view.epoch == epoch).expect("a view that was decided")
    }

    pub(crate) fn view(&self, epoch: Epoch) -> &View {
        &self.at(epoch).0
    }
}

impl Cluster {
    /// Notes that a node has handed back all it held, and reports so.
    pub(crate) fn is_clean(&mut self, node: usize, incarnation: Incarnation) {
        let locals = self.indices(node as u8);
        let whole = locals.clone().map(|at| self.records[at].recalled().0).min();
        let any_lost = locals.clone().any(|at| !self.locals[at].shard.lost().is_empty());
        let intact = whole.filter(|_| !any_lost).unwrap_or(Epoch(0));
        self.changes.past.clean[node] = Clean { incarnation, intact };
    }

    /// Notes that a view is decided.
    pub(crate) fn note_decision(&mut self) {
        let members = self.changes.view().clone();
        let Past { views, clean, intact, .. } = &mut self.changes.past;
        let (before, deaths) = views.last().expect("a first");
        let (mut next, mut deaths) = (before.clone(), *deaths);
        let seats = std::array::from_fn(|node| match members.incarnation(NodeId(node as u8)) {
            Some(incarnation) => Seat::In(incarnation),
            None => Seat::Out(before.seats[node].last()),
        });
        // Of several undelivered views, the first carries all changes.
        while next.epoch < members.epoch {
            next = next.next(seats, before.files.clone(), clean);
        }
        deaths += before
            .gone(&next)
            .filter(|(node, incarnation)| clean[node.index()].incarnation != *incarnation)
            .count() as u64;
        if next.intact > before.intact {
            *intact = deaths;
        }
        let intact = *intact;
        let stays = |node: NodeId| {
            before.incarnation(node).is_some() && before.incarnation(node) == next.incarnation(node)
        };
        let stay: NodeSet = next.members().iter().filter(|node| stays(*node)).collect();
        views.push((next, deaths));
        for at in 0..self.locals.len() {
            let stays = stay.contains(NodeId((at / usize::from(self.params.workers)) as u8));
            let knows_all = self.records[at].deaths().max(intact) == deaths;
            let insight = &mut self.changes.past.insight[at];
            *insight = match *insight {
                Insight::Yes if stays => Insight::Yes,
                _ if !knows_all => Insight::No,
                Insight::No if stays && intact < deaths => Insight::No,
                _ if stay.is_empty() => Insight::Yes,
                _ => Insight::UntilOneDies,
            };
        }
        self.suspect_by_record(stay);
    }

    /// Marks all blocks as possibly lost where no remaining node can know of all deaths. Also marks
    /// blocks accepted by a record of an earlier time if no node of that time is left (`stay`).
    fn suspect_by_record(&mut self, stay: NodeSet) {
        for block in (0..self.params.blocks).map(BlockId) {
            let at = |node: u8| self.index(node, block);
            let insight = |node: u8| self.changes.past.insight[at(node)];
            let knows_nothing = self.living().all(|node| insight(node) == Insight::No);
            let was_there = |node: u8| stay.contains(NodeId(node)) && insight(node) == Insight::Yes;
            let taken = self.changes.taken[block.0 as usize];
            let is_before = |node: u8| self.records[at(node)].recalled().0 <= taken;
            if knows_nothing || !self.living().any(was_there) && self.living().any(is_before) {
                self.changes.suspect[block.0 as usize] = true;
            }
        }
    }

    /// Notes that a worker with all masters open knows all lost blocks, and has them on record.
    pub(crate) fn note_insight(&mut self, at: usize) {
        let epoch = self.locals[at].shard.epoch();
        if self.locals[at].shard.is_open() && self.records[at].recalled().0 < epoch {
            let past = &mut self.changes.past;
            let deaths = past.at(epoch).1;
            past.insight[at] = Insight::Yes;
            self.records[at].is_whole(epoch, deaths);
        }
    }
}
