//! The episodes of a membership run: the faults, and the outcome that each must have.

use std::sync::Arc;

use plexus_base::{NodeId, NodeSet};
use plexus_membership::protocol::{ConfigChange, ConfigChangeRefusal, MAX_UNDURABLE_REPORTS, Profile, View};
use plexus_sim::Random;

use super::{
    Membership, Sabotage,
    files::{File, Sick},
    witness::broken,
    world::{MembershipEvent, MembershipWorld},
};
use crate::{failure::Broken, harness::Simulation};

/// After healing, all nodes must be in one view within so many times [`Profile::evict`], and the
/// waits of new members.
const ONE_VIEW_AFTER: u64 = 12;

/// A node that never starts.
const OTHER: NodeId = NodeId(15);

/// An episode of a cluster whose nodes are all in one view.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Episode {
    /// All faults at once: only the invariants are checked.
    Storm,
    /// Paths are cut: the correct side must continue.
    Cut,
    /// Nodes lose their links with each other and accept that incarnation no more: one view without
    /// one of them is decided, and no second.
    Lost,
    /// One or several processes end.
    Crash,
    /// A process stops for less than its lease: nothing changes.
    ShortPause,
    /// A process stops for longer than its lease: the others continue, and it acts no more.
    LongPause,
    /// Fewer than half of the files do not answer: all nodes continue.
    FewFiles,
    /// More than half of the files do not answer for longer than the disk timeout: all nodes stop.
    MostFiles,
    /// Some or all files stall for less than the disk timeout, for one node or for all: nothing
    /// changes.
    Stall,
    /// Files lose power while nodes write to them: nothing changes.
    Power,
    /// An older copy of a file is restored: a view without the file is decided, and then one with
    /// it.
    OldCopy,
    /// A node leaves.
    Leave,
    /// A file is removed and added again.
    Files,
    /// A node is removed and added again.
    Nodes,
}

impl Episode {
    const ALL: [Self; 16] = [
        Self::Storm,
        Self::Storm,
        Self::Storm,
        Self::Cut,
        Self::Cut,
        Self::Lost,
        Self::Crash,
        Self::ShortPause,
        Self::LongPause,
        Self::FewFiles,
        Self::MostFiles,
        Self::Stall,
        Self::Power,
        Self::Leave,
        Self::Files,
        Self::Nodes,
    ];

    pub(super) fn draw(world: &MembershipWorld, random: &mut Random) -> Self {
        // With only one or two files, none can be older than a majority.
        if world.files.len() > 2 && random.percent(10) {
            return Self::OldCopy;
        }
        *random.pick(&Self::ALL)
    }
}

impl Membership {
    /// Starts all nodes.
    pub(super) fn boot(&mut self) -> Result<(), Broken> {
        for node in 0..self.nodes() {
            let after = self.random.below(self.world.profile.evict.0);
            self.world.engine.schedule(after, None, MembershipEvent::Start(node));
        }
        self.run(self.world.profile.evict.0)?;
        self.one_view()
    }

    /// Checks that all nodes stay in their view.
    pub(super) fn rest(&mut self) -> Result<(), Broken> {
        let (epoch, deaths) = (self.world.witness.last_epoch(), self.deaths());
        self.run(4 * self.world.profile.evict.0)?;
        if (epoch, deaths) != (self.world.witness.last_epoch(), self.deaths()) {
            return broken("ends", "views change though nothing is wrong".into());
        }
        self.one_view()
    }

    pub(super) fn play(&mut self, episode: Episode) -> Result<(), Broken> {
        let evict = self.world.profile.evict.0;
        self.world.files.iter_mut().for_each(File::copy);
        let later = self.random.below(evict);
        self.run(later)?;
        match episode {
            Episode::Storm => self.storm()?,
            Episode::Cut => self.cut()?,
            Episode::Lost => self.lost()?,
            Episode::Crash => self.crash()?,
            Episode::ShortPause => self.short_pause()?,
            Episode::LongPause => self.long_pause()?,
            Episode::FewFiles => self.few_files()?,
            Episode::MostFiles => self.most_files()?,
            Episode::Stall => self.stall()?,
            Episode::Power => self.power()?,
            Episode::OldCopy => self.old_copy()?,
            Episode::Leave => self.leave()?,
            Episode::Files => self.other_files()?,
            Episode::Nodes => self.other_nodes()?,
        }
        self.heal();
        self.one_view()
    }

