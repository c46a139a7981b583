//! `bench.hold` from the command line: holds many locks until it is interrupted. Other tools show
//! their fate when nodes end.

use std::{
    sync::{
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    thread,
};

use plexus_admin::{
    config::Config,
    control::{Control, ControlError},
};

use super::command::{Hold, Holds};
use crate::{
    everywhere::{RunError, to_json},
    stage::LOOK_EVERY,
};

/// Takes `locks` locks, distributed evenly over the nodes. Calls `held` with the number and the
/// milliseconds when all are granted, and `ended` with the reason when the locks of a node are
/// gone. Returns when `interrupted` is set or no node is left.
///
/// # Errors
/// A node could not be asked, or did not get its locks.
pub fn hold(
    config: &Config,
    locks: u64,
    interrupted: &AtomicBool,
    held: &mut dyn FnMut(u64, u64),
    ended: &mut dyn FnMut(&str, Option<&ControlError>),
) -> Result<(), RunError> {
    let nodes = config.nodes.len();
    let (tell, told) = mpsc::channel();
    for (index, node) in config.nodes.iter().enumerate() {
        let mut control = Control::connect(&config.dir, &node.name)?;
        let share = locks / nodes as u64 + u64::from((index as u64) < locks % nodes as u64);
        let tell = tell.clone();
        // The thread is not joined: it ends with its connection.
        thread::spawn(move || {
            let call = control.call("bench.hold", to_json(&Hold { locks: share }), |progress| {
                if let Ok(holds) = serde_json::from_value::<Holds>(progress) {
                    let _ = tell.send((index, Ok(holds)));
                }
            });
            let _ = tell.send((index, Err(call.err())));
        });
    }
    drop(tell);
    let (mut holding, mut sum, mut slowest) = (0, 0, 0);
    while !interrupted.load(Ordering::Relaxed) {
        match told.recv_timeout(LOOK_EVERY) {
            Ok((_, Ok(Holds { held: count, ms }))) => {
                holding += 1;
                (sum, slowest) = (sum + count, slowest.max(ms));
                if holding == nodes {
                    held(sum, slowest);
                }
            }
            Ok((_, Err(Some(error)))) if holding < nodes => return Err(error.into()),
            Ok((index, Err(why))) => {
                config.nodes.iter().nth(index).into_iter().for_each(|node| ended(&node.name, why.as_ref()))
            }
            Err(mpsc::RecvTimeoutError::Timeout) => {}
            Err(mpsc::RecvTimeoutError::Disconnected) => return Ok(()),
        }
    }
    Err(RunError::Interrupted)
}
