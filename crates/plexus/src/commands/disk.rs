//! `plexus disk`: changes the disks of a mirrored group, and accepts disks that are older images of
//! themselves.

use std::{path::PathBuf, thread, time::Duration};

use anyhow::{Context, Result, anyhow, bail};
use clap::Subcommand;
use plexus_admin::{
    config::{Config, MAX_DISK_MIB},
    control::Control,
    create,
};
use plexus_disks::mirror::{discard_disk, slots_of_device};
use plexus_node::{
    disks::{AddArgs, ChangeArgs, DiskShown, DisksShown, GrowArgs, Scrubbed},
    identity::Forced,
};
use serde_json::{Value, json};

use super::{
    ask::{REQUEST_TIMEOUT, confirm, connect},
    cluster::{ClusterOptions, local_nodes},
    disks,
    init::disk_creation,
    vote::check_is_local,
};
use crate::output;

/// The interval at which a disk is looked at while chunks move.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// The arguments of `plexus disk`.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: DiskCommand,
    #[command(flatten)]
    cluster: ClusterOptions,
}

/// A new disk, made on this host.
#[derive(clap::Args)]
struct NewDiskArgs {
    /// The file to create, or a block device.
    path: PathBuf,
    /// The node that serves the disk [default: the first one of this machine].
    #[arg(long)]
    node: Option<String>,
    /// MiB that the group may use [default: the whole device; for a file, as many as the largest
    /// disk of the group has].
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=MAX_DISK_MIB))]
    size_mib: Option<u64>,
    /// The name that disks which fail together have in common [default: the host].
    #[arg(long)]
    failure_group: Option<String>,
    /// Overwrite what is there, unless it is in use.
    #[arg(long)]
    force: bool,
}

#[derive(Subcommand)]
enum DiskCommand {
    /// Create a disk on this machine, give it to the group, and move chunks to it.
    Add {
        #[command(flatten)]
        new: NewDiskArgs,
        /// Leave all chunks where they are.
        #[arg(long)]
        no_rebalance: bool,
    },
    /// Create a disk on this machine in place of one that is away, and copy everything to it.
    Replace {
        /// The number of the disk that is away, as `plexus disks` shows it.
        disk: u8,
        #[command(flatten)]
        new: NewDiskArgs,
    },
    /// Move the chunks of a disk to others, and take it out of the group.
    Drop {
        /// The number of the disk, as `plexus disks` shows it.
        disk: u8,
        /// Keep the disk in the group although its chunks have begun to move.
        #[arg(long)]
        cancel: bool,
        /// Return at once; the chunks move meanwhile.
        #[arg(long)]
        no_wait: bool,
    },
    /// Give the group more room on a disk of this machine, while it is used.
    Grow {
        /// The number of the disk, as `plexus disks` shows it.
        disk: u8,
        /// MiB that the group may use: a file gets this length [default: all that the file or
        /// block device has].
        #[arg(value_parser = clap::value_parser!(u64).range(1..=MAX_DISK_MIB))]
        size_mib: Option<u64>,
    },
    /// Give the group more blocks, with copies on several disks, while it is used. It cannot become
    /// smaller again.
    GrowGroup {
        /// MiB of all blocks: more than `plexus disks` shows.
        #[arg(value_parser = clap::value_parser!(u64).range(1..))]
        size_mib: u64,
    },
    /// Take a disk out of use: it gets no more writes until `online`.
    Offline {
        /// The number of the disk, as `plexus disks` shows it.
        disk: u8,
    },
    /// Let a disk return that was taken out of use. What it has missed is copied.
    Online {
        /// The number of the disk, as `plexus disks` shows it.
        disk: u8,
    },
    /// Move chunks until all disks are equally full.
    Rebalance {
        /// Return at once; the chunks move meanwhile.
        #[arg(long)]
        no_wait: bool,
    },
    /// Read all copies, compare them, and replace those that are bad.
    Scrub,
    /// Accept the images of the disks that are there, although the registry knows newer ones. All
    /// changes since these images were made are lost. The nodes must run; they serve the blocks
    /// some seconds later, and without redo after `plexus down` and `plexus up`. It can be repeated
    /// after an interruption.
    Force {
        /// Accept that changes are lost.
        #[arg(long, required = true)]
        lose_newer: bool,
        /// Do not ask.
        #[arg(long)]
        yes: bool,
    },
}

