//! The identity of this machine, and its cores.

use rustix::thread::CpuSet;

use super::AloneError;

/// Returns a text that is equal for processes that can share memory: the same boot of the same
/// kernel and, because they use a local socket, the same network namespace and user. Empty if
/// unknown.
pub(super) fn identity() -> String {
    let Ok(boot) = std::fs::read_to_string("/proc/sys/kernel/random/boot_id") else { return String::new() };
    let Ok(namespace) = std::fs::read_link("/proc/self/ns/net") else { return String::new() };
    let user = rustix::process::getuid().as_raw();
    format!("{}/{}/{user}", boot.trim(), namespace.display())
}

/// Returns the cores that this process may use.
///
/// # Errors
/// A system call fails.
pub fn cores() -> Result<Vec<usize>, AloneError> {
    let set = rustix::thread::sched_getaffinity(None)
        .map_err(|error| AloneError::Machine(format!("which cores there are: {error}")))?;
    Ok((0..CpuSet::MAX_CPU).filter(|core| set.is_set(*core)).collect())
}

/// Pins this thread, and those that it starts, to `core`.
///
/// # Errors
/// There is no such core.
pub fn pin(core: usize) -> Result<(), AloneError> {
    let mut set = CpuSet::new();
    if core < CpuSet::MAX_CPU {
        set.set(core);
    }
    rustix::thread::sched_setaffinity(None, &set).map_err(|error| {
        let known = cores().unwrap_or_default();
        let known: Vec<String> = known.iter().map(ToString::to_string).collect();
        AloneError::Machine(format!("core {core}: {error}; this machine has {}", known.join(", ")))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_core_that_is_not_there_is_named_with_those_that_are() {
        let here = cores().unwrap();
        assert!(!here.is_empty());
        let said = pin(CpuSet::MAX_CPU - 1).unwrap_err().to_string();
        assert!(said.contains(&format!("core {}", CpuSet::MAX_CPU - 1)) && said.contains("this machine has"));
        assert!(pin(CpuSet::MAX_CPU).is_err());
        assert_eq!(identity(), identity());
        assert!(identity().contains("net:["), "{}", identity());
    }
}
