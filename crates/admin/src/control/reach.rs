//! Queries of nodes on any host: directly over the control socket, else through a node of this host
//! that forwards them.

use std::{thread, time::Duration};

use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::{Control, ControlError, Seen, seen::decoded};
use crate::{
    control::{ANSWER_WITHIN, Forwarded},
    status::Status,
    {
        config::{Config, NodeConfig, this_host},
        layout::ClusterDir,
    },
};

/// The longest that a node may take longer than the node to which it forwards a command.
const ON_TOP: Duration = Duration::from_secs(2);

/// Sends a command to a node through another one, `gateway`, which runs on this host.
fn forward_through(
    dir: &ClusterDir,
    gateway: &str,
    (node, command, args): (&str, &str, &Value),
    timeout: Duration,
) -> Result<Forwarded, ControlError> {
    let request = json!({
        "node": node, "within_ms": timeout.as_millis() as u64, "request": { "command": command, "args": args },
    });
    let mut control = Control::connect(dir, gateway)?;
    control.set_timeout(timeout + ON_TOP)?;
    let answer = control.call("forward", request, |_| {})?;
    Ok(serde_json::from_value(answer).unwrap_or_else(|error| Forwarded::Error(error.to_string())))
}

/// Sends a command to a node through the first of `gateways` that forwards it; `None` if none does.
pub fn forward<'a>(
    dir: &ClusterDir,
    gateways: impl IntoIterator<Item = &'a str>,
    request: (&str, &str, &Value),
    timeout: Duration,
) -> Option<Forwarded> {
    let mut gateways = gateways.into_iter().filter(|gateway| *gateway != request.0);
    // A node that is starting, ending or hanging forwards nothing; the next one may.
    gateways.find_map(|gateway| forward_through(dir, gateway, request, timeout).ok())
}

/// Runs a command once on the node called `name`, on whatever host it is. Only a node of this host
/// reports progress.
///
/// # Errors
/// See [`ControlError`].
pub fn call_anywhere(
    config: &Config,
    (name, command, args): (&str, &str, &Value),
    timeout: Duration,
    progress: impl FnMut(Value),
) -> Result<Value, ControlError> {
    let error = match Control::connect(&config.dir, name) {
        Ok(mut control) => {
            control.set_timeout(timeout)?;
            return control.call(command, args.clone(), progress);
        }
        Err(error) => error,
    };
    let host = config.host_of(name).filter(|host| *host != this_host());
    let is_up = |name: &&str| Control::connect(&config.dir, name).is_ok();
    let gateway = || config.nodes.iter().map(|node| node.name.as_str()).find(is_up);
    let Some((host, gateway)) = host.and_then(|host| Some((host, gateway()?))) else { return Err(error) };
    let refused = |what: String| Err(ControlError::Refused { name: name.into(), what });
    // The gateway says before the timeout that there is no answer.
    let within = timeout.saturating_sub(ON_TOP);
    match forward_through(&config.dir, gateway, (name, command, args), within)? {
        Forwarded::Ok(answer) => Ok(answer),
        Forwarded::Error(what) => refused(what),
        Forwarded::Unreachable(why) => Err(ControlError::Unreachable { name: name.into(), why }),
        Forwarded::Down => refused(format!("it is down; start it with `plexus up` on {host}")),
        Forwarded::Removed => refused("it does not belong to the cluster".into()),
    }
}

impl<T: DeserializeOwned + Send> Seen<T> {
    /// Asks all nodes in `names` at once, on whatever hosts they are; the results are in their
    /// order.
    pub fn of_cluster(
        config: &Config,
        names: &[&str],
        command: &str,
        timeout: Duration,
    ) -> Vec<(String, Self)> {
        Self::elsewhere(config, Self::of_all(&config.dir, names, command, timeout), command, timeout)
    }

