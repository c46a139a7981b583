//! The cluster's keys, and where they come from.
//!
//! Two may be valid at once, so that a key can be replaced while the cluster runs: a node that calls proves the newest
//! that it has and falls back to the older, one that is called takes any. What a key looks like in a file is not known here.

use std::fmt;

use zeroize::Zeroizing;

/// Bytes of a key.
pub const KEY: usize = 32;

/// A key of the cluster: whoever has it is of the cluster. It is wiped when it is dropped, and never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct Key(Zeroizing<[u8; KEY]>);

impl Key {
    /// A key of these bytes, which should be random.
    #[must_use]
    pub fn new(bytes: [u8; KEY]) -> Self {
        Self(Zeroizing::new(bytes))
    }

    /// The bytes, for whoever proves it.
    #[must_use]
    pub fn bytes(&self) -> &[u8; KEY] {
        &self.0
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(..)")
    }
}

/// Where a node finds the keys that are valid now. It is asked at every handshake.
pub trait KeySource: fmt::Debug + Send + Sync {
    /// The valid keys, the newest first; at least one.
    ///
    /// # Errors
    /// One line that says why there are none and what to do.
    fn keys(&self) -> Result<Vec<Key>, String>;
}

/// Keys that do not change.
impl KeySource for Vec<Key> {
    fn keys(&self) -> Result<Vec<Key>, String> {
        Ok(self.clone())
    }
}