    pub(super) fn nodes(&self) -> usize {
        self.world.nodes.len()
    }

    fn deaths(&self) -> u64 {
        self.world.nodes.iter().map(|node| node.deaths).sum()
    }

    pub(super) fn run(&mut self, for_ns: u64) -> Result<(), Broken> {
        self.world.engine.schedule(for_ns, None, MembershipEvent::Next);
        while !self.world.step()? {}
        Ok(())
    }

    fn heal(&mut self) {
        let world = &mut self.world;
        for node in 0..world.nodes.len() {
            world.resume(node);
            world.nodes[node].down = false;
            if world.nodes[node].member.is_none() {
                let after = self.random.between(world.profile.kill_margin.0, world.profile.evict.0);
                world.engine.schedule(after, None, MembershipEvent::Start(node));
            }
        }
        if world.sabotage == Some(Sabotage::NeverHealed) {
            return;
        }
        world.cut.iter_mut().flatten().for_each(|cut| *cut = false);
        world.files.iter_mut().for_each(|file| file.sick = None);
        world.thaw();
        world.loss_permille = 0;
    }

    /// Waits until all nodes act in one view with all files, for so long that no earlier event can
    /// still change it.
    fn one_view(&mut self) -> Result<(), Broken> {
        let Profile { evict, heartbeat, .. } = self.world.profile;
        // A node that joins may wait for the disk timeout, and begin again once.
        let waits = 2 * self.world.profile.wait_as_new().0;
        let (began, timeout) = (self.now(), ONE_VIEW_AFTER * evict.0 + waits);
        let mut since = began;
        while self.now() - since < 2 * evict.0 {
            self.run(heartbeat.0 / 2)?;
            if self.in_one_view().is_some() {
                continue;
            }
            since = self.now();
            if since - began > timeout {
                let acting: Vec<_> = self.world.witness.acting(since).collect();
                return broken("ends", format!("not all are in one view: {acting:?}"));
            }
        }
        Ok(())
    }

    fn in_one_view(&self) -> Option<&Arc<View>> {
        let up = (0..self.nodes()).filter(|node| !self.world.nodes[*node].down);
        let up: NodeSet = up.map(|node| NodeId(node as u8)).collect();
        let mut acting = self.world.witness.acting(self.now());
        let (_, view) = acting.next()?;
        let live = up.iter().all(|node| self.world.nodes[node.index()].member.is_some());
        let same = live
            && view.members() == up
            && view.files.len() == self.world.files.len()
            && view.epoch.0 == self.world.witness.last_epoch()
            && acting.all(|(_, other)| other == view)
            && self.acting() == up;
        same.then_some(view)
    }

    pub(super) fn acting(&self) -> NodeSet {
        self.world.witness.acting(self.now()).map(|(node, _)| node).collect()
    }

    /// Returns the time after which lost members are evicted and members without a lease have
    /// stopped.
    fn settled(&self) -> u64 {
        let profile = self.world.profile;
        let slack = 6 * profile.heartbeat.0;
        (profile.evict.0 + profile.settle().0 + profile.wait().0 + slack + self.world.proof()) * 102 / 100
    }

    fn expect(&self, expected: NodeSet, what: &str) -> Result<(), Broken> {
        let acting = self.acting();
        let apart = self.world.witness.acting(self.now()).any(|(_, view)| view.members() != expected);
        if acting != expected || apart {
            let views: Vec<_> =
                self.world.witness.acting(self.now()).map(|(node, view)| (node, view.members())).collect();
            return broken("side", format!("{what}: {expected:?} should act, but {views:?} do"));
        }
        Ok(())
    }

