//! What a host drops or refuses of what it sends and of what it gets: rules of nftables in a table of its own.
//!
//! It needs `nft`.

use crate::Namespace;

/// Which way packets go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Way {
    /// Those that the host gets.
    In,
    /// Those that it sends.
    Out,
}

impl Way {
    const BOTH: [Self; 2] = [Self::In, Self::Out];

    fn name(self) -> &'static str {
        match self {
            Self::In => "in",
            Self::Out => "out",
        }
    }

    fn hook(self) -> &'static str {
        match self {
            Self::In => "input",
            Self::Out => "output",
        }
    }
}

impl Namespace {
    /// Makes room for rules; once, before the first of them.
    ///
    /// # Errors
    /// The system's.
    pub fn allow_rules(&self) -> Result<(), String> {
        self.run("nft add table inet faults")?;
        Way::BOTH.into_iter().try_for_each(|way| {
            let (name, hook) = (way.name(), way.hook());
            self.run(&format!("nft add chain inet faults {name} {{ type filter hook {hook} priority 0 ; }}"))
        })
    }

    /// From now on this holds for packets that go this way: what nftables calls a rule, as `ip daddr 10.0.0.1 drop`.
    ///
    /// # Errors
    /// The system's.
    pub fn rule(&self, way: Way, rule: &str) -> Result<(), String> {
        self.run(&format!("nft add rule inet faults {} {rule}", way.name()))
    }

    /// Takes every rule away.
    ///
    /// # Errors
    /// The system's.
    pub fn clear_rules(&self) -> Result<(), String> {
        Way::BOTH
            .into_iter()
            .try_for_each(|way| self.run(&format!("nft flush chain inet faults {}", way.name())))
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, TcpListener, TcpStream};

    use super::*;
    use crate::need;

    #[test]
    fn rules_hold_until_they_are_cleared() {
        let host = match need(&[("nft", "nftables")]).and_then(|()| Namespace::new()) {
            Ok(host) => host,
            Err(why) => return eprintln!("skipped: {why}"),
        };
        host.allow_rules().unwrap();
        let listener = host.inside(|| TcpListener::bind((Ipv4Addr::LOCALHOST, 0))).unwrap();
        let door = listener.local_addr().unwrap();
        let connects = || host.inside(|| TcpStream::connect(door)).is_ok();
        assert!(connects());
        for way in Way::BOTH {
            host.rule(way, &format!("tcp dport {} reject with tcp reset", door.port())).unwrap();
            assert!(!connects(), "{way:?}");
            host.clear_rules().unwrap();
            assert!(connects(), "{way:?}");
        }
        assert!(host.rule(Way::In, "nonsense").is_err());
    }
}
