//! `plexus lock`: runs a command while it holds a lock.

use std::{
    io,
    path::PathBuf,
    process::{Command, ExitStatus},
    sync::mpsc::{self, Receiver, Sender},
    thread,
    time::Duration,
};

use anyhow::{Result, anyhow, bail};
use plexus_node::{
    control::{ANSWER_WITHIN, Control, ControlError},
    locking::{self, LockArgs},
};
use rustix::process::Signal;

use super::{
    Ended, Failed,
    ask::{connect, wait_ms},
    child::{self, Running},
    cluster::Cluster,
};
use crate::output;

/// The code where no command was run, or it was not under a lock to its end; as of `env` and `timeout`.
pub(crate) const NOT_LOCKED: u8 = 125;

const CODES: &str = "Exit codes: that of the command (128 and the signal, where one ended it); 125 if plexus lock itself failed, the lock not granted or lost \
    among the reasons; 126 if the command cannot be run; 127 if there is no such command.";

/// What is locked, and what runs meanwhile.
#[derive(clap::Args)]
#[command(after_help = CODES)]
pub(crate) struct Args {
    /// The cluster's directory [default: $PLEXUS_DIR, or the current one if it is a cluster].
    #[arg(long, value_name = "DIR")]
    cluster: Option<PathBuf>,
    /// The node to ask [default: the first of this machine that answers].
    #[arg(long)]
    node: Option<String>,
    /// NL, CR, CW, PR, PW or EX: shared is PR, exclusive EX.
    #[arg(long, default_value = "EX")]
    mode: String,
    /// Wait no longer than so many seconds.
    #[arg(long = "wait", value_name = "SECONDS", value_parser = some_wait_ms)]
    wait_ms: Option<u64>,
    /// Do not wait at all.
    #[arg(long = "try", conflicts_with = "wait_ms")]
    attempt: bool,
    /// What to lock: any name of 1 to 255 bytes.
    name: String,
    /// The command; it finds the fencing token in $PLEXUS_LOCK_TOKEN. The lock is held until it has ended, and whatever it started
    /// that keeps its descriptors.
    #[arg(last = true, required = true)]
    command: Vec<String>,
}

fn some_wait_ms(seconds: &str) -> Result<u64, String> {
    wait_ms(seconds).map_err(|why| format!("{why}; not to wait is --try"))
}

/// Does it.
pub(crate) fn run(args: Args) -> Result<()> {
    match under_lock(args) {
        Ok(0) => Ok(()),
        Ok(code) => Err(Ended(code).into()),
        Err(why) if why.is::<Failed>() => Err(why),
        Err(why) => Err(Failed { code: NOT_LOCKED, why }.into()),
    }
}

/// What happens meanwhile.
enum News {
    Granted(u64),
    /// The lock protects nothing any more, or was not granted.
    Lost(anyhow::Error),
    /// Somebody wants it to end.
    Signal(Signal),
    Ended(io::Result<ExitStatus>),
}

fn under_lock(args: Args) -> Result<u8> {
    let config = Cluster::at(args.cluster.clone()).load()?;
    locking::mode(&args.mode).map_err(anyhow::Error::msg)?;
    let wait_ms = if args.attempt { Some(0) } else { args.wait_ms };
    let mut control = connect(&config, args.node.as_deref())?;
    control.set_timeout(None)?;
    control.hand_down()?;
    let node = control.name().to_owned();
    let (tell, news) = mpsc::channel();
    ask(control, &LockArgs { name: args.name.clone(), mode: args.mode.clone(), wait_ms }, tell.clone())?;
    let first = match wait_ms {
        // A node that hangs is not waited for any longer than one that answers may take.
        Some(ms) => news
            .recv_timeout(Duration::from_millis(ms) + ANSWER_WITHIN)
            .map_err(|_| ControlError::Silent { name: node, command: "lock".into() })?,
        None => news.recv()?,
    };
    match first {
        News::Granted(token) => watched(&args, token, tell, &news),
        News::Lost(why) => Err(why),
        News::Signal(_) | News::Ended(_) => bail!("ended before it began"),
    }
}

/// Asks for the lock; a thread says what comes of it, as long as somebody listens.
fn ask(mut control: Control, lock: &LockArgs, tell: Sender<News>) -> Result<()> {
    let lock = serde_json::to_value(lock)?;
    thread::Builder::new().spawn(move || {
        let ended = control.call("lock", lock, |progress| {
            let news = progress["granted"]["token"].as_u64().map_or_else(
                || News::Lost(anyhow!("the node says {progress}, which is no grant: is it of this version?")),
                News::Granted,
            );
            let _ = tell.send(news);
        });
        let why = ended.err().map_or_else(|| anyhow!("the node gave the lock up"), anyhow::Error::from);
        let _ = tell.send(News::Lost(why));
    })?;
    Ok(())
}

/// Runs the command to its end, and tells it to end where the lock is lost before.
fn watched(args: &Args, token: u64, tell: Sender<News>, news: &Receiver<News>) -> Result<u8> {
    let mut command = Command::new(&args.command[0]);
    command.args(&args.command[1..]).env("PLEXUS_LOCK_TOKEN", token.to_string());
    let passes = tell.clone();
    // Before the command: none is lost in between. Nobody listens any more once it has ended.
    child::take_signals(move |signal| drop(passes.send(News::Signal(signal))))?;
    let running = Running::start(command, move |status| drop(tell.send(News::Ended(status))))?;
    let pass = |signal| {
        if let Err(error) = running.tell(signal) {
            output::progress(&format!("plexus: {} cannot be told to end: {error}", args.command[0]));
        }
    };
    let mut lost = None;
    loop {
        match news.recv()? {
            News::Ended(status) => return lost.map_or(Ok(child::code(status?)), Err),
            News::Signal(signal) => pass(signal),
            News::Lost(why) => {
                pass(Signal::TERM);
                let what = format!("the lock on {} is lost, so the command was told to end", args.name);
                lost.get_or_insert_with(|| why.context(what));
            }
            News::Granted(_) => {}
        }
    }
}