    fn storm(&mut self) -> Result<(), Broken> {
        let profile = self.world.profile;
        let times = self.random.between(3, 25);
        for _ in 0..times {
            let node = self.random.below(self.nodes() as u64) as usize;
            let other = self.random.below(self.nodes() as u64) as usize;
            let file = self.random.below(self.world.files.len() as u64) as usize;
            match self.random.below(13) {
                0 | 1 => {
                    self.world.crash(node);
                    let after = self.random.between(profile.kill_margin.0, 2 * profile.evict.0);
                    self.world.engine.schedule(after, None, MembershipEvent::Start(node));
                }
                2 => self.world.pause(node, self.random.below(3 * profile.evict.0)),
                3 => self.world.cut[node][other] = true,
                4 => {
                    self.world.cut[node][other] = true;
                    self.world.cut[other][node] = true;
                }
                5 => self.world.cut.iter_mut().flatten().for_each(|cut| *cut = false),
                6 => self.world.files[file].sick = Some(self.sickness()),
                7 => self.world.files.iter_mut().for_each(|file| file.sick = None),
                8 => self.world.files[file].lose_power(),
                9 if self.random.percent(30) => self.outage(),
                10 | 11 => {
                    let opener = Some(other).filter(|_| self.random.percent(50));
                    let for_ns = self.random.below(profile.disk_timeout.0 * 3 / 2);
                    for file in 0..self.world.files.len() {
                        if self.random.percent(70) {
                            self.world.stall(opener, file, for_ns);
                        }
                    }
                }
                _ => self.world.loss_permille = *self.random.pick(&[0, 50, 300]),
            }
            let after = *self.random.pick(&[profile.heartbeat.0 / 10, profile.heartbeat.0, profile.evict.0]);
            let after = self.random.below(after);
            self.run(after)?;
        }
        Ok(())
    }

    /// Cuts the power of everything at once, and starts it again.
    fn outage(&mut self) {
        let profile = self.world.profile;
        for node in 0..self.nodes() {
            self.world.crash(node);
            let after = self.random.between(profile.kill_margin.0, profile.evict.0);
            self.world.engine.schedule(after, None, MembershipEvent::Start(node));
        }
        self.world.files.iter_mut().for_each(File::lose_power);
    }

    fn sickness(&mut self) -> Sick {
        let kinds = [
            Sick::Slow(20),
            Sick::Slow(100),
            Sick::Torn,
            Sick::Full,
            Sick::Unreadable,
            Sick::Wrong,
            Sick::Hung,
            Sick::Unsettled,
        ];
        *self.random.pick(&kinds)
    }

    fn cut(&mut self) -> Result<(), Broken> {
        let nodes = self.nodes();
        match self.random.below(3) {
            // Two halves.
            0 => {
                let left = self.random.between(1, (1 << nodes) - 2);
                for (a, b) in pairs(nodes).filter(|(a, b)| (left >> a ^ left >> b) & 1 == 1) {
                    self.world.cut[a][b] = true;
                }
            }
            // Random pairs, in both directions.
            1 => {
                for (a, b) in pairs(nodes).filter(|(a, b)| a < b) {
                    let cut = self.random.percent(40);
                    (self.world.cut[a][b], self.world.cut[b][a]) = (cut, cut);
                }
            }
            // Random pairs, in one direction.
            _ => {
                for (a, b) in pairs(nodes) {
                    self.world.cut[a][b] = self.random.percent(30);
                }
            }
        }
        let expected = self.side();
        // A node that sends but receives nothing is silent only after its process has ended.
        self.run(self.settled() + self.world.profile.evict.0)?;
        // Files whose hosts do not continue are gone with them for a while.
        match self.has_files(expected) || expected.is_empty() {
            true => self.expect(expected, "paths were cut"),
            false => Ok(()),
        }
    }

    fn lost(&mut self) -> Result<(), Broken> {
        let epoch = self.world.witness.last_epoch();
        for _ in 0..self.random.between(1, 2) {
            let one = self.random.below(self.nodes() as u64) as usize;
            let other = (one + 1 + self.random.below(self.nodes() as u64 - 1) as usize) % self.nodes();
            self.world.lose(one, other)?;
            if self.random.percent(70) {
                self.world.lose(other, one)?;
            }
        }
        let expected = self.side();
        // An evicted node would come back in its next incarnation, with new links.
        for node in 0..self.nodes() {
            self.world.nodes[node].down = !expected.contains(NodeId(node as u8));
        }
        let Profile { heartbeat, .. } = self.world.profile;
        // Three heartbeats to suspect, three to settle, the proposal, the decision, and the wait
        // for the lease.
        self.run((9 * heartbeat.0 + self.world.profile.wait().0 + self.world.proof()) * 102 / 100)?;
        if !self.has_files(expected) {
            return Ok(());
        }
        self.expect(expected, "links were lost")?;
        match self.world.witness.last_epoch() - epoch {
            1 => Ok(()),
            views => broken("side", format!("{views} views after one loss of links")),
        }
    }

