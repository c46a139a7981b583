//! `plexus perf --listen`: serves those who measure from elsewhere.

use std::net::{IpAddr, SocketAddr};

use anyhow::{Context, bail};
use plexus_bench::perf::alone::{Listener, PORT, Served};
use plexus_interconnect::mesh::Key;
use serde_json::json;

use crate::output;

/// Who is let in.
pub(super) struct Guard {
    /// Who has this key.
    pub(super) key: Option<Key>,
    /// Whoever calls.
    pub(super) open: bool,
}

/// Serves at `address` (an IP address, with a port or without).
pub(super) fn run(
    address: &str,
    Guard { key, open }: Guard,
    once: bool,
    core: Option<usize>,
    json: bool,
) -> anyhow::Result<()> {
    let address = parse(address)?;
    if !address.ip().is_loopback() && key.is_none() && !open {
        bail!(
            "--listen {address}: other machines reach that; name a key that both sides have with --key FILE, or serve \
             whoever calls with --open"
        );
    }
    if open {
        output::progress("whoever reaches this address is served: nobody is authenticated (--open)");
    }
    let listener = Listener::bind(address, core, key)?;
    let at = listener.address();
    let mut stranger = None;
    match json {
        true => output::json(&json!({ "listening": at }))?,
        false => output::line(&format!("listening at {at}; measure with `plexus perf {}`", called(at)))?,
    }
    loop {
        match listener.serve_one().context("cannot accept connections")? {
            Served::Session { client, rail } => {
                output::progress(&format!("{client} has measured over {rail}"));
                if once {
                    return Ok(());
                }
            }
            Served::Refused { client, why } if once => bail!("{client}: {why}"),
            Served::Refused { client, why } => output::progress(&format!("{client}: {why}")),
            // Once in a row: nobody from outside fills the screen.
            Served::Unauthenticated { client, why } => {
                let who = Some((client.ip(), why));
                if stranger != who
                    && let Some((_, why)) = &who
                {
                    output::progress(&format!("{client} was turned away: {why}"));
                }
                stranger = who;
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

/// How others may call it.
fn called(at: SocketAddr) -> String {
    let name = if at.ip().is_unspecified() {
        rustix::system::uname().nodename().to_string_lossy().into_owned()
    } else {
        at.ip().to_string()
    };
    if at.port() == PORT { name } else { format!("{name}:{}", at.port()) }
}
