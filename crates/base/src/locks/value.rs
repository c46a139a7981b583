//! Value blocks and fencing tokens, which come with a grant besides the mode.

use std::fmt;

use crate::Epoch;

/// The number of bytes of a value block.
pub const VALUE_LEN: usize = 32;

/// The state of a resource's value block.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[repr(u8)]
pub enum Validity {
    /// The block was never written since the resource was created by its first lock.
    #[default]
    Unwritten = 0,
    /// The bytes are those of the last write.
    Valid,
    /// A client that could write the block ended, and its last write may be missing. The bytes may
    /// or may not be the last ones.
    Lost,
}

crate::numbered! { impl Validity as "validity" { Unwritten, Valid, Lost } }

/// The value block of a resource: 32 bytes that a holder of PW or EX writes when it lowers or
/// releases its lock, and that every grant returns. The block exists as long as the resource has a
/// lock.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Value {
    /// The bytes; zeros at first.
    pub bytes: [u8; VALUE_LEN],
    /// The state of the bytes.
    pub validity: Validity,
}

impl Value {
    /// Returns a value that was just written.
    #[must_use]
    pub fn written(bytes: [u8; VALUE_LEN]) -> Self {
        Self { bytes, validity: Validity::Valid }
    }

    /// Returns the same bytes, marked as possibly outdated.
    #[must_use]
    pub fn lost(self) -> Self {
        Self { validity: Validity::Lost, ..self }
    }
}

/// A fencing token, which orders the grants of a resource. Of two grants that exclude each other,
/// the later has the greater token, for as long as the cluster exists. A service that a lock
/// protects can remember the greatest token seen and refuse smaller ones.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Token(pub u64);

crate::newtypes!(Token(u64));

impl Token {
    /// The bits for the grants of one view at one worker: enough for twelve days at a million per
    /// second, and for 16 million views.
    const GRANT_BITS: u32 = 40;

    /// Returns a token below every token of the view and not below any token of an earlier view.
    ///
    /// # Panics
    /// Panics if the epoch does not fit, which is after 16 million views.
    #[must_use]
    pub fn before(epoch: Epoch) -> Self {
        assert!(epoch.0 < 1 << (u64::BITS - Self::GRANT_BITS), "{epoch:?} has no fencing tokens");
        Self(u64::from(epoch.0) << Self::GRANT_BITS)
    }

    /// Returns the next token of the same view.
    ///
    /// # Panics
    /// Panics if the view has no token left. Ending the node is better than reusing a token, and it
    /// starts another view.
    #[must_use]
    pub fn next(self) -> Self {
        let next = Self(self.0 + 1);
        assert!(next.epoch() == self.epoch(), "no fencing tokens are left in this view");
        next
    }

    /// Returns the epoch of the view in which the token was issued.
    #[must_use]
    pub fn epoch(self) -> Epoch {
        Epoch((self.0 >> Self::GRANT_BITS) as u32)
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.epoch().0, self.0 & ((1 << Self::GRANT_BITS) - 1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_grow_within_a_view_and_across_views() {
        let (early, late) = (Token::before(Epoch(3)), Token::before(Epoch(4)));
        assert!(early < early.next() && early.next().next() < late);
        assert_eq!((early.next().epoch(), format!("{:?}", early.next())), (Epoch(3), "3.1".into()));
    }

    #[test]
    #[should_panic(expected = "no fencing tokens are left")]
    fn a_view_without_tokens_left_grants_nothing() {
        let _ = Token(Token::before(Epoch(4)).0 - 1).next();
    }

    #[test]
    #[should_panic(expected = "has no fencing tokens")]
    fn an_epoch_that_does_not_fit_panics() {
        let _ = Token::before(Epoch(1 << 24));
    }
}
