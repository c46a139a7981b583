//! Mirrors of Linux: btrfs and md on two loop devices, DRBD. They need root; what they have made
//! is always removed again.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use tempfile::TempDir;

use super::{direct::iops, rows::*};
use crate::{
    command::{found, number, output_within},
    compare::{
        figure::{Measured, NamedFigure},
        fio::fio,
    },
};

const TIMEOUT: Duration = Duration::from_secs(60);

/// The bytes of a device, and of the file or range that is measured.
const DEVICE: u64 = 512 << 20;
const MEASURED: u64 = 128 << 20;

/// The works, with the options of fio.
const WORKS: [(NamedFigure, &str); 3] = [
    (MIRROR_WRITE, "--rw=write --bs=4k --fdatasync=1"),
    (MIRROR_READ, "--rw=randread --bs=16k"),
    (MIRROR_LARGE, "--rw=randread --bs=1m"),
];

/// Two loop devices over files. Dropping it unmounts and stops what is on them.
struct Devices {
    folder: TempDir,
    devices: Vec<String>,
    array: Option<PathBuf>,
}

impl Devices {
    fn new() -> Result<Self> {
        ensure!(rustix::process::geteuid().is_root(), "only root may make loop devices");
        let mut made = Self { folder: tempfile::tempdir()?, devices: Vec::new(), array: None };
        for number in 0..2 {
            let file = made.folder.path().join(format!("device{number}"));
            // Written once, so that no write finds the file without its room.
            let zeros = Command::new("dd")
                .args(["if=/dev/zero", "bs=1M", "status=none"])
                .args([format!("count={}", DEVICE >> 20), format!("of={}", file.display())])
                .status()?;
            ensure!(zeros.success(), "the file of a loop device was not written");
            let made_here = tool("losetup", &["--find", "--show", "--direct-io=on", &text(&file)])?;
            made.devices.push(made_here.trim().to_owned());
        }
        Ok(made)
    }

    fn mount_point(&self) -> PathBuf {
        self.folder.path().join("mount")
    }
}

impl Drop for Devices {
    fn drop(&mut self) {
        // What was not made is not removed, and the error that led here is the one to report.
        let _ = tool("umount", &[&text(&self.mount_point())]);
        if let Some(array) = &self.array {
            let _ = tool("mdadm", &["--stop", &text(array)]);
        }
        for device in &self.devices {
            let _ = tool("losetup", &["--detach", device]);
        }
    }
}

fn text(path: &Path) -> String {
    path.display().to_string()
}

fn tool(program: &str, arguments: &[&str]) -> Result<String> {
    output_within(Command::new(program).args(arguments), TIMEOUT)
}

/// Returns true if the kernel has this file system or these devices, as a module too.
fn kernel_has(list: &str, name: &str, module: &str) -> bool {
    let has = || fs::read_to_string(list).is_ok_and(|text| text.contains(name));
    has() || (tool("modprobe", &[module]).is_ok() && has())
}

/// Measures a file or device that is mirrored.
fn measure(file: &Path, system: &'static str) -> Measured {
    WORKS
        .into_iter()
        .map(|(figure, options)| {
            let job = fio(file, MEASURED, options).context("fio")?;
            let rate = number(&job, &iops(options))?;
            ensure!(rate > 0.0, "nothing was done");
            let value = if figure == MIRROR_LARGE { rate } else { 1e9 / rate };
            Ok((figure.by(system), value))
        })
        .collect()
}

/// Measures a file on btrfs with two copies.
pub(super) fn btrfs() -> Measured {
    ensure!(found("mkfs.btrfs"), "mkfs.btrfs is not installed (package btrfs-progs)");
    ensure!(kernel_has("/proc/filesystems", "btrfs", "btrfs"), "the kernel has no btrfs");
    let made = Devices::new()?;
    let [one, other] = &made.devices[..] else { unreachable!("two devices") };
    tool("mkfs.btrfs", &["-q", "-f", "-d", "raid1", "-m", "raid1", one, other])?;
    fs::create_dir(made.mount_point())?;
    tool("mount", &[one, &text(&made.mount_point())])?;
    let file = made.mount_point().join("file");
    fs::write(&file, vec![7; MEASURED as usize])?;
    tool("sync", &[])?;
    measure(&file, BTRFS)
}

/// Measures an array of md with two copies.
pub(super) fn md() -> Measured {
    ensure!(kernel_has("/proc/mdstat", "raid1", "raid1"), "the kernel has no md");
    ensure!(found("mdadm"), "mdadm is not installed");
    let mut made = Devices::new()?;
    let array = PathBuf::from("/dev/md/plexus-bench");
    let options = ["--create", &text(&array), "--run", "--level=1", "--raid-devices=2", "--assume-clean"];
    made.array = Some(array.clone());
    let devices: Vec<_> = made.devices.iter().map(String::as_str).collect();
    tool("mdadm", &[&options[..], &devices].concat())?;
    measure(&array, MD)
}

/// Says that DRBD is not measured.
pub(super) fn drbd() -> Measured {
    ensure!(kernel_has("/proc/modules", "drbd", "drbd"), "the kernel has no DRBD");
    anyhow::bail!("DRBD needs two hosts, and is not measured on one machine")
}
