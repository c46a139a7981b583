//! Where servers of a comparison may listen.

use std::net::{Ipv4Addr, TcpListener};

use anyhow::{Result, anyhow};

/// So many ports of this machine, all different, on which nobody listens now.
///
/// # Errors
/// There are none.
pub(crate) fn free_ports<const N: usize>() -> Result<[u16; N]> {
    // All are held until all are known.
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
