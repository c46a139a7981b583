//! The space in which a process number has its meaning: a PID namespace of one boot of a host. A
//! container has a namespace of its own, in which numbers name other processes than on its host.

use std::{fmt, os::unix::fs::MetadataExt, str::FromStr, sync::OnceLock};

use crate::hex;

/// A PID namespace of one boot of a host.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ProcessSpace {
    /// The random identifier of the boot.
    pub boot: u128,
    /// The number of the namespace, unique in a boot while it exists.
    pub namespace: u64,
}

impl ProcessSpace {
    /// Returns the space of this process; `None` if the system does not tell it.
    pub fn own() -> Option<Self> {
        static OWN: OnceLock<Option<ProcessSpace>> = OnceLock::new();
        *OWN.get_or_init(|| {
            let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
            let boot = hex::number(&boot.trim().replace('-', ""), 32)?;
            let namespace = std::fs::metadata("/proc/self/ns/pid").ok()?.ino();
            Some(Self { boot, namespace })
        })
    }
}

impl fmt::Display for ProcessSpace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}.{}", self.boot, self.namespace)
    }
}

impl FromStr for ProcessSpace {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let (boot, namespace) = text.split_once('.').ok_or(())?;
        let (boot, namespace) = (hex::number(boot, 32).ok_or(())?, namespace.parse().map_err(|_| ())?);
        Ok(Self { boot, namespace })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_space_is_read_as_written() {
        let own = ProcessSpace::own().unwrap();
        assert_eq!(own.to_string().parse(), Ok(own));
        let other = ProcessSpace { boot: 7, namespace: u64::MAX };
        assert_eq!(other.to_string().parse(), Ok(other));
        assert!(["", "-", "7.8", "x.8"].iter().all(|text| text.parse::<ProcessSpace>().is_err()));
    }
}