    /// Asks those nodes again that do not run on this host. `direct` has the results of asking all
    /// of them directly.
    pub fn elsewhere(
        config: &Config,
        direct: Vec<(String, Self)>,
        command: &str,
        timeout: Duration,
    ) -> Vec<(String, Self)> {
        let useless: Vec<_> = (direct.iter())
            .filter(|(_, seen)| seen.alive().is_none())
            .map(|(name, _)| name.clone())
            .collect();
        let gateways = || {
            let names = config.nodes.iter().map(|node| node.name.as_str());
            names.filter(|name| !useless.iter().any(|useless| useless == name))
        };
        let ask = |name: &str| {
            let Ok((_, node)) = config.node(name) else { return Self::Down };
            let said = forward(&config.dir, gateways(), (name, command, &Value::Null), timeout);
            Self::forwarded(node, said)
        };
        thread::scope(|scope| {
            let ask = &ask;
            let asked: Vec<_> = direct
                .into_iter()
                .map(|(name, seen)| match seen {
                    Self::Down => (name.clone(), Err(scope.spawn(move || ask(&name)))),
                    seen => (name, Ok(seen)),
                })
                .collect();
            let seen = asked.into_iter().map(|(name, seen)| {
                let failed = |_| Self::Silent(format!("{name}: could not be asked"));
                let seen = seen.unwrap_or_else(|asking| asking.join().unwrap_or_else(failed));
                (name, seen)
            });
            seen.collect()
        })
    }

    /// Returns the state of a node that has no control socket here, after its answer through
    /// another node; `None`: no node could forward the request.
    fn forwarded(node: &NodeConfig, said: Option<Forwarded>) -> Self {
        let (name, host, is_here) = (&node.name, &node.host, node.host == this_host());
        match said {
            Some(Forwarded::Ok(answer)) => decoded(name, answer),
            Some(Forwarded::Error(why)) => Self::Silent(format!("{name}: {why}")),
            Some(Forwarded::Removed) => Self::Removed,
            // Without a socket here, a node of this host does not run, even if it is a member yet.
            Some(Forwarded::Down) => Self::Down,
            Some(Forwarded::Unreachable(_)) | None if is_here => Self::Down,
            Some(Forwarded::Unreachable(why)) => {
                Self::Unreachable(format!("{name}: member, not reachable from here: {why}"))
            }
            None => Self::Unreachable(format!(
                "{name}: not reachable from here: it belongs on {host}, and no node runs on this machine that could ask it"
            )),
        }
    }
}

/// Queries the status of all nodes in `names` at once, on whatever hosts they are.
pub fn status_of_cluster(config: &Config, names: &[&str]) -> Vec<(String, Seen<Status>)> {
    Seen::of_cluster(config, names, "status", ANSWER_WITHIN)
}

/// Explains why there is no connection to a node that belongs on another host.
pub fn on_its_host(config: &Config, error: ControlError) -> String {
    match &error {
        ControlError::NotRunning { name, .. } => match config.node(name) {
            Ok((_, node)) if node.host != this_host() => {
                format!("{name} belongs on {}, and not on this machine: run the command there", node.host)
            }
            _ => error.to_string(),
        },
        _ => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_elsewhere_is_down_only_if_a_member_says_so() {
        let node = |host: &str| NodeConfig {
            host: host.into(),
            ..NodeConfig::new(0, "n1", ([127, 0, 0, 1], 7).into(), Vec::new())
        };
        let (here, there) = (node(&this_host()), node("elsewhere"));
        let seen = |node: &NodeConfig, said: Option<Forwarded>| Seen::<u8>::forwarded(node, said);
        let lost = || Some(Forwarded::Unreachable("its connection was lost".into()));
        assert_eq!(seen(&there, Some(Forwarded::Ok(json!(7)))), Seen::Alive(Box::new(7)));
        assert_eq!(seen(&there, Some(Forwarded::Down)), Seen::Down);
        assert_eq!(seen(&there, Some(Forwarded::Removed)), Seen::Removed);
        assert_eq!(seen(&here, lost()), Seen::Down);
        assert_eq!(seen(&here, None), Seen::Down);
        let why = |seen| match seen {
            Seen::Unreachable(why) | Seen::Silent(why) => why,
            seen => panic!("{seen:?}"),
        };
        assert_eq!(why(seen(&there, lost())), "n1: member, not reachable from here: its connection was lost");
        assert!(why(seen(&there, None)).contains("it belongs on elsewhere, and no node runs"));
        assert!(why(seen(&there, Some(Forwarded::Ok(json!("x"))))).contains("another version"));
    }
}
