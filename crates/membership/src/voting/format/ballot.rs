//! A node's part in deciding the next view, as the body of a ballot block. After what every block begins with:
//!
//! | byte | size | field |
//! |---|---|---|
//! | 48 | 4 | instance: the epoch that is being decided, one above that of the last decided view |
//! | 52 | 4 | 1 if a view was proposed, else 0 |
//! | 56 | 8 | mbal: the ballot that the node takes part in |
//! | 64 | 8 | bal: the ballot in which it proposed, 0 none |
//! | 72 | 536 | the last decided view |
//! | 608 | 536 | the view that it proposed, or zeros |

use std::sync::Arc;

use zerocopy::{
    FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned,
    little_endian::{U32, U64},
};

use super::view::{self, VIEW};
use crate::protocol::Ballot;

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Layout {
    instance: U32,
    has_proposed: U32,
    mbal: U64,
    bal: U64,
    decided: [u8; VIEW],
    proposed: [u8; VIEW],
}

const LAYOUT: usize = size_of::<Layout>();
const _: () = assert!(LAYOUT == 1144 - 48);

pub(super) fn encode(ballot: &Ballot) -> [u8; LAYOUT] {
    let layout = Layout {
        instance: U32::new(ballot.decided.epoch.0 + 1),
        has_proposed: U32::new(u32::from(ballot.proposed.is_some())),
        mbal: U64::new(ballot.mbal),
        bal: U64::new(ballot.bal),
        decided: view::encode(&ballot.decided),
        proposed: ballot.proposed.as_ref().map_or([0; VIEW], |view| view::encode(view)),
    };
    zerocopy::transmute!(layout)
}

/// What stands at the beginning of `bytes`, if it can be a ballot.
pub(super) fn decode(counter: u64, bytes: &[u8]) -> Option<Ballot> {
    let (layout, _) = Layout::ref_from_prefix(bytes).ok()?;
    let decided = view::decode(&layout.decided)?;
    let (mbal, bal) = (layout.mbal.get(), layout.bal.get());
    let proposed = match layout.has_proposed.get() {
        0 => None,
        1 => Some(Arc::new(view::decode(&layout.proposed)?)),
        _ => return None,
    };
    let instance = decided.epoch.0.checked_add(1)?;
    let sound = layout.instance.get() == instance
        && proposed.is_some() == (bal > 0)
        && proposed.as_ref().is_none_or(|view| view.epoch.0 == instance)
        // A ballot above this one must be left.
        && bal <= mbal && mbal < u64::MAX / 2;
    sound.then(|| Ballot { counter, mbal, bal, proposed, decided: Arc::new(decided) })
}
