//! Names for the clients of a node, by their master.
//!
//! A node surveys the locks that it masters. So candidates are locked in NL, which excludes no
//! other mode; those that appear in the survey are mastered here.

use std::{collections::BTreeSet, time::Duration};

use plexus_base::NodeId;
use plexus_locks::{
    LockManager,
    protocol::{Mode, Name},
};

use super::Names;
use crate::stage::LOOK_EVERY;

/// The time that the workers have for a survey.
const SURVEY_WITHIN: Duration = Duration::from_secs(10);

/// The number of candidates at a time. Each master sees those of all nodes at once, so this is well
/// below the limit of a survey.
const BATCH: usize = 1_000;

/// The error of a cancelled command.
pub(super) const UNWANTED: &str = "the client that waited for the result has gone";

/// The name that all clients of all nodes share.
const SHARED: &str = "bench/shared";

/// Returns `count` names of this kind for the clients of node `me`, of `nodes`. Other nodes'
/// clients do not use them. `wanted` returns false to cancel.
///
/// # Errors
/// One line for the user.
pub(super) fn find(
    locks: &LockManager,
    (me, nodes): (NodeId, usize),
    names: Names,
    count: usize,
    wanted: &mut dyn FnMut() -> bool,
) -> Result<Vec<Name>, String> {
    if names == Names::Shared {
        return Ok(vec![name(SHARED)?; count]);
    }
    let mut found = Vec::with_capacity(count);
    // Each node masters about its share of every batch.
    let batch = BATCH.min(count * nodes);
    for number in 0.. {
        if found.len() >= count {
            break;
        }
        let candidates = candidates(me, number, batch)?;
        let session = locks.session();
        let ask = |name: &Name| session.ask(name.clone(), Mode::NL, None);
        let asked: Vec<_> = candidates.iter().map(ask).collect();
        let mut held = Vec::with_capacity(asked.len());
        for waiting in asked {
            let answer = waiting.wait_while(LOOK_EVERY, &mut *wanted).ok_or(UNWANTED)?;
            held.push(answer.map_err(|error| error.to_string())?);
        }
        let survey = locks.survey(SURVEY_WITHIN).ok_or("a worker does not answer")?;
        if survey.more > 0 {
            return Err("so many locks are held and waited for that the node does not name them all".into());
        }
        drop(held);
        let here: BTreeSet<Name> = survey.resources.into_iter().map(|resource| resource.name).collect();
        let fits = |name: &Name| here.contains(name) == (names == Names::Local);
        found.extend(candidates.into_iter().filter(fits));
        if !wanted() {
            return Err(UNWANTED.into());
        }
    }
    found.truncate(count);
    Ok(found)
}

fn candidates(me: NodeId, batch: usize, count: usize) -> Result<Vec<Name>, String> {
    (0..count).map(|number| name(format!("bench/{}/{batch}/{number}", me.0))).collect()
}

/// Returns `count` names that no other node uses, spread over all masters.
pub(super) fn spread(me: NodeId, count: u64) -> impl Iterator<Item = Result<Name, String>> {
    (0..count).map(move |number| name(format!("bench/hold/{}/{number}", me.0)))
}

fn name(text: impl AsRef<[u8]>) -> Result<Name, String> {
    Name::new(text.as_ref()).map_err(|error| error.to_string())
}
