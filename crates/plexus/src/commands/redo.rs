//! `plexus redo`: shows the redo streams and their records, from the files, whether nodes run or
//! not, and gives up a stream that is lost.

use std::path::Path;

use anyhow::{Result, bail};
use clap::Subcommand;
use plexus_admin::config::Config;
use plexus_base::hex;
use plexus_disks::{FileDevice, patch_ranges};
use plexus_node::{identity::GivenUp, ledger::known_entries};
use plexus_observe::show::{self, Table};
use plexus_redo::{
    recovery::{LostStream, RedoFileError, RedoFiles, StreamFile},
    stream::{
        protocol::{Lsn, Record, RecordKind},
        reader::{StreamDamage, StreamError, StreamReader},
    },
};
use serde::Serialize;
use serde_json::{Value, json};

use super::{
    ask::{confirm, connect},
    cluster::ClusterOptions,
};
use crate::output;

/// The bytes of a range that are shown.
const SHOWN_BYTES: usize = 32;

/// The most blocks of a stream that are named.
const SHOWN_BLOCKS: usize = 40;

/// The arguments of `plexus redo`.
#[derive(clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Option<RedoCommand>,
    #[command(flatten)]
    cluster: ClusterOptions,
}

#[derive(Subcommand)]
enum RedoCommand {
    /// Show the records of the streams: position, block, versions and new bytes.
    Dump {
        /// The streams of one node, or one of them [default: those of all nodes].
        #[arg(value_name = "NODE[.PLACE]")]
        stream: Option<String>,
    },
    /// Give up a stream that is missing, old, damaged or foreign, so that no recovery reads it or
    /// waits for it any more. Changes that are only there are lost. The file stays: it is closed,
    /// or renamed if it is no stream of its node. The nodes must run, but not the one that wrote
    /// the stream; they serve the blocks some seconds later, and blocks that were refused after
    /// `plexus down` and `plexus up`. It can be repeated after an interruption.
    GiveUp {
        /// The stream.
        #[arg(value_name = "NODE.PLACE")]
        stream: String,
        /// Accept that changes are lost.
        #[arg(long, required = true)]
        lose_newer: bool,
        /// Do not ask.
        #[arg(long)]
        yes: bool,
    },
}

/// A stream in its file, as it is shown.
#[derive(Serialize)]
struct StreamRow {
    stream: String,
    node: u8,
    incarnation: u64,
    state: &'static str,
    checkpoint: u64,
    end: u64,
    /// The bytes and blocks that a recovery would read; 0 for a closed stream.
    bytes: u64,
    blocks: usize,
    /// The bytes of the file.
    size: u64,
}

/// Runs `plexus redo`.
pub(crate) fn run(args: Args) -> Result<()> {
    let config = args.cluster.load()?;
    if let Some(RedoCommand::GiveUp { stream, yes, .. }) = &args.command {
        return give_up(&config, stream, *yes, args.cluster.json);
    }
    let Some(directory) = config.redo() else {
        bail!("the redo streams of a mirrored group are not shown yet; see `plexus status`");
    };
    let files = RedoFiles::new(&directory, config.id.0);
    // First, so that the files are at least as new.
    let lost = files.lost(&known_entries(&config))?;
    let found = files.list();
    let streams = match found {
        Err(RedoFileError::Directory { why, .. }) if why.kind() == std::io::ErrorKind::NotFound => Vec::new(),
        found => found?,
    };
    match args.command {
        Some(RedoCommand::Dump { stream }) => dump(streams, stream.as_deref(), args.cluster.json),
        _ => show_streams(streams, &lost, &args.cluster, &directory.display().to_string()),
    }
}

