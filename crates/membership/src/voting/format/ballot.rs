//! A node's part in deciding the next view, as the body of a ballot block. It follows the common
//! prefix of all blocks:
//!
//! | byte | size | field |
//! |---|---|---|
//! | 48 | 4 | instance: the epoch that is being decided, one above that of the last decided view |
//! | 52 | 4 | 1 if a view was proposed, else 0 |
//! | 56 | 8 | mbal: the ballot that the node takes part in |
//! | 64 | 8 | bal: the ballot in which it proposed, 0 none |
//! | 72 | 520 | the last decided view |
//! | 592 | 520 | the view that it proposed, or zeros |

use std::sync::Arc;

use plexus_base::wire::{self, Fault, Reader, Zeros, require};

use super::view::{self, ViewLayout};
use crate::protocol::Ballot;

wire::layout! {
    pub(super) struct Layout: 1064 {
        instance: u32, has_proposed: bool, zero: Zeros<3>, mbal: u64, bal: u64, decided: ViewLayout, proposed: ViewLayout
    }
}

pub(super) fn encode(ballot: &Ballot) -> Layout {
    Layout {
        instance: ballot.decided.epoch.0 + 1,
        has_proposed: ballot.proposed.is_some(),
        zero: Zeros,
        mbal: ballot.mbal,
        bal: ballot.bal,
        decided: view::encode(&ballot.decided),
        proposed: ballot.proposed.as_ref().map(|view| view::encode(view)).unwrap_or_default(),
    }
}

/// Decodes a ballot from the start of `bytes`.
pub(super) fn decode(counter: u64, bytes: &[u8]) -> Result<Ballot, Fault> {
    let Layout { instance, has_proposed, mbal, bal, decided, proposed, .. } = Reader::new(bytes).take()?;
    let decided = view::decode(&decided)?;
    let proposed = has_proposed.then(|| view::decode(&proposed)).transpose()?;
    let sound = decided.epoch.0.checked_add(1) == Some(instance)
        && proposed.is_some() == (bal > 0)
        && proposed.as_ref().is_none_or(|view| view.epoch.0 == instance)
        // There must be room for a higher ballot.
        && bal <= mbal && mbal < u64::MAX / 2;
    require(sound, "ballot")?;
    Ok(Ballot { counter, mbal, bal, proposed: proposed.map(Arc::new), decided: Arc::new(decided) })
}