    /// Returns the largest set of nodes that all see each other and that each reach a majority of
    /// the files; of equal sets the one with the lowest node. Tries every set.
    fn side(&self) -> NodeSet {
        let (nodes, files) = (self.nodes(), self.world.files.len());
        let whole = |a: usize, b: usize| self.world.hears(a, b) && self.world.hears(b, a);
        let up = |node: usize| self.world.nodes[node].member.is_some();
        let answers = |node: usize, file: usize| {
            let host = self.world.files[file].host;
            self.world.reaches(node, file) && host.is_none_or(|host| up(host.index()))
        };
        let reaches = |node: usize| 2 * (0..files).filter(|file| answers(node, *file)).count() > files;
        let is_side = |set: &u32| {
            let of = |node: &usize| set >> node & 1 == 1;
            (0..nodes)
                .filter(of)
                .all(|a| up(a) && reaches(a) && (0..nodes).filter(of).all(|b| a == b || whole(a, b)))
        };
        // After the bits are reversed, the lowest node's bit is the highest.
        let rank = |set: &u32| (set.count_ones(), set.reverse_bits());
        let all = (0..1u32 << nodes).filter(is_side);
        let side = match self.world.sabotage {
            Some(Sabotage::OtherSide) => all.filter(|set| *set > 0).min_by_key(rank).unwrap_or_default(),
            _ => all.max_by_key(rank).unwrap_or_default(),
        };
        (0..nodes as u8).filter(|node| side >> node & 1 == 1).map(NodeId).collect()
    }

    fn crash(&mut self) -> Result<(), Broken> {
        let several = self.random.between(1, self.nodes() as u64 - 1);
        for _ in 0..several {
            let node = self.random.below(self.nodes() as u64) as usize;
            self.world.nodes[node].down = true;
            self.world.crash(node);
        }
        let expected = self.side();
        let Profile { heartbeat, disk_timeout, .. } = self.world.profile;
        let until = match (self.world.proofs, expected.is_empty()) {
            // After a proof of death no node waits for a silence or a lease.
            (true, false) => 5 * heartbeat.0,
            // Without a majority of the files the others go on only as in a stall.
            (true, true) => self.settled() + disk_timeout.0 * 102 / 100,
            (false, _) => self.settled(),
        };
        self.run(until)?;
        self.expect(expected, "processes ended")
    }

    fn short_pause(&mut self) -> Result<(), Broken> {
        let (epoch, deaths) = (self.world.witness.last_epoch(), self.deaths());
        let node = self.random.below(self.nodes() as u64) as usize;
        let pause = self.random.below(self.world.profile.lease.0 / 2);
        self.world.pause(node, pause);
        self.run(2 * self.world.profile.evict.0)?;
        if (epoch, deaths) != (self.world.witness.last_epoch(), self.deaths()) {
            return broken("side", format!("node {node} stopped for only {pause} ns, but was evicted"));
        }
        Ok(())
    }

    fn long_pause(&mut self) -> Result<(), Broken> {
        let node = self.random.below(self.nodes() as u64) as usize;
        let deaths = self.world.nodes[node].deaths;
        let mut expected = NodeSet::first(self.nodes() as u8);
        expected.remove(NodeId(node as u8));
        // A stopped process ends with its lease, and so does the service of its file.
        self.world.pause(node, self.settled() + self.world.profile.evict.0);
        self.run(self.settled())?;
        self.expect(expected, "a process stopped")?;
        self.run(self.world.profile.evict.0 * 102 / 100 + self.world.profile.heartbeat.0)?;
        match self.world.nodes[node].deaths > deaths {
            true => Ok(()),
            false => broken("evicted", format!("node {node} continues after its eviction")),
        }
    }

    fn few_files(&mut self) -> Result<(), Broken> {
        let few = (self.world.files.len() - 1) / 2;
        let sick = self.sickness();
        let deaths = self.deaths();
        self.make_sick(few, sick);
        self.run(3 * self.world.profile.evict.0)?;
        if self.deaths() > deaths {
            return broken("side", format!("{few} of {} files {sick:?}: nodes end", self.world.files.len()));
        }
        self.expect(NodeSet::first(self.nodes() as u8), "few files failed")
    }

