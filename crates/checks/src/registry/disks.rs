//! Two disks, each with a copy of the registry: the content in the system's memory, and the content
//! on the disk.
//!
//! A power failure loses or tears a write until its sync has succeeded. A sync that fails drops its
//! data and marks it as written. A renamed file may revert until its directory was synced. The end
//! of a process loses nothing.

use plexus_registry::protocol::{COPIES, Found, Step};

use crate::harness::chance::Chance;

/// The bytes that a disk writes atomically.
const SECTOR: usize = 32;

#[derive(Clone, Default)]
struct File {
    cached: Vec<u8>,
    stored: Vec<u8>,
    dirty: bool,
}

#[derive(Default)]
struct Disk {
    fresh: Option<File>,
    /// The file with the name.
    named: Option<File>,
    /// The file that had the name at the last sync of the directory, if it is another.
    before: Option<Option<File>>,
    broken: bool,
}

/// The frequency of faults per thousand steps.
#[derive(Clone, Copy)]
pub struct Faults {
    /// The rate at which a step fails.
    pub step: u64,
    /// The rate at which a disk breaks, fills up, or works again.
    pub disk: u64,
}

/// The disks of one node.
pub struct Disks {
    disks: [Disk; COPIES],
    /// The fault rates; zero after healing.
    pub faults: Faults,
}

impl Disks {
    /// Creates empty disks.
    pub fn new(faults: Faults) -> Self {
        Self { disks: Default::default(), faults }
    }

    /// Returns the content that a process finds.
    pub fn found(&self) -> [Found; COPIES] {
        self.disks
            .each_ref()
            .map(|disk| disk.named.as_ref().map_or(Found::Missing, |file| Found::Bytes(file.cached.clone())))
    }

    /// Carries out a step; returns true if it reports success.
    pub fn step(&mut self, copy: usize, step: &Step, chance: &mut Chance) -> bool {
        let disk = &mut self.disks[copy];
        if self.faults.disk == 0 {
            disk.broken = false;
        } else if let Chance::Drawn(random) = chance
            && random.permille(self.faults.disk)
        {
            disk.broken = !disk.broken;
        }
        let fails = disk.broken || chance.fault(self.faults.step, 1) > 0;
        match step {
            Step::Write(image) => {
                let len = if fails { chance.of(2) * image.len() / 2 } else { image.len() };
                disk.fresh = Some(File { cached: image[..len].into(), stored: Vec::new(), dirty: true });
            }
            Step::Sync => {
                let file = disk.fresh.as_mut().expect("written before");
                if fails {
                    file.stored = torn(file, chance);
                } else if file.dirty {
                    file.stored = file.cached.clone();
                }
                file.dirty = false;
            }
            Step::Replace => {
                if !fails || chance.of(2) == 1 {
                    let old = std::mem::replace(&mut disk.named, disk.fresh.take());
                    disk.before.get_or_insert(old);
                }
            }
            Step::SyncName => {
                if !fails || chance.of(2) == 1 {
                    disk.before = None;
                }
            }
        }
        !fails
    }

    /// Ends the process.
    pub fn process_ends(&mut self) {
        self.disks.iter_mut().for_each(|disk| disk.fresh = None);
    }

    /// Cuts the power: data that was not synced is on the disk in part or not at all.
    pub fn power_fails(&mut self, chance: &mut Chance) {
        for disk in &mut self.disks {
            disk.fresh = None;
            if let Some(before) = disk.before.take()
                && chance.of(2) == 1
            {
                disk.named = before;
            }
            if let Some(file) = &mut disk.named {
                if file.dirty {
                    file.stored = torn(file, chance);
                }
                *file = File { cached: file.stored.clone(), stored: file.stored.clone(), dirty: false };
            }
        }
    }

    /// Loses a copy, or changes its bytes.
    pub fn damage(&mut self, copy: usize, chance: &mut Chance) {
        let named = &mut self.disks[copy].named;
        let at = named.as_ref().map_or(0, |file| chance.of(file.cached.len().max(1)));
        match named {
            Some(file) if chance.of(2) == 1 && at < file.cached.len() => {
                file.cached[at] ^= 4;
                file.stored = file.cached.clone();
            }
            _ => (*named, self.disks[copy].before) = (None, None),
        }
    }
}

/// Returns the content on the disk of a file that was not synced: nothing, half, all, or some
/// sectors.
fn torn(file: &File, chance: &mut Chance) -> Vec<u8> {
    let mut bytes = file.cached.clone();
    match chance.of(4) {
        0 => bytes.clear(),
        1 => bytes.truncate(bytes.len() / 2),
        2 => {}
        _ => {
            let sectors = bytes.len().div_ceil(SECTOR).max(1);
            let gone = match chance {
                Chance::Drawn(random) => random.below(sectors as u64) as usize,
                Chance::Every { .. } => sectors - 1,
            };
            bytes.iter_mut().skip(gone * SECTOR).take(SECTOR).for_each(|byte| *byte = 0);
        }
    }
    bytes
}
