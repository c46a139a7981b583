//! One client: a thread that takes locks and gives them up.

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

/// What one client did.
#[derive(Default)]
pub(super) struct Done {
    /// Locks granted while it was measured.
    pub(super) granted: u64,
    /// Of those, the ones that a client of another node had before; counted of the name that all
    /// want.
    pub(super) handed_over: u64,
    /// From asking for a lock to having given it up.
    pub(super) responses: Responses,
    /// Locks granted, from the first to the last.
    pub(super) all: u64,
    /// Of the name that all want: what its value block counted before the first change of this
    /// client, and after its last.
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

/// One name after the other.
fn take(session: &NodeLockSession, names: &[Name], stage: &Stage, done: &mut Done) -> Result<(), String> {
    let mut tokens = vec![Token::default(); names.len()];
    until_over(stage, done, |round| {
        let at = round as usize % names.len();
        let lock = session.lock(names[at].clone(), Mode::EX, None).map_err(line)?;
        grown(&mut tokens[at], lock.grant().token)?;
        Ok(false)
    })
}

/// One name, whose value block counts its holders and says on which node the last one was.
fn count(
    session: &NodeLockSession,
    (name, me): (&Name, NodeId),
    stage: &Stage,
    done: &mut Done,
) -> Result<(), String> {
    // Keeps the value block while nobody has the lock.
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

/// Works until the stage is over; each time says whether a client of another node had the lock
/// before.
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

/// What the holder before left in the value block.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Left {
    /// How many there were.
    before: u64,
    /// Where the last of them was, if there was one.
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

/// The value block of a holder on node `me`.
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
