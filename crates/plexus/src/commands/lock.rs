//! `plexus lock`: runs a command while it holds a lock.

use std::{
    io,
    path::PathBuf,
    process::{Child, ExitStatus},
    sync::mpsc,
    thread,
};

use anyhow::{Context, Result, anyhow, bail};
use plexus_node::{
    control::{Control, ControlError},
    locking::{self, LockArgs},
};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::{
    Ended,
    cluster::{Cluster, local_nodes},
};

/// What is locked, and what runs meanwhile.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The cluster's directory [default: $PLEXUS_DIR, or the current one if it is a cluster].
    #[arg(long, value_name = "DIR")]
    cluster: Option<PathBuf>,
    /// The node to ask [default: the first of this machine that runs].
    #[arg(long)]
    node: Option<String>,
    /// NL, CR, CW, PR, PW or EX: shared is PR, exclusive EX.
    #[arg(long, default_value = "EX")]
    mode: String,
    /// Wait no longer than so many seconds.
    #[arg(long, value_name = "SECONDS")]
    wait: Option<f64>,
    /// Do not wait at all.
    #[arg(long = "try", conflicts_with = "wait")]
    attempt: bool,
    /// What to lock: any name of 1 to 255 bytes.
    name: String,
    /// The command; it finds the fencing token in $PLEXUS_LOCK_TOKEN. The lock is held until it has ended, and whatever it started
    /// that keeps its descriptors.
    #[arg(last = true, required = true)]
    command: Vec<String>,
}

/// Does it.
pub(crate) fn run(args: Args) -> Result<()> {
    let config = Cluster::at(args.cluster.clone()).load()?;
    locking::mode(&args.mode).map_err(anyhow::Error::msg)?;
    let wait_ms = match args.wait {
        _ if args.attempt => Some(0),
        Some(seconds) if !(0.001..=1e9).contains(&seconds) => {
            bail!("--wait {seconds}: use 0.001 or more; not to wait is --try")
        }
        Some(seconds) => Some((seconds * 1e3) as u64),
        None => None,
    };
    let mut control = match &args.node {
        Some(name) => {
            config.node(name)?;
            Control::connect(&config.dir, name)?
        }
        None => first(local_nodes(&config)?.iter().map(|node| Control::connect(&config.dir, &node.name)))?,
    };
    control.hand_down()?;
    let lock = LockArgs { name: args.name.clone(), mode: args.mode.clone(), wait_ms };
    let lock = serde_json::to_value(lock)?;
    let (tell, news) = mpsc::channel();
    let tells = tell.clone();
    thread::spawn(move || {
        let granted = tells.clone();
        let ended = control.call("lock", lock, |progress| {
            let news = progress["granted"]["token"].as_u64().map_or_else(
                || News::Lost(anyhow!("the node says {progress}, which is no grant: is it of this version?")),
                News::Granted,
            );
            // Where nobody listens any more, here and below, the command has ended.
            let _ = granted.send(news);
        });
        let why = ended.err().map_or_else(|| anyhow!("the node gave the lock up"), anyhow::Error::from);
        let _ = tells.send(News::Lost(why));
    });
    let token = match news.recv()? {
        News::Granted(token) => token,
        News::Lost(why) => return Err(why),
        News::Ended(_) => bail!("ended before it began"),
    };
    let status = watched(&args, token, tell, &news)?;
    match code(status) {
        0 => Ok(()),
        code => Err(Ended(code).into()),
    }
}

/// What happens meanwhile.
enum News {
    Granted(u64),
    /// The lock protects nothing any more, or was not granted.
    Lost(anyhow::Error),
    Ended(io::Result<ExitStatus>),
}

/// The first that runs.
fn first(nodes: impl Iterator<Item = Result<Control, ControlError>>) -> Result<Control> {
    let mut why = None;
    for node in nodes {
        match node {
            Ok(control) => return Ok(control),
            Err(error) => why = why.or(Some(error)),
        }
    }
    Err(why.map_or_else(|| anyhow!("no node belongs on this machine"), anyhow::Error::from))
}

/// Runs the command to its end, and tells it to end where the lock is lost before.
fn watched(
    args: &Args,
    token: u64,
    tell: mpsc::Sender<News>,
    news: &mpsc::Receiver<News>,
) -> Result<ExitStatus> {
    let mut command = std::process::Command::new(&args.command[0]);
    command.args(&args.command[1..]).env("PLEXUS_LOCK_TOKEN", token.to_string());
    let mut child = command.spawn().with_context(|| args.command[0].clone())?;
    let pidfd = pidfd_of(&child)?;
    thread::spawn(move || {
        let _ = tell.send(News::Ended(child.wait()));
    });
    let mut lost = None;
    loop {
        match (news.recv()?, lost) {
            (News::Ended(status), None) => return Ok(status?),
            (News::Ended(_), Some(why)) => return Err(why),
            (News::Lost(why), before) => {
                pidfd_send_signal(&pidfd, Signal::TERM)?;
                let what = format!("the lock on {} is lost, so the command was told to end", args.name);
                lost = before.or(Some(why.context(what)));
            }
            (News::Granted(_), before) => lost = before,
        }
    }
}

fn pidfd_of(child: &Child) -> Result<std::os::fd::OwnedFd> {
    let pid = Pid::from_raw(child.id() as i32).context("a process has a number")?;
    Ok(pidfd_open(pid, PidfdFlags::empty())?)
}

/// As shells say it: 128 and the signal, for who was ended by one.
fn code(status: ExitStatus) -> u8 {
    use std::os::unix::process::ExitStatusExt;
    match (status.code(), status.signal()) {
        (Some(code), _) => code as u8,
        (None, signal) => 128 + signal.unwrap_or_default() as u8,
    }
}
