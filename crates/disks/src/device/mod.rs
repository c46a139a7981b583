//! A device: a fixed number of bytes that are read, written and made durable.
//!
//! The contract of every implementation:
//!
//! - A completed write is visible to every later read. It is **not durable**: until a sync, a loss
//!   of power may keep it, drop it, or keep any of its sectors, whatever happens to other writes.
//! - A sync that succeeds makes every write durable that had completed when it began.
//! - After a failed write, its bytes are there in any part. After a failed sync, all writes since
//!   the last success are in doubt, and every later sync fails.
//!
//! Callers do not overlap writes of the same bytes. Must not know what the bytes mean.

mod extents;
mod file;
mod simulated;

pub(crate) use self::file::write_zeros;
pub use self::{
    extents::{Extent, Extents},
    file::FileDevice,
    simulated::{DeviceFault, SECTOR, SimulatedDevice},
};
use crate::DiskError;

/// Bytes that one owner reads, writes and makes durable. See the [module](self) for the contract.
pub trait Device: Send + Sync {
    /// Returns the number of bytes.
    fn length(&self) -> u64;

    /// Fills `into` with the bytes at `offset`.
    ///
    /// # Errors
    /// The bytes cannot be read, or are beyond the end.
    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), DiskError>;

    /// Writes `from` at `offset`. Direct I/O needs a multiple of [`ALIGN`](crate::ALIGN) in both.
    ///
    /// # Errors
    /// The device fails or is full, or the bytes are beyond the end.
    fn write(&self, offset: u64, from: &[u8]) -> Result<(), DiskError>;

    /// Makes every completed write durable.
    ///
    /// # Errors
    /// The device fails, or an earlier sync failed.
    fn sync(&self) -> Result<(), DiskError>;
}
