//! Checks fencing tokens: each is used once for a resource, and is greater than those of all
//! conflicting grants seen before.

use std::collections::{BTreeMap, BTreeSet};

use plexus_locks::protocol::{MODES, Mode, Token};

use crate::failure::Broken;

/// The tokens seen of each resource.
#[derive(Default)]
pub(crate) struct Tokens(BTreeMap<usize, Seen>);

#[derive(Default)]
struct Seen {
    all: BTreeSet<Token>,
    /// The greatest token seen with each mode.
    greatest: [Token; MODES],
}

impl Tokens {
    /// Checks a grant of a resource.
    pub(crate) fn granted(&mut self, name: usize, mode: Mode, token: Token) -> Result<(), Broken> {
        let seen = self.0.entry(name).or_default();
        let excluded = Mode::ALL.into_iter().filter(|other| !other.is_compatible_with(mode));
        let before = excluded.map(|other| seen.greatest[other.index()]).max().unwrap_or_default();
        if !seen.all.insert(token) || token <= before {
            let what = format!("{token:?} of {name} in {mode:?} after {before:?}, new: {}", token > before);
            return Err(Broken::general("tokens", what));
        }
        let greatest = &mut seen.greatest[mode.index()];
        *greatest = token.max(*greatest);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_tokens_of_conflicting_modes_must_grow() {
        let mut tokens = Tokens::default();
        assert!(tokens.granted(0, Mode::PR, Token(5)).is_ok());
        assert!(tokens.granted(0, Mode::PR, Token(4)).is_ok());
        assert!(tokens.granted(0, Mode::PR, Token(4)).is_err());
        assert!(tokens.granted(0, Mode::EX, Token(3)).is_err());
        assert!(tokens.granted(0, Mode::EX, Token(6)).is_ok());
        assert!(tokens.granted(1, Mode::EX, Token(1)).is_ok());
    }
}
