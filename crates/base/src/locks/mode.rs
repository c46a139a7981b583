//! The six lock modes and their compatibility.
//!
//! Modes and table are those of the VAX/VMS lock manager (Kronenberg, Levy, Strecker: "VAXclusters:
//! a closely-coupled distributed system", ACM TOCS 4(2), 1986; and the OpenVMS manuals since).

use crate::wire::Fixed;

/// A lock mode. The variants have the order of the published table, not of strength: CW and PR
/// cannot be compared.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
#[repr(u8)]
pub enum Mode {
    /// Null: interest in the resource, no access.
    #[default]
    NL = 0,
    /// Concurrent read: reads while others may write.
    CR,
    /// Concurrent write: writes while others may write.
    CW,
    /// Protected read: others may read but not write. The classic shared lock.
    PR,
    /// Protected write: writes while others may only read in CR.
    PW,
    /// Exclusive: no other client has access.
    EX,
}

/// The number of modes.
pub const MODES: usize = 6;

/// Row: the requested mode. Column: the held mode. One bit for each mode, with [`Mode::NL`] in the
/// lowest.
const COMPATIBLE: [u8; MODES] = [
    0b11_1111, // NL
    0b01_1111, // CR: all but EX
    0b00_0111, // CW: NL, CR, CW
    0b00_1011, // PR: NL, CR, PR
    0b00_0011, // PW: NL, CR
    0b00_0001, // EX: NL
];

crate::numbered! { impl Mode as "lock mode" { NL, CR, CW, PR, PW, EX } }

impl Mode {
    /// All modes, in the order of the table.
    pub const ALL: [Self; MODES] = [Self::NL, Self::CR, Self::CW, Self::PR, Self::PW, Self::EX];

    /// Returns the mode with this wire number.
    #[must_use]
    pub fn from_wire(number: u8) -> Option<Self> {
        Self::from_raw(number).ok()
    }

    /// Returns the mode as an index.
    #[must_use]
    pub fn index(self) -> usize {
        self as usize
    }

    /// Returns true if one client may hold this mode while another holds `other`.
    #[must_use]
    pub fn is_compatible_with(self, other: Self) -> bool {
        COMPATIBLE[self.index()] & 1 << other.index() != 0
    }

    /// Returns true if every mode compatible with `from` is compatible with this mode. A conversion
    /// from `from` to this mode then conflicts with no other lock and is granted at once.
    #[must_use]
    pub fn is_within(self, from: Self) -> bool {
        COMPATIBLE[from.index()] & !COMPATIBLE[self.index()] == 0
    }

    /// Returns the strongest mode that both modes include. A client may use only this mode while it
    /// waits for a conversion between the two, because other locks may be granted before the client
    /// learns of its conversion. For modes that can be compared it is the lesser one; for PR and CW
    /// it is CR.
    #[must_use]
    pub fn common(self, other: Self) -> Self {
        let both = Self::ALL.into_iter().filter(|mode| mode.is_within(self) && mode.is_within(other));
        both.max().unwrap_or_default()
    }

    /// Returns the mode that a holder may use while its request for another mode, if any, is
    /// unanswered.
    #[must_use]
    pub fn usable(self, asked: Option<Self>) -> Self {
        asked.map_or(self, |asked| self.common(asked))
    }

    /// Returns true if the holder may write the value block when it releases the lock.
    #[must_use]
    pub fn writes(self) -> bool {
        matches!(self, Self::PW | Self::EX)
    }

    /// Returns true if the holder may write the value block in a conversion to `mode`, that is to a
    /// mode that excludes no more.
    #[must_use]
    pub fn writes_to(self, mode: Self) -> bool {
        self.writes() && mode.is_within(self)
    }

    /// Returns true if no other client can write the value block while this mode is held, so that
    /// the holder's copy stays the latest.
    #[must_use]
    pub fn keeps_value(self) -> bool {
        !self.is_compatible_with(Self::PW)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_value_block_is_written_from_pw_and_ex_to_weaker_modes() {
        for from in Mode::ALL {
            for to in Mode::ALL {
                let writes = from == Mode::EX || from == Mode::PW && to != Mode::EX;
                assert_eq!(from.writes_to(to), writes, "{from:?} to {to:?}");
            }
        }
        assert_eq!((Mode::PW.usable(None), Mode::PW.usable(Some(Mode::PR))), (Mode::PW, Mode::PR));
    }

    /// The published table: rows are requested modes, columns held modes, in the order NL CR CW PR
    /// PW EX.
    const PUBLISHED: [&str; MODES] = [
        "yes yes yes yes yes yes",
        "yes yes yes yes yes no",
        "yes yes yes no no no",
        "yes yes no yes no no",
        "yes yes no no no no",
        "yes no no no no no",
    ];

    #[test]
    fn the_compatibility_table_is_the_published_one() {
        for (asked, row) in Mode::ALL.into_iter().zip(PUBLISHED) {
            for (held, cell) in Mode::ALL.into_iter().zip(row.split(' ')) {
                assert_eq!(asked.is_compatible_with(held), cell == "yes", "{asked:?} beside {held:?}");
                assert_eq!(
                    asked.is_compatible_with(held),
                    held.is_compatible_with(asked),
                    "{asked:?} and {held:?} both ways"
                );
            }
        }
    }

    #[test]
    fn conversions_to_weaker_modes_conflict_with_no_other_lock() {
        let within = |from: Mode| Mode::ALL.into_iter().filter(|to| to.is_within(from)).collect::<Vec<_>>();
        use Mode::{CR, CW, EX, NL, PR, PW};
        assert_eq!(within(NL), [NL]);
        assert_eq!(within(CR), [NL, CR]);
        assert_eq!(within(CW), [NL, CR, CW]);
        assert_eq!(within(PR), [NL, CR, PR]);
        assert_eq!(within(PW), [NL, CR, CW, PR, PW]);
        assert_eq!(within(EX), Mode::ALL);
    }

    #[test]
    fn a_waiting_conversion_leaves_the_mode_that_both_include() {
        use Mode::{CR, CW, EX, NL, PR, PW};
        for (from, to, left) in
            [(EX, PR, PR), (PR, EX, PR), (PR, CW, CR), (CW, PR, CR), (NL, EX, NL), (PW, PW, PW)]
        {
            assert_eq!(from.common(to), left);
        }
        for (from, to) in Mode::ALL.into_iter().flat_map(|from| Mode::ALL.map(|to| (from, to))) {
            let left = from.common(to);
            let goes = |mode: Mode| from.is_compatible_with(mode) || to.is_compatible_with(mode);
            assert!(
                Mode::ALL.into_iter().all(|mode| left.is_compatible_with(mode) || !goes(mode)),
                "{from:?} {to:?}"
            );
        }
    }

    #[test]
    fn modes_that_exclude_writers_keep_the_value() {
        let keeps: Vec<Mode> = Mode::ALL.into_iter().filter(|mode| mode.keeps_value()).collect();
        assert_eq!(keeps, [Mode::CW, Mode::PR, Mode::PW, Mode::EX]);
    }
}
