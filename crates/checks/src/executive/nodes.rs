//! Nodes of a cluster as processes on hosts of their own, or all on one.
//!
//! Everything ends with the [`Nodes`], in whatever way this process ends: nodes by their lifeline, namespaces with it.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    thread,
    time::{Duration, Instant},
};

use plexus_namespaces::{Lan, device, need};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;
use toml::Table;

use super::control::{Control, Said};

/// How long nodes may take to do what they do by themselves.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// How long a node may take to end that is told to: it may write for a minute.
const ENDS_WITHIN: Duration = Duration::from_secs(90);

/// How long a node may take to say how it is.
const ANSWERS_WITHIN: Duration = Duration::from_millis(500);

/// How often a wait looks.
const LOOK_EVERY: Duration = Duration::from_millis(1);

/// Where the nodes listen.
const PORT: u16 = 7400;

/// What nodes are wanted.
#[derive(Clone, Debug)]
pub struct Spec {
    /// The program.
    pub program: PathBuf,
    /// How many.
    pub count: usize,
    /// Networks between their hosts; none: they are all on one host.
    pub networks: usize,
    /// How fast a lost node is noticed, where that can be chosen.
    pub profile: &'static str,
}

/// See the module.
pub struct Nodes {
    spec: Spec,
    lan: Lan,
    nodes: Vec<Option<Child>>,
    /// The voting files, where there is FUSE.
    #[cfg(feature = "fuse")]
    disks: Option<super::disks::Disks>,
    folder: TempDir,
}

