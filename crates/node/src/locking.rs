//! What the command line asks of the lock manager: a lock for as long as the connection stands, and who has what.
//!
//! `lock` takes `{"name", "mode", "wait_ms"}` (no `wait_ms`: as long as it takes; 0: not at all), says `{"granted":{"mode","token"}}`, and
//! gives the lock up when the connection ends, in whatever way the program at its other end did. It fails when the lock protects nothing any more, and
//! where as many as may wait and hold already. `locks` takes nothing and says [`NodeLocks`].

use std::{thread, time::Duration};

use plexus_locks::{
    NodeLock, PendingNodeLock,
    protocol::{Mode, Name},
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::commands::{LOOK_EVERY, On, Progress, Run, args};

mod show;

pub use show::{LockHolder, LockWaiter, LockedResource, NodeLocks};

/// How often it is looked whether who holds is still there: for so long others may wait in vain.
const HOLDER_LOOKED_AT_EVERY: Duration = Duration::from_millis(10);

/// What is asked for.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LockArgs {
    /// Of what.
    pub name: String,
    /// NL, CR, CW, PR, PW or EX.
    pub mode: String,
    /// How long it waits; nothing: as long as it takes. 0: not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wait_ms: Option<u64>,
}

/// What waits and holds.
pub(crate) const COMMANDS: &[(&str, Run)] = &[("lock", lock)];

/// What only looks.
pub(crate) const LOOKS: &[(&str, Run)] = &[("locks", show::locks)];

fn lock(on: &On, asked: Value, progress: Progress<'_>) -> Result<Value, String> {
    let LockArgs { name, mode: wanted, wait_ms } = args(asked)?;
    let name = Name::new(name.as_bytes()).map_err(|error| error.to_string())?;
    let timeout = wait_ms.map(Duration::from_millis);
    let pending = on.body.locks().session().ask(name, mode(&wanted)?, timeout);
    let Some(lock) = wait(pending, progress)? else { return Ok(json!({})) };
    // A node that stood still finds answers for its clients when it goes on, and others may have the lock by then.
    let lease = on.body.membership().lease();
    let protects = || match lease.is_held() && !lock.is_lost() {
        true => Ok(()),
        false => Err("the cluster has stopped: the lock protects nothing any more"),
    };
    protects()?;
    let grant = lock.grant();
    let granted = json!({ "granted": { "mode": format!("{:?}", grant.mode), "token": grant.token.0 } });
    let mut is_there = progress(granted);
    while is_there {
        protects()?;
        thread::sleep(HOLDER_LOOKED_AT_EVERY);
        is_there = progress(Value::Null);
    }
    Ok(json!({}))
}

/// Waits for the lock. `None`: the connection has ended, and the request was given up.
fn wait(pending: PendingNodeLock, progress: Progress<'_>) -> Result<Option<NodeLock>, String> {
    let answer = pending.wait_while(LOOK_EVERY, || progress(Value::Null));
    answer.transpose().map_err(|error| error.to_string())
}

/// The mode of this name.
///
/// # Errors
/// There is none.
pub fn mode(name: &str) -> Result<Mode, String> {
    let is_it = |mode: &Mode| format!("{mode:?}").eq_ignore_ascii_case(name);
    Mode::ALL
        .into_iter()
        .find(is_it)
        .ok_or_else(|| format!("{name:?} is no mode: use NL, CR, CW, PR, PW or EX"))
}
