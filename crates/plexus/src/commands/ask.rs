//! Connections to a node that runs a command, and their timeouts.
//!
//! A suspended node still accepts connections, so each node must first answer a `status` request.
//! Every request with a single answer has a timeout.

use std::time::Duration;

use anyhow::{anyhow, bail};
use plexus_admin::{
    config::Config,
    control::{ANSWER_WITHIN, Control, ControlError, ControlResponse, on_its_host},
};
use serde_json::Value;

use super::cluster::local_nodes;
use crate::output;

/// The timeout of a request with one answer; longer than a view change takes in any profile.
pub(crate) const REQUEST_TIMEOUT: Duration = Duration::from_secs(60);

/// The interval at which a continuous command checks that its output still has a reader.
const READER_CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Connects to the node with this name, or to the first node of this machine that answers.
pub(crate) fn connect(config: &Config, node: Option<&str>) -> anyhow::Result<Control> {
    if let Some(name) = node {
        config.node(name)?;
        return answering(config, name).map_err(|error| anyhow!(on_its_host(config, error)));
    }
    let names = local_nodes(config)?.into_iter().map(|node| node.name.as_str());
    first_of(names, |name| answering(config, name))
        .map_err(|why| why.map_or_else(|| anyhow!("no node belongs on this machine"), anyhow::Error::from))
}

/// Connects to every running node of this machine.
pub(crate) fn connect_all(config: &Config) -> anyhow::Result<Vec<Control>> {
    let mut nodes = Vec::new();
    for node in local_nodes(config)? {
        match Control::connect(&config.dir, &node.name) {
            Ok(control) => nodes.push(control),
            Err(ControlError::NotRunning { .. }) => {}
            Err(error) => return Err(error.into()),
        }
    }
    if nodes.is_empty() {
        bail!("no node runs on this machine; start them with `plexus up -C {}`", config.dir.root().display());
    }
    Ok(nodes)
}

/// Connects to a node and checks that it answers.
pub(crate) fn answering(config: &Config, name: &str) -> Result<Control, ControlError> {
    let mut control = Control::connect(&config.dir, name)?;
    control.set_timeout(ANSWER_WITHIN)?;
    control.call("status", Value::Null, |_| ())?;
    control.set_timeout(REQUEST_TIMEOUT)?;
    Ok(control)
}

/// Returns the first successful result over these nodes. If all fail, returns the last error of a
/// running node, else that of a stopped one.
pub(crate) fn first_of<'a, T>(
    names: impl IntoIterator<Item = &'a str>,
    mut attempt: impl FnMut(&str) -> Result<T, ControlError>,
) -> Result<T, Option<ControlError>> {
    let mut why = None;
    for name in names {
        match attempt(name) {
            Ok(done) => return Ok(done),
            Err(ControlError::NotRunning { .. }) if why.is_some() => {}
            Err(error) => why = Some(error),
        }
    }
    Err(why)
}

/// Asks the user on the terminal, unless `yes`.
///
/// # Errors
/// The answer is not yes.
pub(crate) fn confirm(question: &str, yes: bool) -> anyhow::Result<()> {
    if yes {
        return Ok(());
    }
    output::progress(&format!("{question} Type yes:"));
    let mut answer = String::new();
    std::io::stdin().read_line(&mut answer)?;
    match answer.trim() {
        "yes" => Ok(()),
        _ => bail!("nothing was changed; to accept it without being asked, add --yes"),
    }
}

/// Runs a continuous command on a node until it ends or the output has no reader.
pub(crate) fn follow(
    mut control: Control,
    command: &str,
    request: Value,
    mut print: impl FnMut(Value) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    control.set_timeout(READER_CHECK_INTERVAL)?;
    control.ask(command, request)?;
    while output::is_read() {
        match control.hear() {
            Ok(ControlResponse::Progress(update)) => print(update)?,
            Ok(ControlResponse::Done(_)) => break,
            Err(ControlError::Silent { .. }) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// Parses the argument of `--wait SECONDS` into milliseconds.
///
/// # Errors
/// The number is not 0.001 s or more.
pub(crate) fn wait_ms(seconds: &str) -> Result<u64, String> {
    match seconds.parse() {
        Ok(seconds) if (0.001..=1e9).contains(&seconds) => Ok((seconds * 1e3) as u64),
        _ => Err("use a number of seconds, 0.001 or more".into()),
    }
}

#[cfg(test)]
mod tests {
    use plexus_admin::control::ProcessState;

    use super::*;

    #[test]
    fn the_first_node_that_succeeds_is_used_else_a_running_nodes_error_is_returned() {
        let down =
            |name: &str| ControlError::NotRunning { name: name.into(), dir: String::new(), last: None };
        let silent = || ControlError::Silent {
            name: "silent".into(),
            command: "status".into(),
            silence: Duration::from_secs(5),
            process: ProcessState::Stopped(7),
        };
        let attempt = |name: &str| match name {
            "up" => Ok(name.to_owned()),
            "silent" => Err(silent()),
            _ => Err(down(name)),
        };
        let of = |names: &[&str]| {
            first_of(names.iter().copied(), attempt).map_err(|why| why.map(|error| error.to_string()))
        };
        assert_eq!(of(&["down", "silent", "up", "silent"]), Ok("up".into()));
        assert_eq!(of(&["down", "silent", "down"]), Err(Some(silent().to_string())));
        assert_eq!(of(&["down"]), Err(Some(down("down").to_string())));
        assert_eq!(of(&[]), Err(None));
    }

    #[test]
    fn zero_and_malformed_wait_times_are_refused() {
        assert_eq!(
            (wait_ms("0.001"), wait_ms("1.5"), wait_ms("1e9")),
            (Ok(1), Ok(1500), Ok(1_000_000_000_000))
        );
        for bad in ["0", "-1", "1e10", "nan", "inf", "soon", ""] {
            assert!(wait_ms(bad).is_err(), "{bad}");
        }
    }
}