impl Drop for Nodes {
    fn drop(&mut self) {
        for child in self.nodes.iter_mut().flatten() {
            // It has ended by itself unless something failed.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Nodes {
    /// Makes a cluster and starts all its nodes.
    ///
    /// # Errors
    /// What is missing, or why the nodes do not start.
    pub fn start(spec: Spec) -> Result<Self, String> {
        need(&[("nft", "nftables")])?;
        let folder = tempfile::tempdir().map_err(|error| error.to_string())?;
        let hosts = if spec.networks == 0 { 1 } else { spec.count };
        let lan = Lan::new(hosts, spec.networks.max(1))?;
        let nodes = (0..spec.count).map(|_| None).collect();
        let mut cluster = Self {
            spec,
            lan,
            nodes,
            #[cfg(feature = "fuse")]
            disks: None,
            folder,
        };
        cluster.init()?;
        for host in 0..hosts {
            for line in [
                "nft add table inet faults",
                "nft add chain inet faults out { type filter hook output priority 0 ; }",
                "nft add chain inet faults in { type filter hook input priority 0 ; }",
            ] {
                cluster.lan.host(host).run(line)?;
            }
        }
        (0..cluster.count()).try_for_each(|node| cluster.up(node))?;
        cluster.agreed(&(0..cluster.count()).collect::<Vec<_>>(), 0)?;
        Ok(cluster)
    }

    fn init(&mut self) -> Result<(), String> {
        let mut init = Command::new(&self.spec.program);
        init.arg("init").arg(self.dir()).args(["--nodes", &self.spec.count.to_string()]);
        init.args(["--size-mib", "16", "--cache-mib", "4", "--rails", "shm,tcp"]);
        let output = init.output().map_err(|error| format!("{}: {error}", self.spec.program.display()))?;
        if !output.status.success() {
            return Err(String::from_utf8_lossy(&output.stderr).trim().to_owned());
        }
        let path = self.dir().join("cluster.toml");
        let text = fs::read_to_string(&path).map_err(|error| error.to_string())?;
        let mut config: Table = text.parse().map_err(|error| format!("cluster.toml: {error}"))?;
        if let Some(membership) = config.get_mut("membership").and_then(|table| table.as_table_mut()) {
            membership.insert("profile".into(), self.spec.profile.into());
        }
        let nodes = config.get_mut("node").and_then(|nodes| nodes.as_array_mut());
        for (index, node) in nodes.ok_or("cluster.toml has no nodes")?.iter_mut().enumerate() {
            let node = node.as_table_mut().ok_or("cluster.toml has strange nodes")?;
            let host = self.host_of(index);
            let port = PORT + if self.spec.networks == 0 { index as u16 } else { 0 };
            let address = |network| format!("{}:{port}", self.lan.address(host, network));
            node.insert("host".into(), format!("h{host}").into());
            node.insert("address".into(), address(0).into());
            let more: Vec<toml::Value> =
                (1..self.spec.networks).map(|network| address(network).into()).collect();
            node.insert("addresses".into(), more.into());
        }
        #[cfg(feature = "fuse")]
        self.mount(&mut config)?;
        fs::write(&path, config.to_string()).map_err(|error| error.to_string())
    }

    /// Moves the voting files onto disks that can fail.
    #[cfg(feature = "fuse")]
    fn mount(&mut self, config: &mut Table) -> Result<(), String> {
        let Some(files) = config.get_mut("voting").and_then(|files| files.as_array_mut()) else {
            return Ok(());
        };
        let mut paths: Vec<&mut toml::Value> =
            files.iter_mut().filter_map(|file| file.get_mut("path")).collect();
        let place = |path: &&mut toml::Value| self.dir().join(path.as_str().unwrap_or_default());
        match super::disks::moved(&paths.iter().map(place).collect::<Vec<_>>()) {
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

    /// The disks under the voting files, if they can fail.
    #[cfg(feature = "fuse")]
    #[must_use]
    pub fn disks(&self) -> Option<&super::disks::Disks> {
        self.disks.as_ref()
    }

    fn host_of(&self, node: usize) -> usize {
        if self.spec.networks == 0 { 0 } else { node }
    }

    /// How many there are.
    #[must_use]
    pub fn count(&self) -> usize {
        self.spec.count
    }

    /// The cluster's directory.
    #[must_use]
    pub fn dir(&self) -> PathBuf {
        self.folder.path().join("cluster")
    }

    /// What a node is called.
    #[must_use]
    pub fn name(node: usize) -> String {
        format!("n{}", node + 1)
    }

    /// Where a node is asked.
    #[must_use]
    pub fn socket(&self, node: usize) -> PathBuf {
        self.dir().join("run").join(format!("{}.sock", Self::name(node)))
    }

    /// The hosts and their networks.
    #[must_use]
    pub fn lan(&self) -> &Lan {
        &self.lan
    }

    /// Starts a node that does not run.
    ///
    /// # Errors
    /// The system's.
    pub fn up(&mut self, node: usize) -> Result<(), String> {
        let fails = |error: std::io::Error| format!("{}: {error}", Self::name(node));
        let log = self.folder.path().join(format!("{}.said", Self::name(node)));
        let log = File::options().create(true).append(true).open(log).map_err(fails)?;
        let mut command = Command::new(&self.spec.program);
        command.arg("node").arg(self.dir()).arg(Self::name(node)).args(["--lifeline", "0"]);
        command.arg("--network-namespace").arg(self.lan.host(self.host_of(node)).path());
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(log);
        self.nodes[node] = Some(command.spawn().map_err(fails)?);
        Ok(())
    }

    /// Whether the process of a node runs; one that has ended is forgotten, and how it ended is said.
    ///
    /// # Errors
    /// How it ended.
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

    /// Sends a node a signal; nothing where it does not run.
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

    /// Has a node end, and waits for that.
    ///
    /// # Errors
    /// It does not, or not well.
    pub fn leave(&mut self, node: usize) -> Result<(), String> {
        self.signal(node, Signal::TERM);
        let start = Instant::now();
        loop {
            match self.runs(node) {
                Ok(false) => return Ok(()),
                Err(status) if status.success() => return Ok(()),
                Err(status) => {
                    return Err(format!(
                        "{} left: {status}\n{}",
                        Self::name(node),
                        last_lines(&self.said(node))
                    ));
                }
                Ok(true) if start.elapsed() > ENDS_WITHIN => {
                    return Err(format!(
                        "{} does not end\n{}",
                        Self::name(node),
                        last_lines(&self.said(node))
                    ));
                }
                Ok(true) => thread::sleep(LOOK_EVERY),
            }
        }
    }

    /// What a node says of itself, if it does.
    #[must_use]
    pub fn status(&self, node: usize) -> Option<Value> {
        status(&self.socket(node))
    }

    /// What a node has written to its log.
    #[must_use]
    pub fn said(&self, node: usize) -> String {
        let log = self.folder.path().join(format!("{}.said", Self::name(node)));
        fs::read(log).map_or_else(|_| String::new(), |bytes| String::from_utf8_lossy(&bytes).into_owned())
    }

    /// Waits until these nodes act in one view of exactly themselves, newer than `after`; its epoch.
    ///
    /// # Errors
    /// They do not, or one has ended.
    pub fn agreed(&mut self, nodes: &[usize], after: u64) -> Result<u64, String> {
        let names: Vec<String> = nodes.iter().map(|node| Self::name(*node)).collect();
        let start = Instant::now();
        loop {
            let seen: Vec<_> =
                nodes.iter().map(|node| self.status(*node).and_then(|status| view(&status))).collect();
            if let Some(Some((epoch, _))) = seen.first()
                && *epoch > after
                && seen
                    .iter()
                    .all(|one| one.as_ref().is_some_and(|(its, members)| its == epoch && *members == names))
            {
                return Ok(*epoch);
            }
            for node in nodes {
                if let Err(status) = self.runs(*node) {
                    return Err(format!(
                        "{} has ended: {status}\n{}",
                        Self::name(*node),
                        last_lines(&self.said(*node))
                    ));
                }
            }
            if start.elapsed() > PATIENCE {
                return Err(format!("{names:?} are not of one view newer than {after}: {seen:?}"));
            }
            thread::sleep(LOOK_EVERY);
        }
    }

    /// Drops what a host sends to and gets from these others, in all networks.
    ///
    /// # Errors
    /// The system's.
    pub fn part(&self, host: usize, others: &[usize]) -> Result<(), String> {
        for (other, network) in
            others.iter().flat_map(|other| (0..self.lan.networks()).map(move |net| (*other, net)))
        {
            let address = self.lan.address(other, network);
            self.lan.host(host).run(&format!("nft add rule inet faults out ip daddr {address} drop"))?;
            self.lan.host(host).run(&format!("nft add rule inet faults in ip saddr {address} drop"))?;
        }
        Ok(())
    }

    /// Drops what a host sends, in all networks; it hears still.
    ///
    /// # Errors
    /// The system's.
    pub fn mute(&self, host: usize) -> Result<(), String> {
        (0..self.lan.networks()).try_for_each(|network| {
            self.lan.host(host).run(&format!("nft add rule inet faults out oifname {} drop", device(network)))
        })
    }

    /// Takes every fault of the network away.
    ///
    /// # Errors
    /// The system's.
    pub fn heal(&self) -> Result<(), String> {
        for host in 0..self.lan.hosts() {
            self.lan.host(host).run("nft flush chain inet faults out")?;
            self.lan.host(host).run("nft flush chain inet faults in")?;
            (0..self.lan.networks()).try_for_each(|network| self.lan.plug(host, network))?;
        }
        Ok(())
    }
}

/// What the node behind a socket says of itself.
#[must_use]
pub fn status(socket: &Path) -> Option<Value> {
    let mut control = Control::connect(socket, ANSWERS_WITHIN).ok()?;
    match control.call("status", &Value::Null) {
        Said::Done(status) => Some(status),
        _ => None,
    }
}

/// The epoch and the members of the view that a node acts in, from what it says of itself.
#[must_use]
pub fn view(status: &Value) -> Option<(u64, Vec<String>)> {
    let members = status["members"].as_array()?.iter().filter_map(|name| Some(name.as_str()?.to_owned()));
    let mut members: Vec<String> = members.collect();
    members.sort();
    Some((status["epoch"].as_u64().filter(|epoch| *epoch > 0)?, members))
}

/// The end of what somebody said.
fn last_lines(text: &str) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(8)..].join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_view_is_one_that_was_opened() {
        let status = |epoch: u64| json!({ "epoch": epoch, "members": ["n2", "n1"] });
        assert_eq!(view(&status(7)), Some((7, vec!["n1".into(), "n2".into()])));
        assert_eq!(view(&status(0)), None);
        assert_eq!(view(&json!({})), None);
        assert_eq!(last_lines("a\nb"), "a\nb");
    }
}
