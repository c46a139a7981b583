//! `plexus lock`: runs a command while it holds a lock.

use std::{
    io,
    process::{Command, ExitStatus},
    sync::mpsc::{self, Receiver, Sender},
    thread,
    time::Duration,
};

use anyhow::{Result, anyhow, bail};
use plexus_admin::{
    config::Config,
    control::{ANSWER_WITHIN, Control, ControlError},
};
use plexus_node::locking::{self, LockArgs};
use rustix::process::Signal;

use super::{
    CommandExit, CommandFailure,
    ask::{connect, wait_ms},
    child::{self, RunningCommand},
    cluster::Cluster,
    locks,
};
use crate::output;

/// The exit code if no command ran, or the lock was lost while it ran; as in `env` and `timeout`.
pub(crate) const NOT_LOCKED: u8 = 125;

const CODES: &str = "Exit codes: that of the command (128 plus the signal number if a signal ended it); 125 if plexus lock itself failed, or the lock was \
    not granted or was lost; 126 if the command cannot be run; 127 if there is no such command.";

/// The arguments of `plexus lock`.
#[derive(clap::Args)]
#[command(after_help = CODES)]
pub(crate) struct Args {
    #[command(flatten)]
    cluster: Cluster,
    /// The node to ask [default: the first of this machine that answers].
    #[arg(long)]
    node: Option<String>,
    /// The lock mode: NL, CR, CW, PR, PW or EX. Use PR for a shared lock, EX for an exclusive one.
    #[arg(long, default_value = "EX")]
    mode: String,
    /// Wait at most this many seconds.
    #[arg(long = "wait", value_name = "SECONDS", value_parser = some_wait_ms)]
    wait_ms: Option<u64>,
    /// Fail at once if the lock is not free.
    #[arg(long = "try", conflicts_with = "wait_ms")]
    attempt: bool,
    /// The resource to lock: a name of 1 to 255 bytes.
    name: String,
    /// The command. $PLEXUS_LOCK_TOKEN holds the fencing token. The lock is held until the command
    /// and all processes that inherited its descriptors have ended.
    #[arg(last = true, required = true)]
    command: Vec<String>,
}

fn some_wait_ms(seconds: &str) -> Result<u64, String> {
    wait_ms(seconds).map_err(|why| format!("{why}; use --try not to wait"))
}

/// Runs `plexus lock`.
pub(crate) fn run(args: Args) -> Result<()> {
    match under_lock(args) {
        Ok(0) => Ok(()),
        Ok(code) => Err(CommandExit(code).into()),
        Err(why) if why.is::<CommandFailure>() => Err(why),
        Err(why) => Err(CommandFailure { code: NOT_LOCKED, why }.into()),
    }
}

/// An event while `plexus lock` runs.
enum LockEvent {
    Granted(u64),
    /// The lock was not granted, or it was lost.
    Lost(anyhow::Error),
    /// Plexus received a signal to pass on.
    Signal(Signal),
    Ended(io::Result<ExitStatus>),
}

fn under_lock(args: Args) -> Result<u8> {
    let config = args.cluster.load()?;
    locking::mode(&args.mode).map_err(anyhow::Error::msg)?;
    let wait_ms = if args.attempt { Some(0) } else { args.wait_ms };
    let mut control = connect(&config, args.node.as_deref())?;
    control.set_timeout(None)?;
    control.hand_down()?;
    let node = control.name().to_owned();
    let (events, received) = mpsc::channel();
    ask(control, &LockArgs { name: args.name.clone(), mode: args.mode.clone(), wait_ms }, events.clone())?;
    let first = match wait_ms {
        // A node that hangs is waited for no longer than one that answers.
        Some(ms) => {
            let limit = Duration::from_millis(ms) + ANSWER_WITHIN;
            let silent = |_| ControlError::silent(&config.dir, &node, "lock", limit);
            received.recv_timeout(limit).map_err(silent)?
        }
        None => received.recv()?,
    };
    match first {
        LockEvent::Granted(token) => watched(&args, token, events, &received),
        LockEvent::Lost(why) => Err(refused(&config, &args.name, &why)),
        LockEvent::Signal(_) | LockEvent::Ended(_) => bail!("interrupted before the lock was granted"),
    }
}

/// Returns the error of a lock that was not granted, with its holders if they are known.
fn refused(config: &Config, name: &str, why: &anyhow::Error) -> anyhow::Error {
    let holders = locks::holders(config, name).unwrap_or_default();
    let held = if holders.is_empty() { String::new() } else { format!(" (held by {})", holders.join(", ")) };
    anyhow!("lock {name:?}: {}{held}; see `plexus locks`", output::reasons(why))
}

/// Requests the lock. A thread reports the result, for as long as the receiver exists.
fn ask(mut control: Control, lock: &LockArgs, events: Sender<LockEvent>) -> Result<()> {
    let lock = serde_json::to_value(lock)?;
    thread::Builder::new().spawn(move || {
        let ended = control.call("lock", lock, |progress| {
            let event = progress["granted"]["token"].as_u64().map_or_else(
                || {
                    LockEvent::Lost(anyhow!(
                        "the node answered {progress}, which is not a grant; check that it runs this version"
                    ))
                },
                LockEvent::Granted,
            );
            let _ = events.send(event);
        });
        let why = ended.err().map_or_else(|| anyhow!("the node released the lock"), anyhow::Error::from);
        let _ = events.send(LockEvent::Lost(why));
    })?;
    Ok(())
}

/// Runs the command to its end. If the lock is lost before that, sends the command SIGTERM.
fn watched(args: &Args, token: u64, events: Sender<LockEvent>, received: &Receiver<LockEvent>) -> Result<u8> {
    let mut command = Command::new(&args.command[0]);
    command.args(&args.command[1..]).env("PLEXUS_LOCK_TOKEN", token.to_string());
    let signals = events.clone();
    // Signals are taken before the command starts, so that none is lost. Sending fails after its
    // end.
    child::take_signals(move |signal| drop(signals.send(LockEvent::Signal(signal))))?;
    let running = RunningCommand::start(command, move |status| drop(events.send(LockEvent::Ended(status))))?;
    let pass = |signal| {
        if let Err(error) = running.send_signal(signal) {
            output::progress(&format!("plexus: {}: cannot send a signal: {error}", args.command[0]));
        }
    };
    let mut lost = None;
    loop {
        match received.recv()? {
            LockEvent::Ended(status) => return lost.map_or(Ok(child::code(status?)), Err),
            LockEvent::Signal(signal) => pass(signal),
            LockEvent::Lost(why) => {
                pass(Signal::TERM);
                let what = format!("lock {}: lost; sent SIGTERM to the command", args.name);
                lost.get_or_insert_with(|| why.context(what));
            }
            LockEvent::Granted(_) => {}
        }
    }
}
