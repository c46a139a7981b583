//! Nodes of a cluster as processes, each on a host of its own or all on one.
//!
//! Everything ends with [`Nodes`], however this process ends: nodes by their lifeline, namespaces
//! with the process.

use std::{
    fs::{self, File},
    io,
    os::unix::fs::symlink,
    path::PathBuf,
    process::{Child, Command, ExitStatus, Stdio},
    thread,
    time::{Duration, Instant},
};

use plexus_admin::{
    config::Config,
    control::{Control, ControlError},
    layout::ClusterDir,
};
use plexus_disks::{
    GroupId,
    mirror::{NewDisk, create_disk},
};
use plexus_namespaces::{Direction, Lan, device, need};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;
use toml::Table;

use super::disks::{Disks, Wrong, moved};

/// The longest time for anything that nodes do by themselves.
pub const TIMEOUT: Duration = Duration::from_secs(60);

/// The longest time for an ordered end of a node: it may write blocks for a minute.
const ENDS_WITHIN: Duration = Duration::from_secs(90);

/// The longest time for a status answer of a node.
const ANSWERS_WITHIN: Duration = Duration::from_millis(500);

/// The interval at which a wait checks its condition.
const LOOK_EVERY: Duration = Duration::from_millis(1);

/// The interval at which a wait for the return of disks looks at them.
const DISKS_EVERY: Duration = Duration::from_millis(100);

/// The transactions after which all rows are cleaned of them: some seconds of work.
const CLEAN_AFTER: i64 = 4000;

/// The length of the redo streams on disks that can fail.
const REDO_MIB: i64 = 16;

/// The length of the chunks of mirrored disks.
pub const CHUNK_MIB: i64 = 64;

/// The port that nodes listen on.
const PORT: u16 = 7400;

/// The parameters of a cluster.
#[derive(Clone, Debug)]
pub struct Spec {
    /// The program `plexus`.
    pub program: PathBuf,
    /// The number of nodes.
    pub count: usize,
    /// The networks between their hosts; 0 puts all nodes on one host.
    pub networks: usize,
    /// The membership profile, where it can be chosen.
    pub profile: &'static str,
    /// Puts the blocks, the redo streams and the state files on disks that can fail, and writes
    /// changed blocks to disk after this many seconds. Each host serves a voting file.
    pub checkpoint_seconds: Option<u32>,
    /// Serves SQL, with a larger group.
    pub has_sql: bool,
    /// The copies of each block, each on a disk of another host; 1: all nodes open one disk.
    pub copies: usize,
}

impl Spec {
    /// Describes a cluster with one disk, which does not fail.
    pub fn new(program: PathBuf, count: usize, networks: usize, profile: &'static str) -> Self {
        Self { program, count, networks, profile, checkpoint_seconds: None, has_sql: false, copies: 1 }
    }
}

/// Disks under the data of a cluster that can fail.
pub struct DataDisks {
    /// The disk of the group, [`GROUP_DISK`], and the redo streams; or a disk of each node, with
    /// its name.
    pub data: Disks,
    /// The state files of the nodes.
    pub state: Disks,
}

/// The file name of the disk of the group.
pub const GROUP_DISK: &str = "1";

/// A cluster of node processes, as described in the module.
pub struct Nodes {
    spec: Spec,
    lan: Lan,
    nodes: Vec<Option<Child>>,
    /// The disks of the voting files, where FUSE is available.
    disks: Option<Disks>,
    /// The disks of the data, if they can fail.
    data: Option<DataDisks>,
    folder: TempDir,
}

