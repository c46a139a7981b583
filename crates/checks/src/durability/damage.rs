//! Flipped bits in blocks on disk and in redo streams, while all nodes are down. What cannot be
//! healed is refused by name, and never silently wrong.

use std::{collections::BTreeSet, fmt, path::PathBuf, thread, time::Duration};

use plexus_admin::config::Config;
use plexus_disks::{DATA_START, FileDevice};
use plexus_redo::stream::{
    protocol::Lsn,
    reader::{StreamError, StreamReader},
};
use plexus_sim::Random;

use super::{
    campaign::{NODES, Settings, Work, cluster, kept},
    clients::Clients,
    workload::Workload,
};
use crate::executive::{disks::Disks, nodes::GROUP_DISK};

/// The blocks that are damaged at a time.
const DAMAGED: usize = 24;

/// The time for which clients work before the damage.
const WORK: Duration = Duration::from_millis(2500);

/// The damage done, and its effect.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Report {
    /// The blocks that were damaged on disk.
    pub damaged: u64,
    /// Those among them that were refused by name. The others were healed.
    pub refused: u64,
    /// The streams that were damaged.
    pub streams: u64,
    /// The blocks that were refused because of a damaged stream.
    pub refused_of_streams: u64,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { damaged, refused, streams, refused_of_streams } = self;
        writeln!(
            f,
            "{damaged} blocks with flipped bits: {} healed, {refused} refused by name",
            damaged - refused
        )?;
        writeln!(
            f,
            "{streams} streams with flipped bits: {refused_of_streams} blocks refused by name, all others open"
        )
    }
}

/// Damages blocks and streams, each on a cluster of its own.
///
/// # Errors
/// A block is wrong, or refused without need.
pub fn run(
    program: PathBuf,
    random: &mut Random,
    report: &mut Report,
    say: &mut (dyn FnMut(&str) + Send),
) -> Result<(), String> {
    for checkpoint_seconds in [600, 1] {
        say(&format!("bits flipped in blocks, checkpoints every {checkpoint_seconds} s"));
        let settings = Settings { work: Work::Blocks, networks: 0, checkpoint_seconds, hot: 150, copies: 1 };
        let refused = damaged(program.clone(), settings, random, |disks, length, random| {
            let mut bytes = disks.copy(GROUP_DISK);
            let blocks: BTreeSet<u64> = (0..DAMAGED).map(|_| random.below(settings.hot)).collect();
            for block in &blocks {
                for _ in 0..=random.below(3) {
                    flip(&mut bytes, DATA_START + block * length, length, random);
                }
            }
            disks.restore(GROUP_DISK, bytes);
            report.damaged += blocks.len() as u64;
            Ok(Box::new(move |block, why: &str| blocks.contains(&block) && names(why, block)))
        })?;
        report.refused += refused;
    }
    // Shortly after a checkpoint the last segments have all records.
    for _ in 0..6 {
        if report.streams == 2 {
            break;
        }
        say("bits flipped in a stream");
        let settings =
            Settings { work: Work::Blocks, networks: 0, checkpoint_seconds: 600, hot: 1500, copies: 1 };
        let refused = damaged(program.clone(), settings, random, |disks, _, random| {
            let mut batches = Vec::new();
            for name in disks.names().into_iter().filter(|name| name != GROUP_DISK) {
                let of_stream = batches_of(disks, &name).map_err(|why| format!("{name}: {why}"))?;
                batches.extend(of_stream.into_iter().map(|batch| (name.clone(), batch)));
            }
            if batches.is_empty() {
                return Ok(Box::new(|_, _| false));
            }
            let (name, (from, length)) = random.pick(&batches).clone();
            let mut bytes = disks.copy(&name);
            flip(&mut bytes, from, length, random);
            disks.restore(&name, bytes);
            report.streams += 1;
            // Only the master of the block names the stream.
            let is_reason = move |why: &str| why.contains(&name) || why.contains("its redo is incomplete");
            Ok(Box::new(move |block, why: &str| names(why, block) && is_reason(why)))
        })?;
        report.refused_of_streams += refused;
    }
    Ok(())
}

/// Returns true if a refusal names the block.
fn names(why: &str, block: u64) -> bool {
    why.split(|letter: char| !letter.is_ascii_digit()).any(|number| number == block.to_string())
}

/// Judges a refusal of a block.
type Judge = Box<dyn Fn(u64, &str) -> bool>;

/// Lets clients work, kills all nodes, damages the disks, starts the nodes and reads all blocks.
/// `damage` gets the length of a block. Returns the number of refused blocks, all of which are
/// those that the judge expects.
fn damaged(
    program: PathBuf,
    settings: Settings,
    random: &mut Random,
    damage: impl FnOnce(&Disks, u64, &mut Random) -> Result<Judge, String>,
) -> Result<u64, String> {
    let mut nodes = cluster(program, settings)?;
    let clients = Clients::new(nodes.dir(), NODES, settings.hot);
    let run = || {
        clients.beside(random.bits(), || {
            thread::sleep(WORK);
            nodes.all().into_iter().for_each(|node| nodes.kill(node));
            Ok(())
        })?;
        let config = Config::load(&nodes.dir()).map_err(|why| why.to_string())?;
        let disks = nodes.data().ok_or("no disks that can fail")?;
        let expects = damage(&disks.data, config.block_size.bytes() as u64, random)?;
        nodes.all().into_iter().try_for_each(|node| nodes.up(node))?;
        nodes.agreed(&nodes.all(), 0)?;
        clients.compare(random.below(NODES as u64) as usize)?;
        let counts = clients.counts(0)?;
        let refused = (0..).zip(&counts).filter_map(|(block, counts)| Some((block, counts.as_ref().err()?)));
        let refused: Vec<(u64, &String)> = refused.collect();
        if let Some((block, why)) = refused.iter().find(|(block, why)| !expects(*block, why)) {
            return Err(format!("block {block} is refused: {why}"));
        }
        match refused.len() < counts.len() {
            true => Ok(refused.len() as u64),
            false => Err(format!("all blocks are refused: {}", refused[0].1)),
        }
    };
    let ran = run();
    ran.map_err(|why| kept(&mut nodes, format!("damage, {settings:?}: {why}")))
}

/// Flips a bit of a range.
fn flip(bytes: &mut [u8], from: u64, length: u64, random: &mut Random) {
    bytes[(from + random.below(length)) as usize] ^= 1 << random.below(8);
}

/// Returns offset and length of the batches of a stream that have another behind them.
fn batches_of(disks: &Disks, name: &str) -> Result<Vec<(u64, u64)>, StreamError> {
    let device = FileDevice::open(&disks.path(name))?;
    let mut reader = StreamReader::open(&device)?;
    let geometry = reader.header().geometry;
    let mut batches: Vec<(Lsn, Lsn)> = Vec::new();
    while let Some(batch) = reader.next_batch()? {
        batches.push((batch.head().lsn, batch.end()));
    }
    batches.pop();
    Ok(batches.into_iter().map(|(start, end)| (geometry.offset(start), end.0 - start.0)).collect())
}
