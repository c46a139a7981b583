//! The table `[interconnect]` of `cluster.toml`: settings for the links between all nodes.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// The longest peer timeout.
const MAX_PEER_TIMEOUT_MS: u32 = 60_000;

/// The longest interval between two probes of a silent path.
const LONGEST_PROBE_MS: u32 = 1000;

/// The number of probe intervals after which a silent path counts as lost.
const PROBES: u32 = 3;

/// The encryption of rails over a network. Shared memory never leaves its host.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Encrypt {
    /// Encrypts between nodes of different hosts.
    #[default]
    Auto,
    /// Encrypts between all nodes.
    Always,
    /// Never encrypts, because the network is private.
    Never,
}

impl Encrypt {
    /// Returns the word in the configuration.
    pub fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Always => "always",
            Self::Never => "never",
        }
    }
}

/// The table `[interconnect]`.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Interconnect {
    /// The encryption of rails over a network.
    pub encrypt: Encrypt,
    /// The time in milliseconds after which an unreachable node counts as lost.
    pub peer_timeout_ms: u32,
    /// The interval in milliseconds between two probes of a silent path.
    pub probe_ms: u32,
    /// The libfabric provider of rails of kind ofi; `None` takes the first of verbs, efa and tcp
    /// that a host has.
    pub ofi_provider: Option<String>,
}

impl Default for Interconnect {
    fn default() -> Self {
        Self { encrypt: Encrypt::default(), peer_timeout_ms: 1000, probe_ms: 20, ofi_provider: None }
    }
}

impl Interconnect {
    pub(super) fn check(&self) -> Result<(), String> {
        let Self { peer_timeout_ms, probe_ms, .. } = *self;
        if let Some(provider) = &self.ofi_provider {
            let fits = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "_-;".contains(c);
            if provider.is_empty() || !provider.chars().all(fits) {
                return Err(format!(
                    "[interconnect] ofi_provider = {provider:?}: use a name that `fi_info -l` lists, as in \"verbs\""
                ));
            }
            if provider == "shm" {
                return Err(
                    "[interconnect] ofi_provider = \"shm\": use the rail shm, which needs no libfabric"
                        .into(),
                );
            }
        }
        if !(1..=LONGEST_PROBE_MS).contains(&probe_ms) {
            return Err(format!("[interconnect] probe_ms = {probe_ms}: use 1 to {LONGEST_PROBE_MS}"));
        }
        let least = PROBES * probe_ms;
        if !(least..=MAX_PEER_TIMEOUT_MS).contains(&peer_timeout_ms) {
            return Err(format!(
                "[interconnect] peer_timeout_ms = {peer_timeout_ms}: use {least} (three times probe_ms) to {MAX_PEER_TIMEOUT_MS}"
            ));
        }
        Ok(())
    }

    /// Returns `peer_timeout_ms` as a duration.
    pub fn timeout(&self) -> Duration {
        Duration::from_millis(self.peer_timeout_ms.into())
    }

    /// Returns `probe_ms` as a duration.
    pub fn probe(&self) -> Duration {
        Duration::from_millis(self.probe_ms.into())
    }
}
