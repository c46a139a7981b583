//! The cluster's keys, and their source.
//!
//! Two keys may be valid at once, so that a key can be replaced while the cluster runs. A
//! connecting node proves the newest key that it has and falls back to the older one; an accepting
//! node takes any valid key. This module does not know how a key is stored in a file.

use std::fmt;

use zeroize::Zeroizing;

/// The bytes of a key.
pub const KEY: usize = 32;

/// A key of the cluster, which every member has. It is wiped when it is dropped, and never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct Key(Zeroizing<[u8; KEY]>);

impl Key {
    /// Builds a key from these bytes, which should be random.
    #[must_use]
    pub fn new(bytes: [u8; KEY]) -> Self {
        Self(Zeroizing::new(bytes))
    }

    /// The bytes of the key.
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

/// The source of the keys that are valid now. A node asks it at every handshake.
pub trait KeySource: fmt::Debug + Send + Sync {
    /// The valid keys, the newest first; at least one.
    ///
    /// # Errors
    /// One line with the reason why there are none and what to do.
    fn keys(&self) -> Result<Vec<Key>, String>;
}

/// Keys that do not change.
impl KeySource for Vec<Key> {
    fn keys(&self) -> Result<Vec<Key>, String> {
        Ok(self.clone())
    }
}
