//! Starts other programs, with time limits and captured output.

use std::{
    fs::File,
    io::{Read, Seek},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};

use anyhow::{Context, Result, bail, ensure};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    process::{Pid, PidfdFlags, pidfd_open},
};
use serde_json::Value;

/// Returns the cargo that runs this program, to be run in the folder `root`.
#[must_use]
pub fn cargo(root: &Path) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root);
    command
}

/// Runs a program to its end; its output goes to the output of this process.
///
/// # Errors
/// The program cannot be started or reports a failure.
pub fn run(command: &mut Command) -> Result<()> {
    let status = command.status().with_context(|| format!("cannot start {}", line(command)))?;
    ensure!(status.success(), "{}: {status}", line(command));
    Ok(())
}

/// Runs a program to its end and returns its output.
///
/// # Errors
/// The program cannot be started or reports a failure.
pub fn output(command: &mut Command) -> Result<String> {
    let output = command.output().with_context(|| format!("cannot start {}", line(command)))?;
    let error = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{}: {}\n{error}", line(command), output.status);
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Runs a program to its end and returns its output; kills it after `limit`.
///
/// # Errors
/// The program cannot be started, reports a failure or exceeds the limit. The error has its output.
pub fn output_within(command: &mut Command, limit: Duration) -> Result<String> {
    // Files, not pipes: a child of the program may outlive it and keep a pipe open.
    let (out, err) = (CapturedOutput::new()?, CapturedOutput::new()?);
    command.stdin(Stdio::null()).stdout(out.stdio()?).stderr(err.stdio()?);
    let mut child = ChildGuard(command.spawn().with_context(|| format!("cannot start {}", line(command)))?);
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

/// Runs a program as [`output_within`] does and returns its output as JSON.
///
/// # Errors
/// As [`output_within`], or the output is not JSON.
pub fn json_within(command: &mut Command, limit: Duration) -> Result<Value> {
    let text = output_within(command, limit)?;
    serde_json::from_str(&text).with_context(|| format!("{} printed no JSON", line(command)))
}

/// Runs a program as [`json_within`] does and returns the list `key` of its output.
///
/// # Errors
/// As [`json_within`], or there is no such list.
pub fn list_within(command: &mut Command, limit: Duration, key: &str) -> Result<Vec<Value>> {
    match json_within(command, limit)?[key].take() {
        Value::Array(list) => Ok(list),
        _ => bail!("{} printed no list `{key}`", line(command)),
    }
}

/// Returns the number at `path` in JSON, such as `perf/0/latency_us/p50`.
///
/// # Errors
/// There is no such number.
pub fn number(json: &Value, path: &str) -> Result<f64> {
    let found = json.pointer(&format!("/{path}")).and_then(Value::as_f64);
    found.with_context(|| format!("the output has no number `{path}`"))
}

/// Builds a program with these arguments of cargo and returns its path.
///
/// # Errors
/// It does not build.
pub fn built(root: &Path, arguments: &[&str], name: &str) -> Result<PathBuf> {
    let mut cargo = cargo(root);
    let messages = output(cargo.args(arguments).args(["--message-format", "json-render-diagnostics"]))?;
    let found = messages
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok())
        .filter(|message| message["target"]["name"] == name)
        .find_map(|message| message["executable"].as_str().map(PathBuf::from));
    found.with_context(|| format!("cargo built no `{name}`"))
}

/// Builds the program `name` of a package in release mode and returns its path.
///
/// # Errors
/// It does not build.
pub fn built_program(root: &Path, package: &str, name: &str) -> Result<PathBuf> {
    built(root, &["build", "--release", "--package", package, "--bin", name], name)
}

/// The output of a program, captured in an unnamed file.
pub struct CapturedOutput(File);

impl CapturedOutput {
    /// Creates an empty file for the output.
    ///
    /// # Errors
    /// The file cannot be created.
    pub fn new() -> Result<Self> {
        Ok(Self(tempfile::tempfile().context("cannot make a temporary file")?))
    }

    /// Returns a stream for a program to write to.
    ///
    /// # Errors
    /// Too many files are open.
    pub fn stdio(&self) -> Result<Stdio> {
        Ok(self.0.try_clone()?.into())
    }

    /// Returns all output.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn text(mut self) -> Result<String> {
        let mut bytes = Vec::new();
        self.0.rewind()?;
        self.0.read_to_end(&mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }
}

/// A child process that is killed when its owner drops it.
pub struct ChildGuard(pub Child);

impl Drop for ChildGuard {
    fn drop(&mut self) {
        // The child has ended by itself unless an error is already being reported.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Waits until `child` ends; returns false after `limit`.
///
/// # Errors
/// The system cannot watch the process.
pub fn ends_within(child: &Child, limit: Duration) -> Result<bool> {
    let child = pidfd_open(Pid::from_child(child), PidfdFlags::empty())?;
    let limit = Timespec::try_from(limit)?;
    Ok(poll(&mut [PollFd::new(&child, PollFlags::IN)], Some(&limit))? > 0)
}

/// Formats the command as a user would type it.
fn line(command: &Command) -> String {
    let program = Path::new(command.get_program()).file_name().unwrap_or(command.get_program());
    let words = std::iter::once(program).chain(command.get_args());
    words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
}

/// Checks before anything is built or measured that this process is root and that these programs
/// are installed, each with the name of its package.
///
/// # Errors
/// The text names everything that is missing.
pub fn require(programs: &[(&str, &str)]) -> Result<()> {
    let mut missing = not_installed(programs);
    if !rustix::process::geteuid().is_root() {
        missing.push("only root may make network namespaces".into());
    }
    ensure!(missing.is_empty(), "nothing was started: {}", missing.join("; "));
    Ok(())
}

/// Returns a sentence for each of these programs that is not on the path.
#[must_use]
pub fn not_installed(programs: &[(&str, &str)]) -> Vec<String> {
    let missing = programs.iter().filter(|(program, _)| !found(program));
    missing.map(|(program, package)| format!("`{program}` is not installed (package {package})")).collect()
}

/// Returns true if `program` is on the path, or if it is an absolute path to a file.
#[must_use]
pub fn found(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(program).is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_missing_program_is_named_before_anything_starts() {
        let why = require(&[("sh", "dash"), ("no-such-a", "package-a"), ("no-such-b", "package-b")]);
        let why = why.expect_err("two are missing").to_string();
        assert!(why.contains("`no-such-a` is not installed (package package-a); `no-such-b`"), "{why}");
        assert!(!why.contains("dash"), "{why}");
    }

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn output_and_reason_of_failure_are_returned() {
        let minute = Duration::from_secs(60);
        assert_eq!(output_within(&mut shell("echo well"), minute).ok(), Some("well\n".into()));
        let why = output_within(&mut shell("echo so; echo and so >&2; exit 3"), minute)
            .expect_err("the script fails");
        let why = why.to_string();
        assert!(why.contains("exit status: 3") && why.contains("and so\nso\n"), "{why}");
    }

    #[test]
    fn program_that_hangs_is_killed() {
        let why = output_within(&mut shell("exec sleep 3600"), Duration::from_millis(1))
            .expect_err("the script hangs");
        assert!(why.to_string().contains("did not end within 0.001 s"), "{why}");
    }

    #[test]
    fn grandchild_that_keeps_the_output_open_is_not_waited_for() {
        let text = output_within(&mut shell("sleep 3600 & echo $!"), Duration::from_secs(60))
            .expect("the script ends");
        let child =
            text.trim().parse().ok().and_then(Pid::from_raw).expect("the script prints the process id");
        rustix::process::kill_process(child, rustix::process::Signal::KILL)
            .expect("the grandchild still runs");
    }
}
