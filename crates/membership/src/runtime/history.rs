//! The history of view changes as seen outside of the protocol: the phases of transitions, and the
//! fenced incarnations.

use std::{
    collections::VecDeque,
    sync::Arc,
    time::{SystemTime, UNIX_EPOCH},
};

use plexus_base::{Epoch, Incarnation, Nanos, NodeId};

use super::status::{Fencing, FencingState, Phases, Transition};
use crate::protocol::View;

/// The number of remembered transitions and fences.
const KEPT: usize = 16;

/// The steps from the first ballot for a view until it is opened.
#[derive(Debug, Default)]
struct Steps {
    began: Option<Nanos>,
    decided: Option<Nanos>,
    /// The time when the last removed member was known to have stopped.
    stopped: Option<Nanos>,
    /// The time when the first removed member was last heard.
    silent: Option<Nanos>,
}

/// The last transitions and fences.
#[derive(Debug, Default)]
pub(super) struct History {
    opened: Option<Arc<View>>,
    steps: Steps,
    transitions: VecDeque<Transition>,
    opened_at: Nanos,
    fences: VecDeque<Fencing>,
}

impl History {
    /// Records that a ballot for the next view was seen.
    pub(super) fn balloted(&mut self, now: Nanos) {
        self.steps.began.get_or_insert(now);
    }

    /// Records that `view` was decided after `before`. `heard` returns when a node was last heard.
    pub(super) fn decided(
        &mut self,
        before: &View,
        view: &View,
        heard: impl Fn(NodeId) -> Option<Nanos>,
        now: Nanos,
    ) {
        let silent = before.gone(view).filter_map(|(node, _)| heard(node));
        let steps = &mut self.steps;
        steps.silent = silent.chain(steps.silent).min();
        steps.began.get_or_insert(now);
        (steps.decided, steps.stopped) = (Some(now), Some(now));
    }

    /// Records that an incarnation is to be fenced.
    pub(super) fn fencing(&mut self, node: NodeId, incarnation: Incarnation) {
        push(
            &mut self.fences,
            Fencing { node: node.0, incarnation: incarnation.0, state: FencingState::UnderWay },
        );
    }

    /// Records how an incarnation is known to have stopped; the first record counts.
    pub(super) fn ended(&mut self, node: NodeId, incarnation: Incarnation, how: FencingState) {
        for fence in &mut self.fences {
            let same = fence.node == node.0 && fence.incarnation <= incarnation.0;
            if same && fence.state == FencingState::UnderWay {
                fence.state = how;
            }
        }
    }

    /// Records that one more removed member has stopped.
    pub(super) fn stopped(&mut self, now: Nanos) {
        self.steps.stopped = Some(now);
    }

    /// Records that a view is opened.
    pub(super) fn opened(&mut self, view: &Arc<View>, now: Nanos) -> Transition {
        let steps = std::mem::take(&mut self.steps);
        let before = self.opened.replace(Arc::clone(view));
        let (gone, came) = match &before {
            Some(before) => (incarnations(before.gone(view)), incarnations(view.gone(before))),
            None => (
                Vec::new(),
                incarnations(view.members().iter().filter_map(|node| Some((node, view.incarnation(node)?)))),
            ),
        };
        let decided = steps.decided.unwrap_or(now);
        let began = steps.began.unwrap_or(decided).min(decided);
        let fenced = steps.stopped.map_or(decided, |stopped| stopped.max(decided));
        let silent = steps.silent.unwrap_or(began).min(began);
        let phases = Phases {
            detect: ms(began.since(silent)),
            decide: ms(decided.since(began)),
            fence: ms(fenced.since(decided)),
            open: ms(now.since(fenced)),
            rebuild: None,
        };
        self.opened_at = now;
        let before = before.map_or(0, |before| before.epoch.0);
        let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let at_ms = since_1970.as_millis() as u64;
        let transition = Transition { epoch: view.epoch.0, before, at_ms, gone, came, phases };
        push(&mut self.transitions, transition.clone());
        transition
    }

    /// Records that all subsystems have been rebuilt in this view.
    pub(super) fn rebuilt(&mut self, epoch: Epoch, now: Nanos) {
        if let Some(last) = self.transitions.back_mut().filter(|last| last.epoch == epoch.0) {
            last.phases.rebuild.get_or_insert(ms(now.since(self.opened_at)));
        }
    }

    pub(super) fn transitions(&self) -> Vec<Transition> {
        self.transitions.iter().cloned().collect()
    }

    pub(super) fn fences(&self) -> Vec<Fencing> {
        self.fences.iter().cloned().collect()
    }
}

pub(super) fn ms(time: Nanos) -> f64 {
    time.0 as f64 / 1e6
}

fn incarnations(of: impl Iterator<Item = (NodeId, Incarnation)>) -> Vec<(u8, u64)> {
    of.map(|(node, incarnation)| (node.0, incarnation.0)).collect()
}

fn push<T>(to: &mut VecDeque<T>, what: T) {
    if to.len() == KEPT {
        to.pop_front();
    }
    to.push_back(what);
}
