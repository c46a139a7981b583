//! Measures a disk of a mirrored group without a cluster, in turns with fio on its file.

use std::{
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use anyhow::Result;

use super::rows::*;
use crate::{
    command::{built, found, json_within, number},
    compare::{
        figure::{Measured, NamedFigure},
        fio::fio,
    },
};

const TIMEOUT: Duration = Duration::from_secs(120);

/// The bytes of the slots, which the program has written.
const SLOTS: u64 = 256 << 20;

/// The place of the slots in the file.
const SLOTS_START: u64 = 2 << 20;

/// The figures: the field of the program, and the options of fio for the same.
const WORKS: [(NamedFigure, &str, &str); 5] = [
    (READ_16K, "read_16k", "--rw=randread --bs=16k"),
    (READ_16K_DEEP, "read_16k_deep", "--rw=randread --bs=16k --numjobs=8"),
    (READ_1M, "read_1m", "--rw=randread --bs=1m"),
    (WRITE_16K, "write_16k", "--rw=randwrite --bs=16k --fdatasync=1"),
    (WRITE_1M, "write_1m", "--rw=randwrite --bs=1m --fdatasync=1"),
];

/// The program that measures a disk.
pub(super) struct Direct(PathBuf);

impl Direct {
    /// Builds the program in release mode.
    ///
    /// # Errors
    /// It does not build.
    pub(super) fn build(root: &Path) -> Result<Self> {
        let example = ["build", "--release", "--package", "plexus-disks", "--example", "disk_speed"];
        built(root, &example, "disk_speed").map(Self)
    }

    /// Measures a new disk, then fio on its file; also the map of a large group.
    pub(super) fn measure(&self) -> Measured {
        let folder = tempfile::tempdir()?;
        let file = folder.path().join("disk");
        let ours = json_within(Command::new(&self.0).arg(&file), TIMEOUT)?;
        let mut figures = Vec::new();
        for (figure, field, options) in WORKS {
            figures.push((figure, number(&ours, field)?));
            if found(FIO) {
                let job = fio(&file, SLOTS, &format!("{options} --offset={SLOTS_START}"))?;
                figures.push((figure.by(FIO), number(&job, &iops(options))?));
            }
        }
        if !found(FIO) {
            println!("fio is not installed: nothing is beside the figures of a disk");
        }
        for (figure, field) in MAP {
            figures.push((figure, number(&ours, field)?));
        }
        Ok(figures)
    }
}

/// Returns the field of fio's report with the requests in a second.
pub(super) fn iops(options: &str) -> String {
    format!("{}/iops", if options.contains("read") { "read" } else { "write" })
}
