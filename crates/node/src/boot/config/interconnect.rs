//! The table `[interconnect]` of `cluster.toml`: what holds for the links between all nodes.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// How long a node may be unreachable before it is gone, at most.
const MAX_PEER_TIMEOUT_MS: u32 = 60_000;

/// Longest time between two questions to a silent path.
const LONGEST_PROBE_MS: u32 = 1000;

/// Questions that a silent path must have had time to answer before it is given up.
const PROBES: u32 = 3;

/// Whether rails over a network are encrypted. Shared memory never leaves its host.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Encrypt {
    /// Between nodes of different hosts.
    #[default]
    Auto,
    /// Between all nodes.
    Always,
    /// Never: the network is private.
    Never,
}

impl Encrypt {
    /// The word in the configuration.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Always => "always",
            Self::Never => "never",
        }
    }
}

/// The table.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Interconnect {
    /// Whether rails over a network are encrypted.
    pub encrypt: Encrypt,
    /// How long a node that no rail reaches is waited for before it is gone, in milliseconds.
    pub peer_timeout_ms: u32,
    /// Between two questions whether a silent path is still there, in milliseconds.
    pub probe_ms: u32,
    /// The provider of libfabric that rails of kind ofi use; none: the first of verbs, efa and tcp that a host has.
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

    /// `peer_timeout_ms`.
    #[must_use]
    pub fn timeout(&self) -> Duration {
        Duration::from_millis(self.peer_timeout_ms.into())
    }

    /// `probe_ms`.
    #[must_use]
    pub fn probe(&self) -> Duration {
        Duration::from_millis(self.probe_ms.into())
    }
}
