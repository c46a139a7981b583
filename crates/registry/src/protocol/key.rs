//! The name of a value: a path such as `nodes/n1/address`.

use std::{borrow::Borrow, fmt, sync::Arc};

use super::{Refused, limits::KEY_MAX};

/// A path: 1 to [`KEY_MAX`] bytes of UTF-8, in parts between slashes. No part is empty, and no
/// character controls a terminal.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key(Arc<str>);

impl Key {
    /// Creates the key with this text.
    ///
    /// # Errors
    /// The text is not a key; the error has the reason.
    pub fn new(text: &str) -> Result<Self, Refused> {
        let why = if text.is_empty() {
            "is empty"
        } else if text.len() > KEY_MAX {
            "is longer than 255 bytes"
        } else if text.chars().any(char::is_control) {
            "contains a control character"
        } else if text.split('/').any(str::is_empty) {
            "has an empty part: no slash at the begin or end, nor two together"
        } else {
            return Ok(Self(text.into()));
        };
        let shown = text.chars().take(40).flat_map(char::escape_default).collect();
        Err(Refused::Key { key: shown, why })
    }

    /// Returns the text of the key.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Borrow<str> for Key {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_a_key_and_nothing_else() {
        for good in ["a", "nodes/n1/address", "größe/ß", &"k".repeat(KEY_MAX)] {
            assert_eq!(Key::new(good).unwrap().as_str(), good);
        }
        for bad in ["", "/a", "a/", "a//b", "a\nb", "a\u{9b}b", &"k".repeat(KEY_MAX + 1), &"ß".repeat(5000)]
        {
            let refused = Key::new(bad).unwrap_err().to_string();
            assert!(refused.len() < 600 && !refused.contains('\n'), "{refused}");
        }
    }
}