    fn most_files(&mut self) -> Result<(), Broken> {
        let most = self.world.files.len() / 2 + 1;
        let sick = *self.random.pick(&[Sick::Full, Sick::Unreadable, Sick::Hung, Sick::Wrong]);
        let (deaths, Profile { disk_timeout, heartbeat, .. }) = (self.deaths(), self.world.profile);
        self.make_sick(most, sick);
        self.run(disk_timeout.0 * 9 / 10 - 2 * heartbeat.0)?;
        if self.deaths() > deaths {
            return broken("stall", format!("{most} files are {sick:?}, and nodes end too early"));
        }
        self.expect(NodeSet::first(self.nodes() as u8), "most files have just failed")?;
        self.run(disk_timeout.0 / 5 + self.world.profile.wait().0 + 3 * heartbeat.0)?;
        self.expect(NodeSet::EMPTY, "most files failed")
    }

    /// Stalls files while all nodes hear each other.
    fn stall(&mut self) -> Result<(), Broken> {
        let Profile { disk_timeout, heartbeat, evict, .. } = self.world.profile;
        let before = (self.world.witness.last_epoch(), self.deaths());
        let opener = self.random.below(self.nodes() as u64) as usize;
        let opener = Some(opener).filter(|_| self.random.percent(50));
        let (for_ns, percent) =
            (self.random.below(disk_timeout.0 * 9 / 10 - 2 * heartbeat.0), *self.random.pick(&[40, 100]));
        for file in 0..self.world.files.len() {
            if self.random.percent(percent) {
                self.world.stall(opener, file, for_ns);
            }
        }
        self.run(for_ns + 2 * evict.0)?;
        match (self.world.witness.last_epoch(), self.deaths()) == before {
            true => self.expect(NodeSet::first(self.nodes() as u8), "files stalled"),
            false => broken("stall", format!("files stalled for {for_ns} ns, and the view changed")),
        }
    }

    fn make_sick(&mut self, many: usize, sick: Sick) {
        let first = self.random.below(self.world.files.len() as u64) as usize;
        for number in first..first + many {
            let count = self.world.files.len();
            self.world.files[number % count].sick = Some(sick);
        }
    }

    fn power(&mut self) -> Result<(), Broken> {
        let Profile { heartbeat, evict, .. } = self.world.profile;
        let what_comes = |all: &Self| (all.world.witness.last_epoch(), all.deaths(), all.world.set_aside);
        let before = what_comes(self);
        if self.random.percent(20) {
            // None of the reports in these heartbeats needs to have been durable.
            self.run(MAX_UNDURABLE_REPORTS * heartbeat.0 / self.world.files.len() as u64)?;
        }
        for _ in 0..self.random.between(1, 5) {
            let one = self.random.below(self.world.files.len() as u64) as usize;
            // They may share one disk.
            let is_all = self.random.percent(30);
            let files = self.world.files.iter_mut().enumerate();
            files.filter(|(file, _)| is_all || *file == one).for_each(|(_, file)| file.lose_power());
            // A turn that loses its write fails, and the next turn only reads.
            let after = self.random.between(3 * heartbeat.0, evict.0);
            self.run(after)?;
        }
        self.run(2 * evict.0)?;
        match what_comes(self) == before {
            true => Ok(()),
            false => broken(
                "side",
                format!(
                    "a power failure of files changed the view to {:?} from {before:?}",
                    what_comes(self)
                ),
            ),
        }
    }

    fn old_copy(&mut self) -> Result<(), Broken> {
        let file = self.random.below(self.world.files.len() as u64) as usize;
        // A copy is older only after another view.
        self.requested(ConfigChange::AddNode(OTHER))?
            .map_err(|refused| Broken::general("side", refused.to_string()))?;
        self.run(3 * self.world.profile.heartbeat.0)?;
        let (id, deaths) = (self.world.files[file].name.file, self.deaths());
        let before = self.in_one_view().and_then(|view| view.file(id)).copied();
        let unseen = self.world.sabotage == Some(Sabotage::UnseenCopy);
        self.world.files[file].restore(unseen);
        self.run(3 * self.world.profile.evict.0)?;
        let after = self.in_one_view().and_then(|view| view.file(id)).copied();
        let is_back = matches!((before, after), (Some(before), Some(after)) if after.since > before.since);
        if !is_back || self.deaths() > deaths {
            return broken("old copy", format!("file {file} was {before:?} and is {after:?}"));
        }
        self.requested(ConfigChange::RemoveNode(OTHER))?
            .map_err(|refused| Broken::general("side", refused.to_string()))
    }

