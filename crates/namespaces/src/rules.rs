//! Packet rules of a host, in an nftables table of their own. They drop or reject packets that it
//! sends or receives.
//!
//! They need `nft`.

use crate::Namespace;

/// The direction of packets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Direction {
    /// Packets that the host receives.
    In,
    /// Packets that the host sends.
    Out,
}

impl Direction {
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
    /// Creates the table for rules. Call it once before the first rule.
    ///
    /// # Errors
    /// Returns the message of the failed command.
    pub fn allow_rules(&self) -> Result<(), String> {
        self.run("nft add table inet faults")?;
        Direction::BOTH.into_iter().try_for_each(|direction| {
            let (name, hook) = (direction.name(), direction.hook());
            self.run(&format!("nft add chain inet faults {name} {{ type filter hook {hook} priority 0 ; }}"))
        })
    }

    /// Adds an nftables rule for packets in this direction, such as `ip daddr 10.0.0.1 drop`.
    ///
    /// # Errors
    /// Returns the message of the failed command.
    pub fn rule(&self, direction: Direction, rule: &str) -> Result<(), String> {
        self.run(&format!("nft add rule inet faults {} {rule}", direction.name()))
    }

    /// Removes all rules.
    ///
    /// # Errors
    /// Returns the message of the failed command.
    pub fn clear_rules(&self) -> Result<(), String> {
        Direction::BOTH
            .into_iter()
            .try_for_each(|direction| self.run(&format!("nft flush chain inet faults {}", direction.name())))
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
        let target = listener.local_addr().unwrap();
        let connects = || host.inside(|| TcpStream::connect(target)).is_ok();
        assert!(connects());
        for direction in Direction::BOTH {
            host.rule(direction, &format!("tcp dport {} reject with tcp reset", target.port())).unwrap();
            assert!(!connects(), "{direction:?}");
            host.clear_rules().unwrap();
            assert!(connects(), "{direction:?}");
        }
        assert!(host.rule(Direction::In, "nonsense").is_err());
    }
}