fn give_up(config: &Config, stream: &str, yes: bool, is_json: bool) -> Result<()> {
    let mut node = connect(config, None)?;
    let mut ask = |accepts: bool| -> Result<GivenUp> {
        let request = json!({ "stream": stream, "accepts": accepts });
        Ok(serde_json::from_value(node.call("redo.give_up", request, |_| ())?)?)
    };
    let mut given_up = ask(false)?;
    if !given_up.is_over {
        let GivenUp { path, state, blocks, named, .. } = &given_up;
        let what = if state.is_empty() { String::new() } else { format!(": {state}") };
        output::progress(&format!("{path}{what}"));
        let blocks = match blocks {
            0 if state.is_empty() => "it has no changes".into(),
            0 => "the blocks of its changes are not known".into(),
            _ => {
                let named: Vec<_> = named.iter().take(SHOWN_BLOCKS).map(ToString::to_string).collect();
                let more = if *blocks > named.len() { ", ..." } else { "" };
                format!(
                    "it has changes of {} blocks: {}{more}",
                    show::count(*blocks as u64),
                    named.join(", ")
                )
            }
        };
        output::progress(&blocks);
        confirm("Changes that are only in this stream are lost. Give it up?", yes)?;
        given_up = ask(true)?;
    }
    match (is_json, given_up.is_over) {
        (true, _) => output::json(&given_up),
        (false, true) => output::line(&format!("{stream}: closed already: nothing to give up")),
        (false, false) => output::line(&format!("{stream}: given up")),
    }
}

fn show_streams(
    streams: Vec<Result<StreamFile, RedoFileError>>,
    lost: &[LostStream],
    cluster: &ClusterOptions,
    directory: &str,
) -> Result<()> {
    let (mut rows, mut faults) = (Vec::new(), Vec::new());
    let count = streams.len();
    for stream in streams {
        match stream.map_err(anyhow::Error::from).and_then(|file| row(&file)) {
            Ok(row) => rows.push(row),
            Err(why) => faults.push(output::reasons(&why)),
        }
    }
    let count = count + lost.iter().filter(|lost| lost.is_missing()).count();
    faults.extend(lost.iter().map(ToString::to_string));
    if cluster.json {
        output::json(&json!({ "streams": rows, "faults": faults }))?;
    } else if count == 0 {
        output::line(&format!("no redo streams in {directory}"))?;
    } else if !rows.is_empty() {
        output::line(table(&rows).to_string().trim_end())?;
    }
    match &faults[..] {
        [] => Ok(()),
        [first, ..] => bail!("{} of {count} redo streams cannot be used: {first}", faults.len()),
    }
}

fn table(rows: &[StreamRow]) -> Table {
    let heads = ["stream", "state", "incarnation", "checkpoint", "end", "to recover", "blocks", "size"];
    let mut table = Table::new(heads).left(2);
    for row in rows {
        table.row([
            row.stream.clone(),
            row.state.to_owned(),
            row.incarnation.to_string(),
            row.checkpoint.to_string(),
            row.end.to_string(),
            show::bytes(row.bytes),
            row.blocks.to_string(),
            show::bytes(row.size),
        ]);
    }
    table
}

fn row(file: &StreamFile) -> Result<StreamRow> {
    let scan = || {
        let device = FileDevice::open(&file.path)?;
        StreamReader::open(&device)?.of_running().scan()
    };
    let scan = scan().and_then(|scan| scan.damage.map_or(Ok((scan.highest, scan.tail)), Err));
    let (highest, tail) = scan.map_err(|why| fault(file, &why))?;
    let (header, end) = (tail.header, tail.end);
    let is_open = !header.is_closed;
    Ok(StreamRow {
        stream: file.file_name(),
        node: header.node.0,
        incarnation: header.incarnation.0,
        state: if is_open { "open" } else { "closed" },
        checkpoint: header.checkpoint.0,
        end: end.0,
        bytes: if is_open { end.0 - header.checkpoint.0 } else { 0 },
        blocks: if is_open { highest.len() } else { 0 },
        size: header.geometry.length(),
    })
}

fn fault(file: &StreamFile, why: &StreamError) -> anyhow::Error {
    anyhow::anyhow!("{}: {why}", file.path.display())
}

