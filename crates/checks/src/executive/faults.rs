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
    /// All nodes are told to end, one after the other or at once, and leave.
    LeaveAll,
    /// All voting files stall for longer than a lease: no node ends.
    Stall,
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

plexus_base::named! {
    impl Fault {
        Kill "kill -9",
        KillFirst "kill -9 of the first",
        KillTwo "kill -9 of two, one after the other",
        KillTwice "kill -9 twice of one",
        Leave "told to end",
        LeaveAll "all told to end",
        Stall "voting files stalled",
        Pause "stopped for a moment",
        Stop "stopped past its lease",
        CutOne "one network cut",
        CutAll "all networks cut",
        Mute "cut one way",
        PartTwo "two that do not hear each other",
        Split "split into halves",
    }
}

impl Fault {
    /// Returns true if the fault always ends an incarnation of a node, however soon it is healed.
    pub fn ends_a_incarnation(self) -> bool {
        matches!(
            self,
            Self::Kill
                | Self::KillFirst
                | Self::KillTwo
                | Self::KillTwice
                | Self::Leave
                | Self::LeaveAll
                | Self::Stop
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
            Self::LeaveAll => leave_all(nodes, random)?,
            Self::Stall => {
                if let Some(disks) = nodes.disks() {
                    disks.stall();
                    thread::sleep(PAST_THE_LEASE + Duration::from_millis(random.below(4000)));
                    disks.mend();
                }
                for node in nodes.all() {
                    nodes.runs(node).map_err(|status| format!("{}: {status}", Nodes::name(node)))?;
                }
            }
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

/// Tells all nodes to end, in any order, each at once or when the one before has ended.
fn leave_all(nodes: &mut Nodes, random: &mut Random) -> Result<(), String> {
    let mut order = nodes.all();
    (1..order.len()).for_each(|last| order.swap(last, random.below(last as u64 + 1) as usize));
    let at_once = random.percent(50);
    if at_once {
        order.iter().for_each(|node| nodes.signal(*node, Signal::TERM));
    }
    for node in order {
        let status = if at_once { nodes.ended(node)? } else { nodes.leave(node)? };
        if !status.is_some_and(|status| status.success()) {
            let (name, said) = (Nodes::name(node), nodes.last_said(node));
            return Err(format!("{name} was told to end with all others: {status:?}\n{said}"));
        }
    }
    Ok(())
}
