//! The way to a node that is to do something: which node that is, and for how long it is waited for.
//!
//! A node that stands still takes connections all the same, for as long as there is room for them. So each is asked first how it is, and nothing that has
//! one answer is waited for without end.

use std::time::Duration;

use anyhow::{anyhow, bail};
use plexus_node::{
    config::Config,
    control::{ANSWER_WITHIN, Control, ControlError, ControlResponse},
};
use serde_json::Value;

use super::cluster::local_nodes;
use crate::output;

/// How long what has one answer may take: longer than any profile lets a view take that it waits for.
pub(crate) const DONE_WITHIN: Duration = Duration::from_secs(60);

/// How often what goes on for long looks whether anybody reads it.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// The node of this name, or the first of this machine that answers.
pub(crate) fn connect(config: &Config, node: Option<&str>) -> anyhow::Result<Control> {
    if let Some(name) = node {
        config.node(name)?;
        return Ok(answering(config, name)?);
    }
    let names = local_nodes(config)?.into_iter().map(|node| node.name.as_str());
    first_of(names, |name| answering(config, name))
        .map_err(|why| why.map_or_else(|| anyhow!("no node belongs on this machine"), anyhow::Error::from))
}

/// Every node of this machine that runs.
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
        bail!("no node of this machine runs; start them with `plexus up`");
    }
    Ok(nodes)
}

/// A node that answers.
pub(crate) fn answering(config: &Config, name: &str) -> Result<Control, ControlError> {
    let mut control = Control::connect(&config.dir, name)?;
    control.set_timeout(ANSWER_WITHIN)?;
    control.call("status", Value::Null, |_| ())?;
    control.set_timeout(DONE_WITHIN)?;
    Ok(control)
}

/// What comes of the first of these nodes that can; otherwise why the last cannot that runs, if one does.
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

/// Has a node do what goes on until it is over, or until nobody reads what is said of it.
pub(crate) fn follow(
    mut control: Control,
    command: &str,
    asked: Value,
    mut say: impl FnMut(Value) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    control.set_timeout(LOOK_EVERY)?;
    control.ask(command, asked)?;
    while output::is_read() {
        match control.hear() {
            Ok(ControlResponse::Progress(news)) => say(news)?,
            Ok(ControlResponse::Done(_)) => break,
            Err(ControlError::Silent { .. }) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// The milliseconds of `--wait SECONDS`.
///
/// # Errors
/// One line for the user.
pub(crate) fn wait_ms(seconds: &str) -> Result<u64, String> {
    match seconds.parse() {
        Ok(seconds) if (0.001..=1e9).contains(&seconds) => Ok((seconds * 1e3) as u64),
        _ => Err("use seconds, 0.001 or more".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_several_nodes_the_first_that_can_does_it_or_one_that_runs_says_why_not() {
        let down = |name: &str| ControlError::NotRunning { name: name.into(), dir: String::new() };
        let attempt = |name: &str| match name {
            "up" => Ok(name.to_owned()),
            "silent" => Err(ControlError::Silent { name: name.into(), command: "status".into() }),
            _ => Err(down(name)),
        };
        let of = |names: &[&str]| {
            first_of(names.iter().copied(), attempt).map_err(|why| why.map(|error| error.to_string()))
        };
        assert_eq!(of(&["down", "silent", "up", "silent"]), Ok("up".into()));
        assert_eq!(of(&["down", "silent", "down"]), Err(Some("silent does not answer to `status`".into())));
        assert_eq!(of(&["down"]), Err(Some(down("down").to_string())));
        assert_eq!(of(&[]), Err(None));
    }

    #[test]
    fn no_time_and_what_is_none_are_refused() {
        assert_eq!(
            (wait_ms("0.001"), wait_ms("1.5"), wait_ms("1e9")),
            (Ok(1), Ok(1500), Ok(1_000_000_000_000))
        );
        for bad in ["0", "-1", "1e10", "nan", "inf", "soon", ""] {
            assert!(wait_ms(bad).is_err(), "{bad}");
        }
    }
}
