//! A device in memory that loses and tears what was not synced, and fails on request.
//!
//! It decides nothing by itself. Its user draws from a seed, or enumerates, which sectors survive a
//! loss of power and which operation fails. It is never slow: a simulation reports the end of an
//! operation as late as it wants.

use std::{
    io,
    sync::{Mutex, MutexGuard, PoisonError},
};

use super::Device;
use crate::DiskError;

/// The bytes that the device writes atomically.
pub const SECTOR: usize = 512;

/// A fault of the next operation of its kind.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DeviceFault {
    /// The next read returns an error.
    ReadFails,
    /// The next write returns an error. Its bytes are there until the next loss of power.
    WriteFails,
    /// The next write finds no room and changes nothing.
    Full,
    /// The next write succeeds at this offset instead of its own.
    Misdirected(u64),
    /// The next sync returns an error, and the writes since the last one are gone.
    SyncFails,
}

/// A device in memory. See the [module](self).
pub struct SimulatedDevice(Mutex<Contents>);

#[derive(Clone)]
struct Contents {
    /// The bytes after a loss of power, without the writes that were not synced.
    durable: Vec<u8>,
    /// The bytes that reads see.
    current: Vec<u8>,
    unsynced: Vec<UnsyncedWrite>,
    fault: Option<DeviceFault>,
    has_failed: bool,
}

#[derive(Clone)]
struct UnsyncedWrite {
    offset: usize,
    bytes: Vec<u8>,
}

impl SimulatedDevice {
    /// Creates a device of `length` zeros.
    #[must_use]
    pub fn new(length: u64) -> Self {
        let zeros = vec![0; length as usize];
        let current = zeros.clone();
        Self(Mutex::new(Contents {
            durable: zeros,
            current,
            unsynced: Vec::new(),
            fault: None,
            has_failed: false,
        }))
    }

    /// Makes the next operation of its kind fail.
    pub fn fail_next(&self, fault: DeviceFault) {
        self.contents().fault = Some(fault);
    }

    /// Ends the process that issued the last write, during that write. `survives` returns for each
    /// of its sectors whether it was written. Without a write since the last sync, nothing changes.
    pub fn interrupt_last(&self, survives: impl FnOnce(usize) -> Vec<bool>) {
        let mut contents = self.contents();
        let Some(last) = contents.unsynced.pop() else { return };
        contents.unsynced.extend(last.parts(survives));
        contents.show();
    }

    /// Cuts the power. `survives` is called for each write that was not synced, and returns for
    /// each of its sectors whether it is on the disk.
    pub fn lose_power(&self, mut survives: impl FnMut(usize) -> Vec<bool>) {
        let mut contents = self.contents();
        let unsynced = std::mem::take(&mut contents.unsynced);
        contents.unsynced = unsynced.iter().flat_map(|write| write.parts(&mut survives)).collect();
        contents.show();
        contents.harden();
        (contents.fault, contents.has_failed) = (None, false);
    }

    /// Changes durable bytes in place, as a disk that returns wrong ones.
    pub fn damage(&self, offset: u64, change: impl FnOnce(&mut [u8])) {
        let mut contents = self.contents();
        change(&mut contents.durable[offset as usize..]);
        contents.show();
    }

    fn contents(&self) -> MutexGuard<'_, Contents> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Contents {
    /// Takes the fault if it is one of those that `is` selects.
    fn take_fault(&mut self, is: impl FnOnce(&DeviceFault) -> bool) -> Option<DeviceFault> {
        self.fault.take_if(|fault| is(fault))
    }

    /// Lets reads see the durable bytes and the writes after them.
    fn show(&mut self) {
        self.current.clone_from(&self.durable);
        for UnsyncedWrite { offset, bytes } in &self.unsynced {
            self.current[*offset..offset + bytes.len()].copy_from_slice(bytes);
        }
    }

    fn harden(&mut self) {
        self.durable.clone_from(&self.current);
        self.unsynced.clear();
    }

    fn check(&self, offset: u64, len: usize) -> Result<usize, DiskError> {
        let (expected, found) = (offset.saturating_add(len as u64), self.current.len() as u64);
        if expected > found {
            return Err(DiskError::Truncated { path: PATH.into(), found, expected });
        }
        Ok(offset as usize)
    }
}

impl UnsyncedWrite {
    /// Returns the sectors that survive, each run of them as a write of its own.
    fn parts(&self, survives: impl FnOnce(usize) -> Vec<bool>) -> Vec<Self> {
        let sectors = self.bytes.chunks(SECTOR).enumerate();
        let survives = survives(self.bytes.len().div_ceil(SECTOR));
        let mut parts: Vec<Self> = Vec::new();
        for ((index, sector), _) in sectors.zip(survives).filter(|(_, survives)| *survives) {
            let offset = self.offset + index * SECTOR;
            match parts.last_mut().filter(|last| last.offset + last.bytes.len() == offset) {
                Some(last) => last.bytes.extend_from_slice(sector),
                None => parts.push(Self { offset, bytes: sector.to_vec() }),
            }
        }
        parts
    }
}

const PATH: &str = "simulated device";

fn failure(what: &'static str, kind: io::ErrorKind) -> DiskError {
    DiskError::io(what, PATH)(kind.into())
}

impl Device for SimulatedDevice {
    fn length(&self) -> u64 {
        self.contents().current.len() as u64
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), DiskError> {
        let mut contents = self.contents();
        let at = contents.check(offset, into.len())?;
        if contents.take_fault(|fault| *fault == DeviceFault::ReadFails).is_some() {
            return Err(failure("reading", io::ErrorKind::Other));
        }
        into.copy_from_slice(&contents.current[at..at + into.len()]);
        Ok(())
    }

    fn write(&self, offset: u64, from: &[u8]) -> Result<(), DiskError> {
        let mut contents = self.contents();
        let is_for_writes = |fault: &DeviceFault| {
            matches!(fault, DeviceFault::WriteFails | DeviceFault::Full | DeviceFault::Misdirected(_))
        };
        let fault = contents.take_fault(is_for_writes);
        let offset = match fault {
            Some(DeviceFault::Full) => return Err(failure("writing", io::ErrorKind::StorageFull)),
            Some(DeviceFault::Misdirected(elsewhere)) => elsewhere,
            _ => offset,
        };
        let at = contents.check(offset, from.len())?;
        contents.current[at..at + from.len()].copy_from_slice(from);
        contents.unsynced.push(UnsyncedWrite { offset: at, bytes: from.to_vec() });
        match fault {
            Some(DeviceFault::WriteFails) => Err(failure("writing", io::ErrorKind::Other)),
            _ => Ok(()),
        }
    }

    fn sync(&self) -> Result<(), DiskError> {
        let mut contents = self.contents();
        if contents.take_fault(|fault| *fault == DeviceFault::SyncFails).is_some() {
            // As a page cache does: what could not be written is dropped and reported once.
            contents.has_failed = true;
            contents.unsynced.clear();
            contents.show();
        }
        if contents.has_failed {
            return Err(failure("making writes durable", io::ErrorKind::Other));
        }
        contents.harden();
        Ok(())
    }
}