/// Runs `plexus disk`.
pub(crate) fn run(args: Args) -> Result<()> {
    let config = args.cluster.load()?;
    let as_json = args.cluster.json;
    let mut node = connect(&config, None)?;
    let said = match args.command {
        DiskCommand::Force { yes, .. } => return force(&mut node, yes, as_json),
        DiskCommand::Scrub => return scrub(&mut node, as_json),
        DiskCommand::Add { new, no_rebalance } => {
            let number = add(&config, &mut node, &new, None)?;
            if !no_rebalance {
                change(&mut node, &ChangeArgs::Rebalance)?;
                until_moved(&config, None)?;
            }
            format!("disk {number} is in the group")
        }
        DiskCommand::Replace { disk, new } => {
            add(&config, &mut node, &new, Some(disk))?;
            until_current(&config, disk)?;
            format!("disk {disk} has everything")
        }
        DiskCommand::Drop { disk, cancel: true, .. } => {
            change(&mut node, &ChangeArgs::Keep(disk))?;
            format!("disk {disk} stays; chunks that have moved stay where they are")
        }
        DiskCommand::Drop { disk, no_wait, .. } => {
            change(&mut node, &ChangeArgs::Drop(disk))?;
            match no_wait {
                true => format!(
                    "the chunks of disk {disk} move to others; `plexus disks` shows how many are left"
                ),
                false => {
                    until_moved(&config, Some(disk))?;
                    format!("disk {disk} has left the group; its file can be deleted")
                }
            }
        }
        DiskCommand::Grow { disk, size_mib } => {
            let size_mib = grow(&config, &mut node, disk, size_mib)?;
            format!(
                "disk {disk} has {size_mib} MiB for chunks; `plexus disk grow-group` gives the group more blocks"
            )
        }
        DiskCommand::GrowGroup { size_mib } => {
            change(&mut node, &ChangeArgs::GrowGroup(size_mib))?;
            format!("the group has {} MiB", disks::seen(&config)?.group_mib)
        }
        DiskCommand::Offline { disk } => {
            change(&mut node, &ChangeArgs::Offline(disk))?;
            format!(
                "disk {disk} gets no more writes: its chunks have one copy less until `plexus disk online {disk}`"
            )
        }
        DiskCommand::Online { disk } => {
            change(&mut node, &ChangeArgs::Online(disk))?;
            until_current(&config, disk)?;
            format!("disk {disk} has everything")
        }
        DiskCommand::Rebalance { no_wait } => {
            change(&mut node, &ChangeArgs::Rebalance)?;
            if !no_wait {
                until_moved(&config, None)?;
            }
            match no_wait {
                true => "chunks move until all disks are equally full".to_owned(),
                false => "all disks are equally full".to_owned(),
            }
        }
    };
    if as_json { output::json(&disks::seen(&config)?) } else { output::line(&said) }
}

fn change(node: &mut Control, change: &ChangeArgs) -> Result<()> {
    node.set_timeout(None)?;
    node.call("disk.change", serde_json::to_value(change)?, |_| ())?;
    Ok(())
}

/// Creates a disk and gives it to the group. Returns its number.
fn add(config: &Config, node: &mut Control, new: &NewDiskArgs, replaces: Option<u8>) -> Result<u8> {
    let known: DisksShown = serde_json::from_value(node.call("disks", Value::Null, |_| ())?)?;
    let name = match &new.node {
        Some(name) => name.clone(),
        None => local_nodes(config)?.first().context("no node belongs on this machine")?.name.clone(),
    };
    check_is_local(config, &name)?;
    let path = std::path::absolute(&new.path).with_context(|| new.path.display().to_string())?;
    let text =
        path.to_str().ok_or_else(|| anyhow!("{}: the path is not UTF-8; use another one", path.display()))?;
    let largest = known.disks.iter().map(|disk| disk.size_mib).max().unwrap_or(0);
    let chunk_mib = known.chunk_mib as u32;
    let of_device = slots_of_device(&path, chunk_mib)?;
    let wanted = new.size_mib.map(|mib| mib / known.chunk_mib).or(of_device.map(u64::from));
    let slots = wanted.unwrap_or(largest / known.chunk_mib);
    if slots == 0 {
        bail!("{text}: a disk has room for at least one chunk, {chunk_mib} MiB");
    }
    let slots = u32::try_from(slots).unwrap_or(u32::MAX);
    let (_, of_node) = config.node(&name)?;
    let failure_group = new.failure_group.clone().unwrap_or_else(|| of_node.host.clone());
    if let Some(disk) = known.disks.iter().find(|disk| disk.node == name && disk.path == text) {
        bail!("{text}: is disk {} of the group; use another path", disk.disk);
    }
    if let Some(disk) = replaces {
        let state = of(&known, disk).map(|disk| disk.state.as_str());
        match state {
            None => bail!("the group has no disk {disk}; see `plexus disks`"),
            Some("stale" | "offline") => {}
            Some(state) => bail!(
                "disk {disk} is {state}: add the new disk with `plexus disk add` and take this one out with `plexus disk \
                 drop {disk}`, which keeps all copies meanwhile; or first take it offline"
            ),
        }
    }
    let id = create::added_disk(config, &path, (chunk_mib, slots), &disk_creation(new.force))?;
    let asked = AddArgs {
        id: format!("{id:032x}"),
        node: name,
        path: text.to_owned(),
        failure_group,
        slots,
        replaces,
    };
    node.set_timeout(None)?;
    let added = node.call("disk.add", serde_json::to_value(&asked)?, |_| ());
    let number = added.inspect_err(|_| {
        // The group may have it if the answer was lost. Then its node has it open.
        if disks::seen(config).is_ok_and(|seen| seen.disks.iter().all(|disk| disk.path != text)) {
            let _ = discard_disk(&path);
        }
    });
    Ok(serde_json::from_value(number?)?)
}