fn dump(streams: Vec<Result<StreamFile, RedoFileError>>, wanted: Option<&str>, is_json: bool) -> Result<()> {
    let is_wanted = |path: &Path| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        wanted.is_none_or(|wanted| {
            name == wanted || name.rsplit_once('.').is_some_and(|(node, _)| node == wanted)
        })
    };
    let mut is_found = false;
    for stream in streams {
        match stream {
            Ok(file) if is_wanted(&file.path) => {
                is_found = true;
                dump_stream(&file, is_json)?;
            }
            Err(RedoFileError::Stream { path, .. }) if !is_wanted(&path) => {}
            Ok(_) => {}
            Err(why) => return Err(why.into()),
        }
    }
    match wanted.filter(|_| !is_found) {
        Some(wanted) => bail!("{wanted}: no such redo stream; see `plexus redo`"),
        None => Ok(()),
    }
}

/// Prints the records of a stream from its checkpoint on.
fn dump_stream(file: &StreamFile, is_json: bool) -> Result<()> {
    let failed = |why: StreamError| fault(file, &why);
    let device = FileDevice::open(&file.path).map_err(|why| failed(why.into()))?;
    let mut reader = StreamReader::open(&device).map_err(failed)?.of_running();
    let (name, header) = (file.file_name(), *reader.header());
    let state = if header.is_closed { "closed" } else { "open" };
    if !is_json {
        output::line(&format!("{name}: {}, {state}, from {} on", header.node, header.checkpoint))?;
    }
    let mut end = header.checkpoint;
    let mut damage = None;
    while let Some(batch) = reader.next_or_damage().map_err(failed)? {
        let batch = match batch {
            Ok(batch) => batch,
            Err(StreamDamage { why, .. }) => {
                damage.get_or_insert(why);
                continue;
            }
        };
        end = batch.end();
        for (lsn, record, _) in batch.records() {
            let incarnation = batch.head().incarnation.0;
            match is_json {
                true => output::json_line(&record_json(&name, incarnation, lsn, &record))?,
                false => output::line(&record_line(incarnation, lsn, &record))?,
            }
        }
        if !output::is_read() {
            return Ok(());
        }
    }
    damage.map_or(Ok(()), Err).map_err(failed)?;
    match is_json {
        true => output::json_line(&json!({ "stream": name, "end": end.0, "state": state })),
        false => output::line(&format!("{name}: ends at {end}: no later batch is in the file")),
    }
}

fn record_line(incarnation: u64, lsn: Lsn, record: &Record<'_>) -> String {
    let Record { kind, is_carried, block, before, after, bytes } = *record;
    let carried = if is_carried { ", carried" } else { "" };
    let what = match kind {
        RecordKind::Image => format!("image of {before}, {} bytes", bytes.len()),
        RecordKind::Change => {
            format!("{before} to {}: {}", after.0, ranges(bytes))
        }
    };
    format!("{:>12}  incarnation {incarnation}  {block}  {what}{carried}", lsn.0)
}

/// Shows the ranges of a patch: offset and bytes.
fn ranges(patch: &[u8]) -> String {
    let Ok(ranges) = patch_ranges(patch) else { return format!("no patch, {}", shown(patch)) };
    ranges
        .iter()
        .map(|(offset, bytes)| format!("at {offset} {}", shown(bytes)))
        .collect::<Vec<_>>()
        .join(", ")
}

fn shown(bytes: &[u8]) -> String {
    match bytes.get(..SHOWN_BYTES).filter(|start| start.len() < bytes.len()) {
        Some(start) => format!("{}... ({} bytes)", hex::digits(start), bytes.len()),
        None => hex::digits(bytes),
    }
}

fn record_json(stream: &str, incarnation: u64, lsn: Lsn, record: &Record<'_>) -> Value {
    let Record { kind, is_carried, block, before, after, bytes } = *record;
    let mut value = json!({
        "stream": stream, "incarnation": incarnation, "lsn": lsn.0, "block": block.0, "before": before.0,
        "after": after.0, "carried": is_carried, "bytes": bytes.len()
    });
    match kind {
        RecordKind::Image => value["kind"] = "image".into(),
        RecordKind::Change => {
            value["kind"] = "change".into();
            let range =
                |(offset, bytes): &(usize, &[u8])| json!({ "offset": offset, "bytes": hex::digits(bytes) });
            value["ranges"] =
                patch_ranges(bytes).map(|ranges| ranges.iter().map(range).collect()).unwrap_or_default();
        }
    }
    value
}
