//! `plexus perf --listen`: serves measurements from other processes and machines.

use std::{
    net::{IpAddr, SocketAddr},
    path::PathBuf,
};

use anyhow::{Context, bail};
use plexus_bench::perf::alone::{Listener, PORT, Served};
use plexus_interconnect::mesh::Key;
use serde_json::json;

use crate::output;

/// The clients that a listener accepts.
pub(super) struct AccessPolicy {
    /// Accepts clients that prove this key, which is in this file.
    pub(super) key: Option<(Key, PathBuf)>,
    /// Accepts all clients without authentication.
    pub(super) open: bool,
}

/// Serves at `address` (an IP address, with a port or without).
pub(super) fn run(
    address: &str,
    AccessPolicy { key, open }: AccessPolicy,
    once: bool,
    core: Option<usize>,
    json: bool,
) -> anyhow::Result<()> {
    let address = parse(address)?;
    if !address.ip().is_loopback() && key.is_none() && !open {
        bail!(
            "--listen {address}: other machines can reach this address; give both sides a key with --key FILE, or serve \
             every client with --open"
        );
    }
    if open {
        output::progress("warning: every client is served without authentication (--open)");
    }
    let option = key.as_ref().map_or_else(String::new, |(_, file)| format!(" --key {}", file.display()));
    let listener = Listener::bind(address, core, key.map(|(key, _)| key))?;
    let at = listener.address();
    let mut refused = None;
    match json {
        true => output::json(&json!({ "listening": at }))?,
        false => {
            let host = reachable_name(at);
            output::line(&format!("listening at {at}; measure with `plexus perf {host}{option}`"))?;
        }
    }
    loop {
        match listener.serve_one().context("cannot accept connections")? {
            Served::PerfSession { client, rail } => {
                output::progress(&format!("{client} has measured over {rail}"));
                if once {
                    return Ok(());
                }
            }
            Served::Refused { client, why } if once => bail!("{client}: {why}"),
            Served::Refused { client, why } => output::progress(&format!("{client}: {why}")),
            // Repeats are not printed, so that a peer cannot flood the terminal.
            Served::Unauthenticated { client, why } => {
                let refusal = Some((client.ip(), why));
                if refused != refusal
                    && let Some((_, why)) = &refusal
                {
                    output::progress(&format!("{client} was refused: {why}"));
                }
                refused = refusal;
            }
        }
    }
}

fn parse(text: &str) -> anyhow::Result<SocketAddr> {
    let address = text.parse::<SocketAddr>();
    let address = address.or_else(|_| text.parse::<IpAddr>().map(|ip| SocketAddr::new(ip, PORT)));
    address.with_context(|| {
        format!("--listen {text}: use an address of this machine as in 0.0.0.0 or 10.0.0.1:{PORT}")
    })
}

/// Returns the name under which others reach the listener.
fn reachable_name(at: SocketAddr) -> String {
    let name = if at.ip().is_unspecified() {
        rustix::system::uname().nodename().to_string_lossy().into_owned()
    } else {
        at.ip().to_string()
    };
    if at.port() == PORT { name } else { format!("{name}:{}", at.port()) }
}
