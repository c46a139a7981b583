//! Mounts that only one thread and its children see, a small file system in memory, and block
//! devices over files.

use std::{
    fs::File,
    panic::resume_unwind,
    path::{Path, PathBuf},
    process::Command,
    thread,
};

use rustix::thread::UnshareFlags;

/// Runs a function on a thread whose mounts only it and the threads and processes that it starts
/// see. The mounts disappear with the last of them, however they end.
///
/// # Errors
/// Returns the reason why this is not possible here, so that a test can be skipped.
pub fn with_own_mounts<R: Send>(act: impl FnOnce() -> R + Send) -> Result<R, String> {
    let entered = || {
        #[allow(
            deprecated,
            reason = "its other form is unsafe for flags that make threads share less memory or fewer descriptors; this is none"
        )]
        rustix::thread::unshare(UnshareFlags::NEWNS)
            .map_err(|error| format!("a mount namespace: {error}"))?;
        mount(Command::new("mount").args(["--make-rprivate", "/"]))?;
        Ok(act())
    };
    thread::scope(|scope| scope.spawn(entered).join().unwrap_or_else(|panic| resume_unwind(panic)))
}

/// Runs a function on a thread for which an empty file system of `mib` MiB is mounted at the
/// directory `at`. Processes that the function starts see it too. It disappears with the last of
/// them.
///
/// # Errors
/// Returns the reason why it cannot be mounted here, so that a test can be skipped.
pub fn on_small_disk<R: Send>(at: &Path, mib: u32, act: impl FnOnce() -> R + Send) -> Result<R, String> {
    with_own_mounts(|| {
        let size = format!("size={mib}m");
        mount(Command::new("mount").args(["-t", "tmpfs", "-o", &size, "tmpfs"]).arg(at))?;
        Ok(act())
    })?
}

/// A block device over a file. It disappears when this value and all others that have it open are
/// gone, however this process ends.
pub struct LoopDevice {
    path: PathBuf,
    /// Keeps the device.
    _open: File,
}

impl LoopDevice {
    /// Creates a device of `mib` MiB with sectors of `sector_bytes` over a new sparse file.
    ///
    /// # Errors
    /// Returns the reason why there can be none here, so that a test can be skipped.
    pub fn new(file: &Path, mib: u64, sector_bytes: u32) -> Result<Self, String> {
        let io = |error: std::io::Error| format!("a loop device: {error}");
        File::create_new(file).and_then(|file| file.set_len(mib << 20)).map_err(io)?;
        let (sectors, options) = (sector_bytes.to_string(), ["--find", "--show", "--sector-size"]);
        let path = output(Command::new("losetup").args(options).arg(sectors).arg(file))?;
        let path = PathBuf::from(path.trim());
        let open = File::open(&path).map_err(io);
        // While the device is open, this only marks it: it disappears with its last user.
        output(Command::new("losetup").arg("--detach").arg(&path))?;
        Ok(Self { path, _open: open? })
    }

    /// Returns the path of the device.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

fn output(command: &mut Command) -> Result<String, String> {
    let output = command.output().map_err(|error| format!("{}: {error}", command.get_program().display()))?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into()),
        false => Err(String::from_utf8_lossy(&output.stderr).trim().into()),
    }
}

fn mount(command: &mut Command) -> Result<(), String> {
    output(command).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{fs, io::ErrorKind};

    #[test]
    fn a_small_disk_is_full_and_only_its_thread_sees_it() {
        let at = std::env::temp_dir().join(format!("small-disk-{}", std::process::id()));
        fs::create_dir(&at).unwrap();
        let written = on_small_disk(&at, 1, || {
            fs::write(at.join("a"), "x").unwrap();
            fs::write(at.join("b"), vec![0; 2 << 20]).map_err(|error| error.kind())
        });
        let outside = fs::read_dir(&at).unwrap().count();
        fs::remove_dir(&at).unwrap();
        match written {
            Ok(written) => assert_eq!((written, outside), (Err(ErrorKind::StorageFull), 0)),
            Err(why) => eprintln!("skipped: {why}"),
        }
    }
}
