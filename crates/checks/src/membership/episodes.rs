//! What goes wrong, and what must come of it.

use std::sync::Arc;

use plexus_base::{NodeId, NodeSet};
use plexus_membership::protocol::{ConfigChange, ConfigChangeRefusal, MAX_UNDURABLE_REPORTS, Profile, View};
use plexus_sim::Random;

use super::{
    Membership, Sabotage,
    files::{File, Sick},
    witness::broken,
    world::{Ev, World},
};
use crate::{failure::Broken, harness::Simulation};

/// All is healed: in so many times [`Profile::evict`] all nodes must be in one view.
const ONE_VIEW_AFTER: u64 = 12;

/// A node that is never started.
const OTHER: NodeId = NodeId(15);

/// What happens to a cluster of which all nodes are in one view.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Episode {
    /// Everything at once: it is only looked at what holds always.
    Storm,
    /// Paths are cut: who goes on is who should.
    Cut,
    /// Nodes lose their links with each other, and listen to that incarnation no more: one view without one of the two is decided, and no second.
    Lost,
    /// A process or several end.
    Crash,
    /// A process stops for less than its lease: nothing comes of it.
    ShortPause,
    /// And for longer: the others go on, and it does nothing any more.
    LongPause,
    /// Fewer than half of the files do not answer: all go on.
    FewFiles,
    /// More than half do not: all stop.
    MostFiles,
    /// Files lose power while nodes write to them: nothing comes of it.
    Power,
    /// An older copy of a file is put back: a view without it is decided, and one with it again.
    OldCopy,
    /// A node leaves.
    Leave,
    /// A file is taken out and in.
    Files,
    /// A node is taken out and in.
    Nodes,
}

impl Episode {
    const ALL: [Self; 15] = [
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
        Self::Power,
        Self::Leave,
        Self::Files,
        Self::Nodes,
    ];

    pub(super) fn draw(world: &World, random: &mut Random) -> Self {
        // Of one file, or two, none can be older than a majority.
        if world.files.len() > 2 && random.percent(10) {
            return Self::OldCopy;
        }
        *random.pick(&Self::ALL)
    }
}

impl Membership {
    /// Starts everybody.
    pub(super) fn boot(&mut self) -> Result<(), Broken> {
        for node in 0..self.nodes() {
            let after = self.random.below(self.world.profile.evict.0);
            self.world.engine.schedule(after, None, Ev::Start(node));
        }
        self.run(self.world.profile.evict.0)?;
        self.one_view()
    }