    fn leave(&mut self) -> Result<(), Broken> {
        let (epoch, deaths) = (self.world.witness.last_epoch(), self.deaths());
        let mut expected = NodeSet::first(self.nodes() as u8);
        let all = self.random.percent(20);
        for _ in 0..if all { self.nodes() } else { 1 } {
            let node = self.random.below(self.nodes() as u64) as usize;
            if expected.remove(NodeId(node as u8)) {
                self.world.config_change(node, ConfigChange::Leave)?;
            }
        }
        // A node that hosts a file takes it along. Without a majority all nodes leave together.
        if !self.has_files(expected) {
            expected = NodeSet::EMPTY;
        }
        self.run(30 * self.world.profile.heartbeat.0)?;
        if self.deaths() > deaths || !expected.is_empty() && self.world.witness.last_epoch() == epoch {
            return broken("side", "a node left, and not in peace".into());
        }
        if expected.is_empty() {
            return self.expect(expected, "all nodes left");
        }
        self.expect(expected, "a node left")
    }

    /// Returns true if a majority of the files is served by these nodes or by no node.
    fn has_files(&self, nodes: NodeSet) -> bool {
        let theirs = self.world.files.iter().filter(|file| file.host.is_none_or(|host| nodes.contains(host)));
        2 * theirs.count() > self.world.files.len()
    }

    fn other_files(&mut self) -> Result<(), Broken> {
        let count = self.world.files.len();
        let number = self.random.below(count as u64) as usize;
        let (id, host) = (self.world.files[number].name.file, self.world.files[number].host);
        // Until each file has answered again.
        self.run(self.world.profile.lease.0)?;
        let answer = self.requested(ConfigChange::RemoveFile(id))?;
        if count == 1 {
            return match answer {
                Err(ConfigChangeRefusal::LastFile) => Ok(()),
                other => broken("side", format!("the last file: {other:?}")),
            };
        }
        let again = self.requested(ConfigChange::AddFile(id, host))?;
        match (answer, again) {
            (Ok(()), Ok(())) => Ok(()),
            other => broken("side", format!("file {number} out and in: {other:?}")),
        }
    }

    fn other_nodes(&mut self) -> Result<(), Broken> {
        let node = NodeId(self.random.between(1, self.nodes() as u64 - 1) as u8);
        if self.random.percent(50) {
            return self.out_and_in(node);
        }
        let answer = self.requested(ConfigChange::RemoveNode(node))?;
        self.run(self.settled())?;
        let mut expected = NodeSet::first(self.nodes() as u8);
        expected.remove(node);
        self.expect(expected, "a node was removed")?;
        let again = self.requested(ConfigChange::AddNode(node))?;
        match (answer, again) {
            (Ok(()), Ok(())) => Ok(()),
            other => broken("side", format!("{node} out and in: {other:?}")),
        }
    }

    /// Removes and adds a node before its process notices; it must not count as a member again.
    fn out_and_in(&mut self, node: NodeId) -> Result<(), Broken> {
        let deaths = self.world.nodes[node.index()].deaths;
        let pause = self.world.profile.lease.0 * 7 / 10;
        let resumed = self.now() + pause;
        self.world.pause(node.index(), pause);
        // Messages of the others are lost meanwhile.
        self.world.cut.iter_mut().for_each(|to| to[node.index()] = true);
        let answers =
            (self.requested(ConfigChange::RemoveNode(node))?, self.requested(ConfigChange::AddNode(node))?);
        if answers != (Ok(()), Ok(())) {
            return broken("side", format!("{node} out and in: {answers:?}"));
        }
        self.run(resumed.saturating_sub(self.now()))?;
        self.world.cut.iter_mut().for_each(|to| to[node.index()] = false);
        self.run(self.settled())?;
        match self.world.nodes[node.index()].deaths > deaths {
            true => Ok(()),
            false => broken("evicted", format!("{node} continues in the incarnation that was removed")),
        }
    }

    /// Requests a config change at node 0 and returns its answer.
    fn requested(&mut self, config_change: ConfigChange) -> Result<Result<(), ConfigChangeRefusal>, Broken> {
        self.world.nodes[0].answers.clear();
        self.world.config_change(0, config_change)?;
        for _ in 0..40 {
            if let Some((_, answer)) = self.world.nodes[0].answers.pop() {
                return Ok(answer);
            }
            self.run(self.world.profile.heartbeat.0)?;
        }
        broken("ends", format!("{config_change:?} is not answered"))
    }
}

fn pairs(nodes: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..nodes).flat_map(move |a| (0..nodes).filter(move |b| *b != a).map(move |b| (a, b)))
}
