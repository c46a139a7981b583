//! The faults of a cluster: nodes that end or stop, and networks that drop packets.

use std::{process::ExitStatus, thread, time::Duration};

use plexus_sim::Random;
use rustix::process::Signal;

use super::nodes::Nodes;

/// Longer than a lease and the wait of the others beyond it.
const PAST_THE_LEASE: Duration = Duration::from_millis(2500);

/// A fault of the cluster.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Fault {
    /// A node is killed.
    Kill,
    /// The member with the lowest number, which proposes views first, is killed.
    KillFirst,
    /// A node is killed, and another while the view changes.
    KillTwo,
    /// A node is killed and started again, and killed again.
    KillTwice,
    /// A node is told to end, and leaves.
    Leave,
    /// A node is stopped for a moment.
    Pause,
    /// A node is stopped for longer than its lease, and continued.
    Stop,
    /// One of the networks of a node is cut.
    CutOne,
    /// All networks of a node are cut.
    CutAll,
    /// A node cannot send any more, but receives.
    Mute,
    /// Two nodes receive nothing from each other.
    PartTwo,
    /// Two halves of the cluster receive nothing from each other.
    Split,
}

impl Fault {
    /// Every fault.
    pub const ALL: [Self; 12] = [
        Self::Kill,
        Self::KillFirst,
        Self::KillTwo,
        Self::KillTwice,
        Self::Leave,
        Self::Pause,
        Self::Stop,
        Self::CutOne,
        Self::CutAll,
        Self::Mute,
        Self::PartTwo,
        Self::Split,
    ];

    /// The name in reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Kill => "kill -9",
            Self::KillFirst => "kill -9 of the first",
            Self::KillTwo => "kill -9 of two, one after the other",
            Self::KillTwice => "kill -9 twice of one",
            Self::Leave => "told to end",
            Self::Pause => "stopped for a moment",
            Self::Stop => "stopped past its lease",
            Self::CutOne => "one network cut",
            Self::CutAll => "all networks cut",
            Self::Mute => "cut one way",
            Self::PartTwo => "two that do not hear each other",
            Self::Split => "split into halves",
        }
    }

    /// Returns true if the fault always ends an incarnation of a node, however soon it is healed.
    #[must_use]
    pub fn ends_a_incarnation(self) -> bool {
        matches!(
            self,
            Self::Kill | Self::KillFirst | Self::KillTwo | Self::KillTwice | Self::Leave | Self::Stop
        )
    }

    /// Causes the fault and waits for its duration. Returns the exit status of a node that was told
    /// to end.
    ///
    /// # Errors
    /// The error of the system, or the node does not end.
    pub fn strike(self, nodes: &mut Nodes, random: &mut Random) -> Result<Option<ExitStatus>, String> {
        let node = random.below(nodes.count() as u64) as usize;
        let other = (node + 1 + random.below(nodes.count() as u64 - 1) as usize) % nodes.count();
        let moment = |random: &mut Random| thread::sleep(Duration::from_millis(random.below(120)));
        match self {
            Self::Kill => nodes.kill(node),
            Self::KillFirst => nodes.kill(0),
            Self::KillTwo => {
                nodes.kill(node);
                moment(random);
                nodes.kill(other);
            }
            Self::KillTwice => {
                nodes.kill(node);
                nodes.up(node)?;
                moment(random);
                nodes.kill(node);
            }
            // It may be evicted just now, and exit in another way.
            Self::Leave => return nodes.leave(node),
            Self::Pause => {
                nodes.signal(node, Signal::STOP);
                moment(random);
                nodes.signal(node, Signal::CONT);
            }
            Self::Stop => {
                nodes.signal(node, Signal::STOP);
                thread::sleep(PAST_THE_LEASE + Duration::from_millis(random.below(1000)));
                nodes.signal(node, Signal::CONT);
            }
            Self::CutOne => {
                nodes.lan().unplug(node, random.below(nodes.lan().networks() as u64) as usize)?;
            }
            Self::CutAll => {
                (0..nodes.lan().networks()).try_for_each(|network| nodes.lan().unplug(node, network))?;
            }
            Self::Mute => nodes.mute(node)?,
            Self::PartTwo => {
                nodes.part(node, &[other])?;
                nodes.part(other, &[node])?;
            }
            Self::Split => {
                let rest: Vec<usize> =
                    (0..nodes.count()).filter(|one| *one != node && *one != other).collect();
                let half = [node, other];
                half.iter().try_for_each(|one| nodes.part(*one, &rest))?;
                rest.iter().try_for_each(|one| nodes.part(*one, &half))?;
            }
        }
        Ok(None)
    }
}
