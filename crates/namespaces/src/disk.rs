//! Mounts that only one thread and its children see, and a small file system in memory.

use std::{panic::resume_unwind, path::Path, process::Command, thread};

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

fn mount(command: &mut Command) -> Result<(), String> {
    let output = command.output().map_err(|error| format!("mount: {error}"))?;
    match output.status.success() {
        true => Ok(()),
        false => Err(String::from_utf8_lossy(&output.stderr).trim().into()),
    }
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