/// Has a disk of this machine grow. Returns its MiB.
fn grow(config: &Config, node: &mut Control, disk: u8, size_mib: Option<u64>) -> Result<u64> {
    let known: DisksShown = serde_json::from_value(node.call("disks", Value::Null, |_| ())?)?;
    let name = &of(&known, disk).with_context(|| format!("the group has no disk {disk}"))?.node;
    check_is_local(config, name)?;
    let mut node = connect(config, Some(name))?;
    node.set_timeout(None)?;
    let asked = serde_json::to_value(GrowArgs { disk, size_mib })?;
    Ok(serde_json::from_value(node.call("disk.grow", asked, |_| ())?)?)
}

fn of(known: &DisksShown, number: u8) -> Option<&DiskShown> {
    known.disks.iter().find(|disk| disk.disk == number)
}

/// Shows the progress until no more chunks move, or until a disk has left the group.
fn until_moved(config: &Config, leaves: Option<u8>) -> Result<()> {
    // Its number may be that of another disk soon.
    let id = leaves.and_then(|disk| Some(of(&disks::seen(config).ok()?, disk)?.id.clone()));
    wait(config, |seen| match leaves {
        Some(disk) => of(seen, disk)
            .filter(|disk| Some(&disk.id) == id.as_ref())
            .map(|disk| format!("{} MiB are still on disk {}", disk.used_mib, disk.disk)),
        None => seen.is_balancing.then(|| {
            if let Some(disk) = seen.disks.iter().find(|disk| disk.state != "current" && seen.moving == 0) {
                return format!(
                    "the rest moves when disk {}, which is {}, is current",
                    disk.disk, disk.state
                );
            }
            let left: u64 = seen.disks.iter().filter_map(|disk| disk.left_mib).sum();
            format!("{} chunks move, {left} MiB of them are left", seen.moving)
        }),
    })
}

/// Shows the progress until a disk has everything.
fn until_current(config: &Config, number: u8) -> Result<()> {
    let mut has_left = false;
    wait(config, |seen| {
        has_left = of(seen, number).is_none();
        let disk = of(seen, number).filter(|disk| disk.state != "current" && disk.state != "leaving")?;
        Some(match disk.left_mib {
            Some(left) => format!("{left} MiB are left to copy to disk {number}"),
            None => format!("disk {number} is {}", disk.state),
        })
    })?;
    match has_left {
        true => bail!("disk {number} has left the group"),
        false => Ok(()),
    }
}

fn wait(config: &Config, mut left: impl FnMut(&DisksShown) -> Option<String>) -> Result<()> {
    let mut shown = String::new();
    while let Some(text) = left(&disks::seen(config)?) {
        if text != shown {
            output::progress(&text);
            shown = text;
        }
        thread::sleep(LOOK_EVERY);
    }
    Ok(())
}

fn scrub(node: &mut Control, as_json: bool) -> Result<()> {
    node.set_timeout(Some(REQUEST_TIMEOUT))?;
    let tell = |found: Value| {
        if let Ok(Scrubbed { units, all, .. }) = serde_json::from_value(found) {
            output::progress(&format!("{units} of {all} MiB are compared"));
        }
    };
    let found: Scrubbed = serde_json::from_value(node.call("disk.scrub", Value::Null, tell)?)?;
    if as_json {
        output::json(&found)?;
    } else {
        let Scrubbed { units, all: _, not_compared, repaired, lost, differing, unreadable } = found;
        let counts = [
            (repaired, "copies of blocks were bad and are replaced"),
            (not_compared, "MiB were not compared: a second copy is missing or is being copied"),
            (lost, "blocks are bad on all copies; the log names them"),
            (differing, "blocks differ although their copies are sound; the log names them"),
            (unreadable, "copies of redo cannot be read; the log names their disks"),
        ];
        output::line(&format!("{units} MiB, with all copies"))?;
        for (count, what) in counts.into_iter().filter(|(count, _)| *count > 0) {
            output::line(&format!("{count} {what}"))?;
        }
        if found.repaired + found.not_compared == 0 && !found.has_faults() {
            output::line("no difference")?;
        }
    }
    match found.has_faults() {
        true => bail!("there are blocks that a scrub cannot repair"),
        false => Ok(()),
    }
}

fn force(node: &mut Control, yes: bool, as_json: bool) -> Result<()> {
    let mut ask = |accepts: bool, version: Option<u64>| -> Result<Forced> {
        let asked = json!({ "accepts": accepts, "version": version });
        Ok(serde_json::from_value(node.call("disk.force", asked, |_| ())?)?)
    };
    let mut forced = ask(false, None)?;
    if !forced.faults.is_empty() {
        forced.faults.iter().for_each(|fault| output::progress(fault));
        confirm("All changes since these images were made are lost. Accept them?", yes)?;
        forced = ask(true, forced.version)?;
    }
    if as_json {
        return output::json(&forced);
    }
    match forced.faults.len() {
        0 => output::line("every disk is the one that the registry knows: nothing to accept"),
        1 => output::line("accepted: the registry takes this disk for the newest"),
        count => output::line(&format!("accepted: the registry takes these {count} disks for the newest")),
    }
}
