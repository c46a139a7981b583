//! Corosync: the time from the loss of one of three nodes to a membership without it.
//!
//! The nodes run in namespaces on one switch. Their logs show when the membership changes. Abstract
//! sockets belong to a namespace, so several nodes run on one machine.

use std::{
    fmt::Write as _,
    fs::{self, File},
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Result, anyhow, ensure};
use plexus_namespaces::Lan;
use tempfile::TempDir;

use crate::command::{ChildGuard, found};

const NODES: usize = 3;

/// The time limit for a new membership.
const TIMEOUT: Duration = Duration::from_secs(30);

/// The interval at which the logs are read.
const LOOK_EVERY: Duration = Duration::from_millis(1);

/// Three Corosync nodes, which end when this value is dropped.
pub(super) struct Corosync {
    nodes: Vec<ChildGuard>,
    lan: Lan,
    folder: TempDir,
}

impl Corosync {
    /// Starts the nodes with a token timeout and waits until they form one membership.
    ///
    /// Without `token_ms` the default of Corosync is used.
    ///
    /// # Errors
    /// Corosync is not installed, namespaces are not available, or the nodes form no membership.
    pub(super) fn start(token_ms: Option<u32>) -> Result<Self> {
        ensure!(found("corosync"), "corosync is not installed (package corosync)");
        let lan = Lan::new(NODES, 1).map_err(|why| anyhow!("{why}"))?;
        let mut corosync = Self { nodes: Vec::new(), lan, folder: tempfile::tempdir()? };
        for node in 0..NODES {
            let folder = corosync.folder.path().join(node.to_string());
            fs::create_dir(&folder)?;
            fs::write(folder.join("corosync.conf"), corosync.configuration(node, token_ms))?;
            // Each node has its own /run: the path of the lock file is fixed.
            let mut command = Command::new("unshare");
            let own = "mount -t tmpfs tmpfs /run && exec corosync -f -c \"$0\"";
            command.args(["--mount", "sh", "-c", own]).arg(folder.join("corosync.conf")).current_dir(&folder);
            let output = File::create(folder.join("output"))?;
            command.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output);
            corosync.nodes.push(ChildGuard(corosync.lan.host(node).inside(|| command.spawn())?));
        }
        corosync.agree(&[0, 1, 2], "Members[3]: 1 2 3", [0; NODES])?;
        Ok(corosync)
    }

    fn configuration(&self, me: usize, token_ms: Option<u32>) -> String {
        let folder = self.folder.path().join(me.to_string());
        let folder = folder.display();
        let token = token_ms.map_or(String::new(), |ms| format!("token: {ms}\n token_coefficient: 0\n"));
        let mut text = format!(
            "totem {{\n version: 2\n cluster_name: bench\n transport: knet\n crypto_cipher: none\n crypto_hash: none\n {token}}}\n\
             system {{\n state_dir: {folder}\n sched_rr: no\n}}\n\
             quorum {{\n provider: corosync_votequorum\n}}\n\
             logging {{\n to_stderr: no\n to_syslog: no\n to_logfile: yes\n logfile: {folder}/log\n timestamp: hires\n}}\n\
             nodelist {{\n"
        );
        for node in 0..NODES {
            let (number, address) = (node + 1, self.lan.address(node, 0));
            let _ = writeln!(
                text,
                " node {{\n  nodeid: {number}\n  name: c{number}\n  ring0_addr: {address}\n }}"
            );
        }
        text + "}\n"
    }

    /// Kills the last node and returns the milliseconds until the others form a membership.
    ///
    /// # Errors
    /// The others form none in time.
    pub(super) fn death(self) -> Result<f64> {
        self.lost(|corosync| Ok(corosync.nodes[NODES - 1].0.kill()?))
    }

    /// Disconnects the last node; returns the milliseconds until the others form a membership.
    ///
    /// # Errors
    /// The others form none in time.
    pub(super) fn cut(self) -> Result<f64> {
        self.lost(|corosync| corosync.lan.unplug(NODES - 1, 0).map_err(|why| anyhow!("{why}")))
    }

    fn lost(mut self, lose: impl FnOnce(&mut Self) -> Result<()>) -> Result<f64> {
        let before = std::array::from_fn(|node| self.text(node).len());
        let start = Instant::now();
        lose(&mut self)?;
        self.agree(&[0, 1], "Members[2]: 1 2", before)?;
        Ok(start.elapsed().as_secs_f64() * 1e3)
    }

    fn text(&self, node: usize) -> String {
        let log = fs::read(self.folder.path().join(node.to_string()).join("log"));
        String::from_utf8_lossy(&log.unwrap_or_default()).into_owned()
    }

    /// Waits until the logs of these nodes have the text `what` after the position `before`.
    fn agree(&self, nodes: &[usize], what: &str, before: [usize; NODES]) -> Result<()> {
        let start = Instant::now();
        loop {
            let agrees =
                |node: &usize| self.text(*node).get(before[*node]..).is_some_and(|new| new.contains(what));
            if nodes.iter().all(agrees) {
                return Ok(());
            }
            ensure!(
                start.elapsed() < TIMEOUT,
                "corosync: no `{what}` within 30 s; its last log line: {}",
                self.text(0).lines().last().unwrap_or("none")
            );
            thread::sleep(LOOK_EVERY);
        }
    }
}
