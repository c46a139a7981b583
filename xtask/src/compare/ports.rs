//! Free ports for the servers of a comparison.

use std::net::{Ipv4Addr, TcpListener};

use anyhow::{Result, anyhow};

/// Returns `N` different ports of this machine that are free now.
///
/// # Errors
/// There are none.
pub(crate) fn free_ports<const N: usize>() -> Result<[u16; N]> {
    // All listeners stay open until all ports are known, so the ports differ.
    let listeners = [(); N].map(|()| TcpListener::bind((Ipv4Addr::LOCALHOST, 0)));
    let mut ports = [0; N];
    for (port, listener) in ports.iter_mut().zip(&listeners) {
        *port = listener.as_ref().map_err(|error| anyhow!("no free port: {error}"))?.local_addr()?.port();
    }
    Ok(ports)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_different() {
        let [first, second] = free_ports().expect("there are some");
        assert!(first != second && first > 0 && second > 0, "{first} {second}");
    }
}
