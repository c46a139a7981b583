//! Running other programs.

use std::{
    fs::File,
    io::{Read, Seek},
    path::Path,
    process::{Child, Command, Stdio},
    time::Duration,
};

use anyhow::{Context, Result, bail};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    process::{Pid, PidfdFlags, pidfd_open},
};

/// The cargo that runs this program, in the repository at `root`.
#[must_use]
pub fn cargo(root: &Path) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root);
    command
}

/// Runs to the end, output going where ours goes.
///
/// # Errors
/// It cannot be started, or says that it failed.
pub fn run(command: &mut Command) -> Result<()> {
    let status = command.status().with_context(|| format!("cannot start {}", line(command)))?;
    if !status.success() {
        bail!("{}: {status}", line(command));
    }
    Ok(())
}

/// Runs to the end and returns what it printed.
///
/// # Errors
/// It cannot be started, or says that it failed.
pub fn output(command: &mut Command) -> Result<String> {
    let output = command.output().with_context(|| format!("cannot start {}", line(command)))?;
    if !output.status.success() {
        bail!("{}: {}\n{}", line(command), output.status, String::from_utf8_lossy(&output.stderr));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The same for a program that may hang: it is killed after `limit`.
///
/// # Errors
/// It cannot be started, says that it failed, or does not end; with all that it printed.
pub fn output_within(command: &mut Command, limit: Duration) -> Result<String> {
    // Files, not pipes: what the program has started may outlive it and keep a pipe open.
    let (out, err) = (Said::new()?, Said::new()?);
    command.stdin(Stdio::null()).stdout(out.stdio()?).stderr(err.stdio()?);
    let mut child = Ended(command.spawn().with_context(|| format!("cannot start {}", line(command)))?);
    let ended = ends_within(&child.0, limit)?;
    let failure = match ended {
        false => format!("did not end within {} s", limit.as_secs_f32()),
        true => match child.0.wait()? {
            status if status.success() => return out.text(),
            status => status.to_string(),
        },
    };
    bail!("{}: {failure}\n{}{}", line(command), err.text()?, out.text()?)
}

/// What a program says, in a file without a name.
pub struct Said(File);

impl Said {
    /// Nothing yet.
    ///
    /// # Errors
    /// No file can be made.
    pub fn new() -> Result<Self> {
        Ok(Self(tempfile::tempfile().context("cannot make a temporary file")?))
    }

    /// Where a program is to write it.
    ///
    /// # Errors
    /// Too many files are open.
    pub fn stdio(&self) -> Result<Stdio> {
        Ok(self.0.try_clone()?.into())
    }

    /// All that was said.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn text(mut self) -> Result<String> {
        let mut bytes = Vec::new();
        self.0.rewind()?;
        self.0.read_to_end(&mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }
}

/// A child that does not outlive its owner.
pub struct Ended(pub Child);

impl Drop for Ended {
    fn drop(&mut self) {
        // It has ended by itself unless something failed; then there is nothing to learn from it.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Waits for the end of `child`; whether it came.
///
/// # Errors
/// The system cannot tell.
pub fn ends_within(child: &Child, limit: Duration) -> Result<bool> {
    let child = pidfd_open(Pid::from_child(child), PidfdFlags::empty())?;
    let limit = Timespec::try_from(limit)?;
    Ok(poll(&mut [PollFd::new(&child, PollFlags::IN)], Some(&limit))? > 0)
}

/// The command as one would type it.
fn line(command: &Command) -> String {
    let program = Path::new(command.get_program()).file_name().unwrap_or(command.get_program());
    let words = std::iter::once(program).chain(command.get_args());
    words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
}

/// Whether `program` is on the path.
#[must_use]
pub fn found(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(program).is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn a_program_says_what_it_says_and_why_it_failed() {
        let minute = Duration::from_secs(60);
        assert_eq!(output_within(&mut shell("echo well"), minute).ok(), Some("well\n".into()));
        let why =
            output_within(&mut shell("echo so; echo and so >&2; exit 3"), minute).expect_err("it failed");
        let why = why.to_string();
        assert!(why.contains("exit status: 3") && why.contains("and so\nso\n"), "{why}");
    }

    #[test]
    fn a_program_that_hangs_is_ended() {
        let why =
            output_within(&mut shell("exec sleep 3600"), Duration::from_millis(1)).expect_err("it hangs");
        assert!(why.to_string().contains("did not end within 0.001 s"), "{why}");
    }

    #[test]
    fn a_child_that_keeps_the_output_open_keeps_nobody_waiting() {
        let text =
            output_within(&mut shell("sleep 3600 & echo $!"), Duration::from_secs(60)).expect("it ends");
        let child = text.trim().parse().ok().and_then(Pid::from_raw).expect("it said whom it started");
        rustix::process::kill_process(child, rustix::process::Signal::KILL).expect("that one still runs");
    }
}