    /// All nodes stay in the view that they are in.
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
        self.world.engine.schedule(for_ns, None, Ev::Next);
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
                world.engine.schedule(after, None, Ev::Start(node));
            }
        }
        if world.sabotage == Some(Sabotage::NeverHealed) {
            return;
        }
        world.cut.iter_mut().flatten().for_each(|cut| *cut = false);
        world.files.iter_mut().for_each(|file| file.sick = None);
        world.loss_permille = 0;
    }

    /// Waits until all nodes act in one view, with all files, for so long that nothing begun before comes of it.
    fn one_view(&mut self) -> Result<(), Broken> {
        let Profile { evict, heartbeat, .. } = self.world.profile;
        let (began, timeout) = (self.now(), ONE_VIEW_AFTER * evict.0);
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

    /// After this who is gone is put out, and who is to stop has stopped.
    fn settled(&self) -> u64 {
        let profile = self.world.profile;
        let slack = 6 * profile.heartbeat.0;
        (profile.evict.0 + profile.settle().0 + profile.wait().0 + slack) * 102 / 100
    }

    fn expect(&self, expected: NodeSet, what: &str) -> Result<(), Broken> {
        let acting = self.acting();
        let apart = self.world.witness.acting(self.now()).any(|(_, view)| view.members() != expected);
        if acting != expected || apart {
            let views: Vec<_> =
                self.world.witness.acting(self.now()).map(|(node, view)| (node, view.members())).collect();
            return broken("side", format!("{what}: {expected:?} should act, and {views:?} do"));
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
            match self.random.below(11) {
                0 | 1 => {
                    self.world.crash(node);
                    let after = self.random.between(profile.kill_margin.0, 2 * profile.evict.0);
                    self.world.engine.schedule(after, None, Ev::Start(node));
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
                _ => self.world.loss_permille = *self.random.pick(&[0, 50, 300]),
            }
            let after = *self.random.pick(&[profile.heartbeat.0 / 10, profile.heartbeat.0, profile.evict.0]);
            let after = self.random.below(after);
            self.run(after)?;
        }
        Ok(())
    }

    /// Everything loses power at one time, and starts again.
    fn outage(&mut self) {
        let profile = self.world.profile;
        for node in 0..self.nodes() {
            self.world.crash(node);
            let after = self.random.between(profile.kill_margin.0, profile.evict.0);
            self.world.engine.schedule(after, None, Ev::Start(node));
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
            // In two.
            0 => {
                let left = self.random.between(1, (1 << nodes) - 2);
                for (a, b) in pairs(nodes).filter(|(a, b)| (left >> a ^ left >> b) & 1 == 1) {
                    self.world.cut[a][b] = true;
                }
            }
            // Here and there, both ways.
            1 => {
                for (a, b) in pairs(nodes).filter(|(a, b)| a < b) {
                    let cut = self.random.percent(40);
                    (self.world.cut[a][b], self.world.cut[b][a]) = (cut, cut);
                }
            }
            // Here and there, one way.
            _ => {
                for (a, b) in pairs(nodes) {
                    self.world.cut[a][b] = self.random.percent(30);
                }
            }
        }
        let expected = self.side();
        // Who is heard and hears nobody is silent only when its process has ended.
        self.run(self.settled() + self.world.profile.evict.0)?;
        // Files that only those serve who do not go on are gone with them for a while.
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
        // Who is put out would come back in its next incarnation, which has links again.
        for node in 0..self.nodes() {
            self.world.nodes[node].down = !expected.contains(NodeId(node as u8));
        }
        let Profile { heartbeat, .. } = self.world.profile;
        // Suspected for three heartbeats, settled for three, proposed and decided, and the lease waited out.
        self.run((9 * heartbeat.0 + self.world.profile.wait().0) * 102 / 100)?;
        if !self.has_files(expected) {
            return Ok(());
        }
        self.expect(expected, "links were lost")?;
        match self.world.witness.last_epoch() - epoch {
            1 => Ok(()),
            views => broken("side", format!("{views} views came of links that were lost at one time")),
        }
    }

    /// The largest set of nodes that all see each other and of which each reaches a majority of the files; of equals the one with the
    /// lowest node: found by a look at every set.
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
        // Of equals the lowest node's bit is the highest when they are turned around.
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
        // Where it is proved, nobody waits for a silence or a lease.
        let proved = 5 * self.world.profile.heartbeat.0;
        self.run(if self.world.proofs && !expected.is_empty() { proved } else { self.settled() })?;
        self.expect(expected, "processes ended")
    }

    fn short_pause(&mut self) -> Result<(), Broken> {
        let (epoch, deaths) = (self.world.witness.last_epoch(), self.deaths());
        let node = self.random.below(self.nodes() as u64) as usize;
        let pause = self.random.below(self.world.profile.lease.0 / 2);
        self.world.pause(node, pause);
        self.run(2 * self.world.profile.evict.0)?;
        if (epoch, deaths) != (self.world.witness.last_epoch(), self.deaths()) {
            return broken("side", format!("node {node} stopped for {pause} ns only, and was put out"));
        }
        Ok(())
    }

    fn long_pause(&mut self) -> Result<(), Broken> {
        let node = self.random.below(self.nodes() as u64) as usize;
        let deaths = self.world.nodes[node].deaths;
        let mut expected = NodeSet::first(self.nodes() as u8);
        expected.remove(NodeId(node as u8));
        // What a stopped process does is over with its lease: its file is served by nobody.
        self.world.pause(node, self.settled() + self.world.profile.evict.0);
        self.run(self.settled())?;
        self.expect(expected, "a process stopped")?;
        self.run(self.world.profile.evict.0 * 102 / 100 + self.world.profile.heartbeat.0)?;
        match self.world.nodes[node].deaths > deaths {
            true => Ok(()),
            false => broken("evicted", format!("node {node} goes on after it was put out")),
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
        self.make_sick(most, sick);
        self.run((self.world.profile.wait().0 + 3 * self.world.profile.heartbeat.0) * 102 / 100)?;
        self.expect(NodeSet::EMPTY, "most files failed")
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
            // Of so many heartbeats none need have been durable.
            self.run(MAX_UNDURABLE_REPORTS * heartbeat.0 / self.world.files.len() as u64)?;
        }
        for _ in 0..self.random.between(1, 5) {
            let one = self.random.below(self.world.files.len() as u64) as usize;
            // They may stand on one disk.
            let is_all = self.random.percent(30);
            let files = self.world.files.iter_mut().enumerate();
            files.filter(|(file, _)| is_all || *file == one).for_each(|(_, file)| file.lose_power());
            // A turn that loses what it wrote fails, and the one after it only looks.
            let after = self.random.between(3 * heartbeat.0, evict.0);
            self.run(after)?;
        }
        self.run(2 * evict.0)?;
        match what_comes(self) == before {
            true => Ok(()),
            false => broken(
                "side",
                format!("of power that files lost came {:?} after {before:?}", what_comes(self)),
            ),
        }
    }

    fn old_copy(&mut self) -> Result<(), Broken> {
        let file = self.random.below(self.world.files.len() as u64) as usize;
        // Nothing of a copy is older until there was another view.
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
        let (sound, mut all_clean) = (self.in_one_view().map(|view| view.sound), true);
        for _ in 0..if all { self.nodes() } else { 1 } {
            let node = self.random.below(self.nodes() as u64) as usize;
            if expected.remove(NodeId(node as u8)) {
                // Now and then there is no time for that.
                match self.world.nodes[node].incarnation % 4 {
                    0 => all_clean = false,
                    _ => self.world.hand_back(node)?,
                }
                self.world.config_change(node, ConfigChange::Leave)?;
            }
        }
        // Who hosts a file takes it along.
        if expected.iter().any(|node| !self.side().contains(node)) || expected.is_empty() {
            return self.run(3 * self.world.profile.evict.0);
        }
        let left = self.has_files(expected);
        self.run(20 * self.world.profile.heartbeat.0)?;
        if self.deaths() > deaths && left || self.world.witness.last_epoch() == epoch {
            return broken("side", "a node left, and not in peace".into());
        }
        if !left {
            return Ok(());
        }
        self.expect(expected, "a node left")?;
        let after = self.in_one_view().map(|view| view.sound);
        if all_clean && sound.is_some() && after != sound {
            return broken(
                "sound",
                format!("who left had handed back, and views are sound since {after:?}, not {sound:?}"),
            );
        }
        Ok(())
    }

    /// Whether a majority of the files is served by these nodes or by none.
    fn has_files(&self, nodes: NodeSet) -> bool {
        let theirs = self.world.files.iter().filter(|file| file.host.is_none_or(|host| nodes.contains(host)));
        2 * theirs.count() > self.world.files.len()
    }

    fn other_files(&mut self) -> Result<(), Broken> {
        let count = self.world.files.len();
        let number = self.random.below(count as u64) as usize;
        let (id, host) = (self.world.files[number].name.file, self.world.files[number].host);
        // Until each has answered again.
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

    /// A node is taken out and in before its process notices, and would be taken for a member again.
    fn out_and_in(&mut self, node: NodeId) -> Result<(), Broken> {
        let deaths = self.world.nodes[node.index()].deaths;
        let pause = self.world.profile.lease.0 * 7 / 10;
        let resumed = self.now() + pause;
        self.world.pause(node.index(), pause);
        // What others say meanwhile is lost.
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
            false => broken("evicted", format!("{node} goes on in the incarnation in which it was removed")),
        }
    }

    /// What node 0 answers.
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