impl Drop for Nodes {
    fn drop(&mut self) {
        for child in self.nodes.iter_mut().flatten() {
            // It has ended by itself unless an error occurred.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Nodes {
    /// Creates a cluster and starts all its nodes.
    ///
    /// # Errors
    /// A missing prerequisite, or the reason why the nodes do not start.
    pub fn start(spec: Spec) -> Result<Self, String> {
        // Faults of disks need no packet rules.
        let has_rules = spec.checkpoint_seconds.is_none();
        if has_rules {
            need(&[("nft", "nftables")])?;
        }
        let folder = tempfile::tempdir().map_err(|error| error.to_string())?;
        let hosts = if spec.networks == 0 { 1 } else { spec.count };
        let lan = Lan::new(hosts, spec.networks.max(1))?;
        let nodes = (0..spec.count).map(|_| None).collect();
        let mut cluster = Self { spec, lan, nodes, disks: None, data: None, folder };
        cluster.init()?;
        (0..hosts).filter(|_| has_rules).try_for_each(|host| cluster.lan.host(host).allow_rules())?;
        (0..cluster.count()).try_for_each(|node| cluster.up(node))?;
        cluster.agreed(&cluster.all(), 0)?;
        Ok(cluster)
    }

    fn init(&mut self) -> Result<(), String> {
        let mut init = Command::new(&self.spec.program);
        init.arg("init").arg(self.dir().root()).args(["--nodes", &self.spec.count.to_string()]);
        let size_mib = if self.spec.has_sql { "64" } else { "16" };
        init.args(["--size-mib", size_mib, "--cache-mib", "4", "--rails", "shm,tcp"]);
        init.args((!self.spec.has_sql).then_some("--no-sql"));
        let output = init.output().map_err(|error| format!("{}: {error}", self.spec.program.display()))?;
        if !output.status.success() {
            return Err(String::from_utf8_lossy(&output.stderr).trim().to_owned());
        }
        let path = self.dir().config();
        let text = fs::read_to_string(&path).map_err(|error| error.to_string())?;
        let mut config: Table = text.parse().map_err(|error| format!("cluster.toml: {error}"))?;
        let membership = config.get_mut("membership").and_then(|table| table.as_table_mut());
        let membership =
            membership.ok_or("cluster.toml has no [membership] whose profile could be chosen")?;
        membership.insert("profile".into(), self.spec.profile.into());
        let nodes = config.get_mut("node").and_then(|nodes| nodes.as_array_mut());
        for (index, node) in nodes.ok_or("cluster.toml has no nodes")?.iter_mut().enumerate() {
            let node = node.as_table_mut().ok_or("cluster.toml: a node is not a table")?;
            let host = self.host_of(index);
            let port = PORT + if self.spec.networks == 0 { index as u16 } else { 0 };
            let address = |network| format!("{}:{port}", self.lan.address(host, network));
            node.insert("host".into(), format!("h{host}").into());
            node.insert("address".into(), address(0).into());
            let more: Vec<toml::Value> =
                (1..self.spec.networks).map(|network| address(network).into()).collect();
            node.insert("addresses".into(), more.into());
        }
        if let Some(sql) = config.get_mut("sql").and_then(|table| table.as_table_mut()) {
            sql.insert("clean_after".into(), CLEAN_AFTER.into());
        }
        self.mount(&mut config)?;
        if let Some(seconds) = self.spec.checkpoint_seconds {
            self.serve_voting_files(&mut config);
            config.insert("checkpoint_seconds".into(), i64::from(seconds).into());
            config.insert("redo_mib".into(), REDO_MIB.into());
            let data = match self.spec.copies {
                1 => self.mount_group(),
                _ => self.mount_served(&mut config),
            };
            let data = data.and_then(|data| Ok(DataDisks { data, state: self.mount_state()? }));
            self.data = Some(data.map_err(|why| format!("no FUSE: {why}"))?);
        }
        fs::write(&path, config.to_string()).map_err(|error| error.to_string())?;
        self.create_served()
    }

    /// Gives each node a disk that can fail, in the place of the one for all.
    fn mount_served(&self, config: &mut Table) -> io::Result<Disks> {
        let data = Disks::mount_with([], true)?;
        let group = config.get_mut("group").and_then(|group| group.as_table_mut());
        let group = group.ok_or(io::ErrorKind::InvalidData)?;
        group.remove("disks");
        group.insert("redundancy".into(), format!("mirror{}", self.spec.copies).into());
        group.insert("chunk_mib".into(), CHUNK_MIB.into());
        // A chunk of blocks and one of each stream, and free slots.
        let slots = ((1 + self.spec.count) * self.spec.copies).div_ceil(self.spec.count) + 2;
        let disk = |node: usize| {
            let path = data.path(&Self::name(node)).display().to_string();
            let mut disk = Table::new();
            disk.insert("id".into(), format!("{:032x}", node + 1).into());
            disk.insert("node".into(), Self::name(node).into());
            disk.insert("path".into(), path.into());
            disk.insert("size_mib".into(), (slots as i64 * CHUNK_MIB).into());
            toml::Value::Table(disk)
        };
        config.insert("disk".into(), (0..self.spec.count).map(disk).collect::<Vec<_>>().into());
        Ok(data)
    }

    /// Creates the disks that the nodes serve.
    fn create_served(&self) -> Result<(), String> {
        let config = Config::load(&self.dir()).map_err(|error| error.to_string())?;
        for (number, disk) in (0..).zip(&config.served_disks) {
            let new = NewDisk {
                group: GroupId(config.id.0),
                id: disk.id,
                number,
                block_size: config.block_size,
                chunk_mib: config.chunk_mib,
                slots: disk.slots(config.chunk_mib) as u32,
            };
            create_disk(&disk.path, &new).map_err(|error| error.to_string())?;
        }
        Ok(())
    }

    /// Lets each host serve a voting file, if there are several.
    fn serve_voting_files(&self, config: &mut Table) {
        let files = config.get_mut("voting").and_then(|files| files.as_array_mut());
        let files = files.into_iter().flatten().filter_map(toml::Value::as_table_mut);
        for (node, file) in files.take(self.lan.hosts()).enumerate().filter(|_| self.lan.hosts() > 1) {
            file.insert("node".into(), Self::name(node).into());
        }
    }

    /// Moves the voting files onto disks that can fail.
    fn mount(&mut self, config: &mut Table) -> Result<(), String> {
        let Some(files) = config.get_mut("voting").and_then(|files| files.as_array_mut()) else {
            return Ok(());
        };
        let mut paths: Vec<&mut toml::Value> =
            files.iter_mut().filter_map(|file| file.get_mut("path")).collect();
        let place = |path: &&mut toml::Value| self.dir().root().join(path.as_str().unwrap_or_default());
        match moved(&paths.iter().map(place).collect::<Vec<_>>()) {
            Ok((disks, places)) => {
                for (path, place) in paths.iter_mut().zip(places) {
                    **path = place.display().to_string().into();
                }
                self.disks = Some(disks);
            }
            Err(why) => eprintln!("voting files do not fail in this run: no FUSE: {why}"),
        }
        Ok(())
    }

    /// Moves the disk of the group and the redo streams onto disks that can fail.
    fn mount_group(&self) -> io::Result<Disks> {
        let disks = self.dir().disks();
        let group = fs::read_dir(&disks)?.next().ok_or(io::ErrorKind::NotFound)??.path();
        let data = Disks::mount_with([(GROUP_DISK.to_owned(), fs::read(&group)?)], true)?;
        fs::remove_file(&group)?;
        symlink(data.path(GROUP_DISK), &group)?;
        symlink(data.folder(), disks.join("redo"))?;
        Ok(data)
    }

    /// Moves the state files onto disks that can fail.
    fn mount_state(&self) -> io::Result<Disks> {
        let dir = self.dir();
        fs::create_dir_all(dir.state())?;
        let mut files = Vec::new();
        for entry in fs::read_dir(dir.state())? {
            let entry = entry?;
            files.push((entry.file_name().to_string_lossy().into_owned(), fs::read(entry.path())?));
        }
        let state = Disks::mount(files)?;
        fs::remove_dir_all(dir.state())?;
        symlink(state.folder(), dir.state())?;
        Ok(state)
    }

    /// Returns the number of copies of each block, as in [`Spec::copies`].
    pub fn copies(&self) -> usize {
        self.spec.copies
    }

    /// Waits until all disks have everything, then compares all copies at a node. Returns the
    /// copies of blocks that it has repaired.
    ///
    /// # Errors
    /// A disk does not return in time, or copies differ and cannot be repaired.
    pub fn compare_copies(&self, node: usize) -> Result<u64, String> {
        let call = |command: &str| -> Result<Value, ControlError> {
            let mut control = Control::connect(&self.dir(), &Self::name(node))?;
            control.set_timeout(TIMEOUT)?;
            control.call(command, Value::Null, |_| ())
        };
        let start = Instant::now();
        loop {
            let disks = call("disks").map_err(|error| error.to_string())?;
            let is_current = |disk: &Value| disk["state"] == "current";
            match disks["disks"].as_array() {
                Some(all) if all.len() == self.spec.count && all.iter().all(is_current) => break,
                _ if start.elapsed() > TIMEOUT => return Err(format!("a disk does not return: {disks}")),
                _ => thread::sleep(DISKS_EVERY),
            }
        }
        let found = call("disk.scrub").map_err(|error| format!("scrub: {error}"))?;
        let count = |name: &str| found[name].as_u64().unwrap_or(u64::MAX);
        let faults = ["lost", "differing", "unreadable", "not_compared"].map(count);
        match faults == [0; 4] && count("units") == count("all") {
            true => Ok(count("repaired")),
            false => Err(format!("copies differ: {found}")),
        }
    }

    /// Returns the disks of the data, if they can fail.
    pub fn data(&self) -> Option<&DataDisks> {
        self.data.as_ref()
    }

    /// Kills all nodes, and keeps the folder with their logs and a copy of the data when this is
    /// dropped. Returns its path.
    pub fn keep(&mut self) -> PathBuf {
        self.data.iter().for_each(|disks| disks.data.make_all(Wrong::Nothing));
        self.all().into_iter().for_each(|node| self.kill(node));
        for name in self.data.iter().flat_map(|disks| disks.data.names()) {
            // What cannot be copied is missing in the folder, and the failure is reported anyway.
            let bytes = self.data.as_ref().map(|disks| disks.data.copy(&name)).unwrap_or_default();
            let _ = fs::write(self.folder.path().join(format!("disk.{name}")), bytes);
        }
        self.folder.disable_cleanup(true);
        self.folder.path().into()
    }

    /// Returns the disks under the voting files, if they can fail.
    pub fn disks(&self) -> Option<&Disks> {
        self.disks.as_ref()
    }

    fn host_of(&self, node: usize) -> usize {
        if self.spec.networks == 0 { 0 } else { node }
    }

    /// Returns the number of nodes.
    pub fn count(&self) -> usize {
        self.spec.count
    }

    /// Returns the number of hosts.
    pub fn hosts(&self) -> usize {
        self.lan.hosts()
    }

    /// Returns the numbers of all nodes.
    pub fn all(&self) -> Vec<usize> {
        (0..self.count()).collect()
    }

    /// Returns the directory of the cluster.
    pub fn dir(&self) -> ClusterDir {
        ClusterDir::new(self.folder.path().join("cluster"))
    }

    /// Returns the name of a node.
    pub fn name(node: usize) -> String {
        format!("n{}", node + 1)
    }

    /// Returns the hosts and their networks.
    pub fn lan(&self) -> &Lan {
        &self.lan
    }

    /// Starts a node that is not running.
    ///
    /// # Errors
    /// The error of the system.
    pub fn up(&mut self, node: usize) -> Result<(), String> {
        let fails = |error: std::io::Error| format!("{}: {error}", Self::name(node));
        let log = self.folder.path().join(format!("{}.said", Self::name(node)));
        let log = File::options().create(true).append(true).open(log).map_err(fails)?;
        let mut command = Command::new(&self.spec.program);
        command.arg("node").arg(Self::name(node)).arg("-C").arg(self.dir().root()).args(["--lifeline", "0"]);
        command.arg("--network-namespace").arg(self.lan.host(self.host_of(node)).path());
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(log);
        self.nodes[node] = Some(command.spawn().map_err(fails)?);
        Ok(())
    }

    /// Returns true if the process of a node is running. Forgets a process that has ended.
    ///
    /// # Errors
    /// The exit status of a process that has ended.
    pub fn runs(&mut self, node: usize) -> Result<bool, ExitStatus> {
        let Some(child) = &mut self.nodes[node] else { return Ok(false) };
        match child.try_wait() {
            Ok(Some(status)) => {
                self.nodes[node] = None;
                Err(status)
            }
            _ => Ok(true),
        }
    }

    /// Sends a signal to a node, if it is running.
    pub fn signal(&self, node: usize, signal: Signal) {
        if let Some(child) = &self.nodes[node] {
            // It may have ended just now.
            let _ = kill_process(Pid::from_child(child), signal);
        }
    }

    /// Kills a node and waits for its end.
    pub fn kill(&mut self, node: usize) {
        self.signal(node, Signal::KILL);
        if let Some(mut child) = self.nodes[node].take() {
            let _ = child.wait();
        }
    }

    /// Tells a node to end and waits for it; returns the exit status if it was running.
    ///
    /// # Errors
    /// It does not end.
    pub fn leave(&mut self, node: usize) -> Result<Option<ExitStatus>, String> {
        self.signal(node, Signal::TERM);
        self.ended(node)
    }

    /// Waits for the end of a node that was told to end; returns the exit status if it was running.
    ///
    /// # Errors
    /// It does not end.
    pub fn ended(&mut self, node: usize) -> Result<Option<ExitStatus>, String> {
        let start = Instant::now();
        loop {
            match self.runs(node) {
                Ok(false) => return Ok(None),
                Err(status) => return Ok(Some(status)),
                Ok(true) if start.elapsed() > ENDS_WITHIN => {
                    return Err(format!("{} does not end\n{}", Self::name(node), self.last_said(node)));
                }
                Ok(true) => thread::sleep(LOOK_EVERY),
            }
        }
    }

    /// Returns the log of a node.
    pub fn said(&self, node: usize) -> String {
        let log = self.folder.path().join(format!("{}.said", Self::name(node)));
        fs::read(log).map_or_else(|_| String::new(), |bytes| String::from_utf8_lossy(&bytes).into_owned())
    }

    /// Returns the last lines of the log of a node.
    pub fn last_said(&self, node: usize) -> String {
        last_lines(&self.said(node))
    }

    /// Returns the epoch in which all these nodes act now, if the view has exactly them as members
    /// and is newer than `after`.
    ///
    /// # Errors
    /// The view of each node.
    pub fn in_one_view(&self, nodes: &[usize], after: u64) -> Result<u64, Vec<Seen>> {
        let names: Vec<String> = nodes.iter().map(|node| Self::name(*node)).collect();
        let dir = self.dir();
        let seen: Vec<Seen> = names.iter().map(|name| view(&status(&dir, name)?)).collect();
        match one_view(&seen, &names).filter(|epoch| *epoch > after) {
            Some(epoch) => Ok(epoch),
            None => Err(seen),
        }
    }

    /// Waits for such a view.
    ///
    /// # Errors
    /// There is none in time, or a node has ended.
    pub fn agreed(&mut self, nodes: &[usize], after: u64) -> Result<u64, String> {
        let start = Instant::now();
        loop {
            let seen = match self.in_one_view(nodes, after) {
                Ok(epoch) => return Ok(epoch),
                Err(seen) => seen,
            };
            for node in nodes {
                if let Err(status) = self.runs(*node) {
                    let name = Self::name(*node);
                    return Err(format!("{name} has ended: {status}\n{}", self.last_said(*node)));
                }
            }
            if start.elapsed() > TIMEOUT {
                let names: Vec<String> = nodes.iter().map(|node| Self::name(*node)).collect();
                return Err(format!("{names:?} are not in one view newer than {after}: {seen:?}"));
            }
            thread::sleep(LOOK_EVERY);
        }
    }

    /// Drops the packets between a host and `others`, in all networks.
    ///
    /// # Errors
    /// The error of the system.
    pub fn part(&self, host: usize, others: &[usize]) -> Result<(), String> {
        for (other, network) in
            others.iter().flat_map(|other| (0..self.lan.networks()).map(move |net| (*other, net)))
        {
            let address = self.lan.address(other, network);
            self.lan.host(host).rule(Direction::Out, &format!("ip daddr {address} drop"))?;
            self.lan.host(host).rule(Direction::In, &format!("ip saddr {address} drop"))?;
        }
        Ok(())
    }

    /// Drops the packets that a host sends, in all networks; it still receives.
    ///
    /// # Errors
    /// The error of the system.
    pub fn mute(&self, host: usize) -> Result<(), String> {
        (0..self.lan.networks()).try_for_each(|network| {
            self.lan.host(host).rule(Direction::Out, &format!("oifname {} drop", device(network)))
        })
    }

    /// Removes every fault of the network.
    ///
    /// # Errors
    /// The error of the system.
    pub fn heal(&self) -> Result<(), String> {
        for host in 0..self.lan.hosts() {
            self.lan.host(host).clear_rules()?;
            (0..self.lan.networks()).try_for_each(|network| self.lan.plug(host, network))?;
        }
        Ok(())
    }
}

/// The epoch and members of the view in which a node acts, or `None` without an answer.
pub type Seen = Option<(u64, Vec<String>)>;

/// Returns the epoch of the view if all nodes have the same one with exactly these members.
fn one_view(seen: &[Seen], members: &[String]) -> Option<u64> {
    let (epoch, _) = seen.first()?.as_ref()?;
    let same = |one: &Seen| one.as_ref().is_some_and(|(its, who)| its == epoch && who == members);
    seen.iter().all(same).then_some(*epoch)
}

/// Returns the status of a node, if it answers.
pub fn status(dir: &ClusterDir, name: &str) -> Option<Value> {
    let ask = || -> Result<Value, ControlError> {
        let mut control = Control::connect_within(dir, name, ANSWERS_WITHIN)?;
        control.set_timeout(ANSWERS_WITHIN)?;
        control.call("status", Value::Null, |_| ())
    };
    ask().ok()
}

/// Returns the epoch and the members of the view in which a node acts, from its status.
pub fn view(status: &Value) -> Seen {
    let members = status["members"].as_array()?.iter().filter_map(|name| Some(name.as_str()?.to_owned()));
    let mut members: Vec<String> = members.collect();
    members.sort();
    Some((status["epoch"].as_u64().filter(|epoch| *epoch > 0)?, members))
}

/// Returns the last lines of a text.
fn last_lines(text: &str) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(8)..].join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_view_counts_only_when_it_was_opened() {
        let status = |epoch: u64| json!({ "epoch": epoch, "members": ["n2", "n1"] });
        assert_eq!(view(&status(7)), Some((7, vec!["n1".into(), "n2".into()])));
        assert_eq!(view(&status(0)), None);
        assert_eq!(view(&json!({})), None);
        assert_eq!(last_lines("a\nb"), "a\nb");
    }

    #[test]
    fn one_view_has_exactly_the_expected_members() {
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let (two, three) = (names(&["n1", "n2"]), names(&["n1", "n2", "n3"]));
        let seen = |epoch, members: &Vec<String>| Some((epoch, members.clone()));
        assert_eq!(one_view(&[seen(4, &two), seen(4, &two)], &two), Some(4));
        assert_eq!(one_view(&[seen(4, &two), seen(5, &two)], &two), None);
        assert_eq!(one_view(&[seen(4, &two), None], &two), None);
        assert_eq!(one_view(&[seen(4, &three), seen(4, &three)], &two), None);
        assert_eq!(one_view(&[], &[]), None);
    }
}
