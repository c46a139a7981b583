//! The limits of the disk: writes that are synced one by one, and sequential reads. `fio` measures
//! both if it is installed; otherwise a loop of this program measures the syncs.

use std::{
    fs::File,
    os::unix::fs::FileExt,
    path::PathBuf,
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use tempfile::TempDir;

use super::rows::*;
use crate::{
    command::{found, number},
    compare::{figure::Measured, fio::fio},
};

/// The bytes of a write: those of a batch of redo with some changes.
const WRITE: usize = 4096;

/// The bytes of the file.
const FILE: usize = 64 << 20;

/// The duration of a measurement.
const TIME: Duration = Duration::from_secs(1);

/// A file on the file system of temporary clusters.
pub(super) struct Disk {
    folder: TempDir,
    has_fio: bool,
}

impl Disk {
    pub(super) fn new() -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let file = File::create(folder.path().join("file"))?;
        let chunk = vec![1; 1 << 20];
        (0..FILE).step_by(chunk.len()).try_for_each(|at| file.write_all_at(&chunk, at as u64))?;
        file.sync_all()?;
        Ok(Self { folder, has_fio: found("fio") })
    }

    /// Returns the name of the program that measures the disk.
    pub(super) fn name(&self) -> &'static str {
        if self.has_fio { "fio" } else { "a loop of write and fdatasync" }
    }

    fn file(&self) -> PathBuf {
        self.folder.path().join("file")
    }

    /// Measures writes of 4 KiB, each with a sync, one after the other.
    pub(super) fn syncs(&self) -> Measured {
        let per_second = if self.has_fio {
            let job = fio(&self.file(), FILE as u64, &format!("--rw=write --bs={WRITE} --fdatasync=1"))?;
            number(&job, "write/iops")?
        } else {
            let file = File::options().write(true).open(self.file())?;
            let (start, bytes, mut done) = (Instant::now(), [7; WRITE], 0);
            while start.elapsed() < TIME {
                file.write_all_at(&bytes, (done * WRITE % FILE) as u64)?;
                file.sync_data()?;
                done += 1;
            }
            done as f64 / start.elapsed().as_secs_f64()
        };
        ensure!(per_second > 0.0, "no write was synced");
        Ok(vec![(SYNCS, per_second)])
    }

    /// Measures reads of 1 MiB, one after the other.
    pub(super) fn reads(&self) -> Measured {
        ensure!(self.has_fio, "fio is not installed");
        let job = fio(&self.file(), FILE as u64, "--rw=read --bs=1m")?;
        Ok(vec![(READS, number(&job, "read/bw_bytes")? / 1e6)])
    }
}
