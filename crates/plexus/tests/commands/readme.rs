//! The commands of the README, run as they are written.

use std::{
    fs,
    io::{BufRead, BufReader, Read},
    os::unix::process::CommandExt,
    path::Path,
    process::{Command, Stdio},
};

use crate::common::{Cluster, program};

/// Returns the commands under "First steps".
fn first_steps() -> Vec<String> {
    let readme = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../README.md")).unwrap();
    let steps = readme.split("## First steps").nth(1).unwrap().split("##").next().unwrap();
    steps.lines().filter_map(|line| line.strip_prefix("    ")).map(str::to_owned).collect()
}

#[test]
fn the_first_steps_work_as_written() {
    let cluster = Cluster::nowhere();
    let path = format!("{}:{}", program().parent().unwrap().display(), std::env::var("PATH").unwrap());
    let mut environment = String::new();
    let steps = first_steps();
    assert!(steps.len() > 10 && steps.last().unwrap().starts_with("plexus down"), "{steps:?}");
    for step in steps {
        if step.starts_with("export ") {
            environment += &format!("{step}\n");
            continue;
        }
        let endless = ["plexus stat -i", "plexus group watch"].iter().any(|start| step.starts_with(start));
        // Shorter measurements are as good a test.
        let step = match step.starts_with("plexus bench") || step.starts_with("plexus perf") {
            true => step.replacen(" #", " --seconds 0.05 #", 1),
            false => step,
        };
        let mut shell = Command::new("sh");
        shell.arg("-c").arg(format!("{environment}{step}")).current_dir(cluster.parent()).env("PATH", &path);
        shell.env_remove("PLEXUS_DIR").stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
        let mut shell = shell.spawn().unwrap();
        let mut out = BufReader::new(shell.stdout.take().unwrap());
        let mut said = String::new();
        out.read_line(&mut said).unwrap();
        if endless {
            let group = rustix::process::Pid::from_raw(shell.id() as i32).unwrap();
            rustix::process::kill_process_group(group, rustix::process::Signal::KILL).unwrap();
        }
        out.read_to_string(&mut said).unwrap();
        let output = shell.wait_with_output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() || endless && errors.is_empty(), "{step}: {said}{errors}");
        assert!(!said.is_empty(), "{step}: {errors}");
    }
}
