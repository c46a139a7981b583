//! Value blocks and fencing tokens: what comes with a grant besides the mode.

use std::fmt;

use crate::Epoch;

/// Bytes of a value block.
pub const VALUE_LEN: usize = 32;

/// What a resource's value block is known to be.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[repr(u8)]
pub enum Validity {
    /// Nobody has written it since the resource came into being, which is when somebody locked what nobody had locked.
    #[default]
    Unwritten = 0,
    /// What was written last.
    Valid,
    /// Who could write it died, or did so where its writing cannot be known of: perhaps the last, perhaps not.
    Lost,
}

crate::numbered! { impl Validity as "validity" { Unwritten, Valid, Lost } }

/// A resource's value block: 32 bytes that those who hold PW or EX write when they give it up, and everyone is handed with a grant. It lives
/// as long as anybody has a lock on the resource.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Value {
    /// The bytes; zeros at first.
    pub bytes: [u8; VALUE_LEN],
    /// What they are.
    pub validity: Validity,
}

impl Value {
    /// Just written.
    #[must_use]
    pub fn written(bytes: [u8; VALUE_LEN]) -> Self {
        Self { bytes, validity: Validity::Valid }
    }

    /// The same bytes, which are perhaps not the last.
    #[must_use]
    pub fn lost(self) -> Self {
        Self { validity: Validity::Lost, ..self }
    }
}

/// What a grant can be told from earlier ones by: of two grants of one resource that exclude each other the later has the greater token, in the
/// whole incarnation of the cluster. What is protected by a lock can remember the greatest token seen and refuse smaller ones.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Token(pub u64);

crate::newtypes!(Token(u64));

impl Token {
    /// Bits for the grants of one view at one worker: at a million each second they last twelve days, and 16 million views are left.
    const GRANT_BITS: u32 = 40;

    /// Smaller than every token of the view, and at least as great as every one of those before.
    ///
    /// # Panics
    /// When the epoch has no room: after 16 million views.
    #[must_use]
    pub fn before(epoch: Epoch) -> Self {
        assert!(
            epoch.0 < 1 << (u64::BITS - Self::GRANT_BITS),
            "{epoch:?} is beyond what tokens can tell apart"
        );
        Self(u64::from(epoch.0) << Self::GRANT_BITS)
    }

    /// The next of the same view.
    ///
    /// # Panics
    /// When there is none: a node that ends is better than a token that comes twice, and with its end begins another view.
    #[must_use]
    pub fn next(self) -> Self {
        let next = Self(self.0 + 1);
        assert!(next.epoch() == self.epoch(), "more grants in one view than tokens for them");
        next
    }

    /// The view in which it was given.
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
    fn tokens_grow_within_a_view_and_from_view_to_view() {
        let (early, late) = (Token::before(Epoch(3)), Token::before(Epoch(4)));
        assert!(early < early.next() && early.next().next() < late);
        assert_eq!((early.next().epoch(), format!("{:?}", early.next())), (Epoch(3), "3.1".into()));
    }

    #[test]
    #[should_panic(expected = "more grants in one view")]
    fn a_view_without_tokens_left_grants_nothing() {
        let _ = Token(Token::before(Epoch(4)).0 - 1).next();
    }

    #[test]
    #[should_panic(expected = "beyond what tokens can tell apart")]
    fn an_epoch_without_room_is_noticed() {
        let _ = Token::before(Epoch(1 << 24));
    }
}
