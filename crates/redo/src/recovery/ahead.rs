//! A device that is read in order: while the caller works on what was read, a thread reads what is
//! behind it. So what is read is at least as new as the read before.

use std::{
    sync::{Mutex, PoisonError},
    thread::Scope,
};

use plexus_base::threads::{Beside, beside};
use plexus_disks::{Buffer, Device, DiskError};

/// The least bytes of a read behind which more is read.
const LEAST: usize = 1 << 20;

/// A device with a thread that reads ahead.
pub(super) struct ReadAhead<'scope, 'env> {
    device: &'env dyn Device,
    scope: &'scope Scope<'scope, 'env>,
    next: Mutex<Option<NextRead<'scope>>>,
}

/// The bytes that are being read: at this offset, so many.
type NextRead<'scope> = (u64, usize, Beside<'scope, Result<Buffer, DiskError>>);

impl<'scope, 'env> ReadAhead<'scope, 'env> {
    /// Reads `device` on threads of `scope`.
    pub(super) fn new(device: &'env dyn Device, scope: &'scope Scope<'scope, 'env>) -> Self {
        Self { device, scope, next: Mutex::new(None) }
    }
}

impl Device for ReadAhead<'_, '_> {
    fn length(&self) -> u64 {
        self.device.length()
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), DiskError> {
        if into.len() < LEAST {
            return self.device.read(offset, into);
        }
        let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
        match next.take() {
            Some((at, length, read)) if (at, length) == (offset, into.len()) => {
                let bytes = read.join()?;
                into.copy_from_slice(&bytes[..into.len()]);
            }
            _ => self.device.read(offset, into)?,
        }
        let behind = offset + into.len() as u64;
        let length = (into.len() as u64).min(self.length() - behind) as usize;
        if length >= LEAST {
            let device = self.device;
            let read = beside(self.scope, move || {
                let mut bytes = Buffer::zeroed(length);
                device.read(behind, &mut bytes[..length]).map(|()| bytes)
            });
            *next = Some((behind, length, read));
        }
        Ok(())
    }

    fn write(&self, offset: u64, from: &[u8]) -> Result<(), DiskError> {
        self.device.write(offset, from)
    }

    fn sync(&self) -> Result<(), DiskError> {
        self.device.sync()
    }
}
