//! What a node needs of the machine: cores, memory, its address.

use std::{
    io,
    net::{SocketAddr, TcpListener},
};

use rustix::thread::CpuSet;

/// The machine does not have what the configuration asks for.
#[derive(Debug, thiserror::Error)]
pub enum MachineError {
    /// The address is taken.
    #[error(
        "{name}: the address {address} is in use by another program; stop it, or change `address` or `addresses` of {name} in cluster.toml"
    )]
    AddressInUse {
        /// The node.
        name: String,
        /// One of its addresses.
        address: SocketAddr,
    },
    /// The address cannot be listened at.
    #[error(
        "{name}: cannot listen at {address}: {source}; change `address` or `addresses` of {name} in cluster.toml"
    )]
    Address {
        /// The node.
        name: String,
        /// One of its addresses.
        address: SocketAddr,
        /// The system's reason.
        source: io::Error,
    },
    /// A core that the machine does not have, or does not let the node use.
    #[error(
        "{name}: cannot be pinned to the cores {cores:?}: {source}; correct `cores` of {name} in cluster.toml"
    )]
    Cores {
        /// The node.
        name: String,
        /// The cores.
        cores: Vec<usize>,
        /// The system's reason.
        source: io::Error,
    },
    /// Too little memory for the cache and the windows.
    #[error(
        "{name}: the cache and the windows of programs need {needed_mib} MiB of shared memory and {available_mib} MiB are available; lower `cache_mib` or `program_window_mib` in cluster.toml"
    )]
    Memory {
        /// The node.
        name: String,
        /// What they need.
        needed_mib: u64,
        /// What there is.
        available_mib: u64,
    },
}

/// Whether the node will be able to listen at all of `addresses`, said before its peers are bothered.
pub(crate) fn check_addresses(
    name: &str,
    mut addresses: impl Iterator<Item = SocketAddr>,
) -> Result<(), MachineError> {
    addresses.try_for_each(|address| match TcpListener::bind(address) {
        Ok(_) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
            Err(MachineError::AddressInUse { name: name.into(), address })
        }
        Err(source) => Err(MachineError::Address { name: name.into(), address, source }),
    })
}

/// Keeps this thread, and those that it starts, on `cores`; anywhere when there are none.
pub(crate) fn pin(name: &str, cores: &[usize]) -> Result<(), MachineError> {
    if cores.is_empty() {
        return Ok(());
    }
    let mut set = CpuSet::new();
    cores.iter().for_each(|core| set.set(*core));
    rustix::thread::sched_setaffinity(None, &set).map_err(|error| MachineError::Cores {
        name: name.into(),
        cores: cores.into(),
        source: error.into(),
    })
}

/// Whether the machine has memory for `needed_bytes` that are shared. It may change its mind later; this finds what
/// can never work.
pub(crate) fn check_memory(name: &str, needed_bytes: u64) -> Result<(), MachineError> {
    let Some(available_mib) = std::fs::read_to_string("/proc/meminfo").ok().as_deref().and_then(available)
    else {
        return Ok(());
    };
    let needed_mib = needed_bytes.div_ceil(1 << 20);
    match needed_mib <= available_mib {
        true => Ok(()),
        false => Err(MachineError::Memory { name: name.into(), needed_mib, available_mib }),
    }
}

/// `MemAvailable` in MiB.
fn available(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.split_whitespace().next()?.parse::<u64>().ok().map(|kib| kib / 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_taken_address_is_named() {
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = taken.local_addr().unwrap();
        let free = "127.0.0.1:0".parse().unwrap();
        assert!(check_addresses("n1", [free].into_iter()).is_ok());
        let line = check_addresses("n1", [free, address].into_iter()).unwrap_err().to_string();
        assert!(
            line.starts_with(&format!("n1: the address {address} is in use by another program")),
            "{line}"
        );
        assert!(check_addresses("n1", ["192.0.2.1:7400".parse().unwrap()].into_iter()).is_err());
    }

    #[test]
    fn the_kernels_figure_is_read() {
        assert_eq!(available("MemTotal: 99 kB\nMemAvailable:   2097152 kB\n"), Some(2048));
        assert_eq!(available("nothing"), None);
        assert!(check_memory("n1", 1).is_ok());
        let line = check_memory("n1", (u64::from(u32::MAX) << 20) - 1).unwrap_err().to_string();
        assert!(line.contains("need 4294967295 MiB"), "{line}");
    }
}
