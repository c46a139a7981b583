//! Checks of the machine for a node: cores, memory, addresses.

use std::{
    io,
    net::{SocketAddr, TcpListener},
};

use rustix::thread::CpuSet;

/// The machine does not have the resources in the configuration.
#[derive(Debug, thiserror::Error)]
pub enum MachineError {
    /// The address is in use.
    #[error(
        "{name}: the address {address} is in use by another program; stop it, or change `address` or `addresses` of {name} in cluster.toml"
    )]
    AddressInUse {
        /// The node.
        name: String,
        /// The address.
        address: SocketAddr,
    },
    /// The node cannot listen at the address.
    #[error(
        "{name}: cannot listen at {address}: {source}; change `address` or `addresses` of {name} in cluster.toml"
    )]
    Address {
        /// The node.
        name: String,
        /// The address.
        address: SocketAddr,
        /// The error of the system.
        source: io::Error,
    },
    /// The machine lacks a core, or does not let the node use it.
    #[error(
        "{name}: cannot be pinned to the cores {cores:?}: {source}; correct `cores` of {name} in cluster.toml"
    )]
    Cores {
        /// The node.
        name: String,
        /// The cores.
        cores: Vec<usize>,
        /// The error of the system.
        source: io::Error,
    },
    /// There is too little memory for the cache and the windows.
    #[error(
        "{name}: the cache and the windows of programs need {needed_mib} MiB of shared memory and {available_mib} MiB are available; lower `cache_mib` or `program_window_mib` in cluster.toml"
    )]
    Memory {
        /// The node.
        name: String,
        /// The needed memory in MiB.
        needed_mib: u64,
        /// The available memory in MiB.
        available_mib: u64,
    },
}

/// Checks that the node can listen at all of `addresses`, before it contacts its peers.
pub fn check_addresses(
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

/// Pins this thread and those that it starts to `cores`; with no cores it may run anywhere.
pub fn pin(name: &str, cores: &[usize]) -> Result<(), MachineError> {
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

/// Checks that the machine has `needed_bytes` of memory to share. The available memory may shrink
/// later; this finds needs that can never be met.
pub fn check_memory(name: &str, needed_bytes: u64) -> Result<(), MachineError> {
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

/// Returns `MemAvailable` in MiB.
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
