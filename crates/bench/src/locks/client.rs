//! A client of the lock workload: a thread that takes and releases locks.

use plexus_base::NodeId;
use plexus_locks::{
    LockError, LockManager, NodeLockSession,
    protocol::{Mode, Name, Token, VALUE_LEN, Validity, Value},
};

use super::Names;
use crate::{
    Responses, clock,
    stage::{MEASURING, OVER, Stage},
};

/// The results of one client.
#[derive(Default)]
pub(super) struct Done {
    /// The locks granted during the measurement.
    pub(super) granted: u64,
    /// The grants after a holder on another node; counted only for the shared name.
    pub(super) handed_over: u64,
    /// The times from the request of a lock to its release.
    pub(super) responses: Responses,
    /// The locks granted, including the warm-up.
    pub(super) all: u64,
    /// For the shared name: the count in its value block before this client's first change, and
    /// after its last.
    pub(super) counted: Option<(u64, u64)>,
}

/// Works until the stage is over. A failure ends all clients of the node.
pub(super) fn work((locks, me): (&LockManager, NodeId), kind: Names, names: &[Name], stage: &Stage) -> Done {
    let mut done = Done::default();
    let session = locks.session();
    let result = match kind {
        Names::Shared => count(&session, (&names[0], me), stage, &mut done),
        Names::Local | Names::Remote => take(&session, names, stage, &mut done),
    };
    if let Err(why) = result {
        stage.fail(why);
    }
    done
}

/// Takes one name after the other.
fn take(session: &NodeLockSession, names: &[Name], stage: &Stage, done: &mut Done) -> Result<(), String> {
    let mut tokens = vec![Token::default(); names.len()];
    until_over(stage, done, |round| {
        let at = round as usize % names.len();
        let lock = session.lock(names[at].clone(), Mode::EX, None).map_err(line)?;
        grown(&mut tokens[at], lock.grant().token)?;
        Ok(false)
    })
}

/// Takes the shared name, whose value block has the number of holders and the node of the last one.
fn count(
    session: &NodeLockSession,
    (name, me): (&Name, NodeId),
    stage: &Stage,
    done: &mut Done,
) -> Result<(), String> {
    // This keeps the value block while the lock has no holder.
    let _kept = session.lock(name.clone(), Mode::NL, None).map_err(line)?;
    let mut token = Token::default();
    let mut counted = None;
    until_over(stage, done, |_| {
        let lock = session.lock(name.clone(), Mode::EX, None).map_err(line)?;
        grown(&mut token, lock.grant().token)?;
        let Left { before, last } = left(&lock.grant().value)?;
        let (first, _) = *counted.get_or_insert((before, before));
        counted = Some((first, before + 1));
        lock.unlock_with(leave(before + 1, me)).map_err(line)?;
        Ok(last.is_some_and(|last| last != me))
    })?;
    done.counted = counted;
    Ok(())
}

/// Works until the stage is over; each iteration returns whether the previous holder was on another
/// node.
fn until_over(
    stage: &Stage,
    done: &mut Done,
    mut once: impl FnMut(u64) -> Result<bool, String>,
) -> Result<(), String> {
    let mut last = clock::now();
    loop {
        let now = stage.now();
        if now == OVER {
            return Ok(());
        }
        let is_handed_over = once(done.all)?;
        done.all += 1;
        let end = clock::now();
        if now == MEASURING {
            done.granted += 1;
            done.handed_over += u64::from(is_handed_over);
            done.responses.record(end.since(last).0);
        }
        last = end;
    }
}

fn grown(last: &mut Token, token: Token) -> Result<(), String> {
    if token <= *last {
        return Err(format!("{token:?} came after {last:?}, which it should exceed"));
    }
    *last = token;
    Ok(())
}

/// The content of the value block left by the previous holder.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Left {
    /// The number of earlier holders.
    before: u64,
    /// The node of the last holder, if there was one.
    last: Option<NodeId>,
}

fn left(value: &Value) -> Result<Left, String> {
    match value.validity {
        Validity::Lost => Err("the value block was lost: a node has died".into()),
        Validity::Unwritten => Ok(Left { before: 0, last: None }),
        Validity::Valid => {
            let mut bytes = [0; 8];
            bytes.copy_from_slice(&value.bytes[..8]);
            Ok(Left { before: u64::from_le_bytes(bytes), last: Some(NodeId(value.bytes[8])) })
        }
    }
}

/// Returns the value block of a holder on node `me`.
fn leave(count: u64, me: NodeId) -> [u8; VALUE_LEN] {
    let mut value = [0; VALUE_LEN];
    value[..8].copy_from_slice(&count.to_le_bytes());
    value[8] = me.0;
    value
}

fn line(error: LockError) -> String {
    error.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_holder_leaves_is_found_by_the_next() {
        let value = Value { bytes: leave(1 << 40 | 7, NodeId(15)), validity: Validity::Valid };
        assert_eq!(left(&value), Ok(Left { before: 1 << 40 | 7, last: Some(NodeId(15)) }));
        let unwritten = Value { bytes: [0; VALUE_LEN], validity: Validity::Unwritten };
        assert_eq!(left(&unwritten), Ok(Left { before: 0, last: None }));
        assert!(left(&Value { validity: Validity::Lost, ..value }).is_err());
    }
}
