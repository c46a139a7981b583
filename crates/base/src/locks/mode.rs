//! The six modes and which of them go together.
//!
//! Modes and table are those of the VAX/VMS lock manager (Kronenberg, Levy, Strecker: "VAXclusters: a closely-coupled
//! distributed system", ACM TOCS 4(2), 1986; and the OpenVMS manuals since).

use crate::wire::Fixed;

/// How a lock is held. The order of the variants is that of the published table, not of strength: CW and PR cannot be compared.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
#[repr(u8)]
pub enum Mode {
    /// Null: interest in the resource, no access.
    #[default]
    NL = 0,
    /// Concurrent read: reads beside others who may change.
    CR,
    /// Concurrent write: changes beside others who may change.
    CW,
    /// Protected read: nobody changes meanwhile. The classic shared lock.
    PR,
    /// Protected write: changes, beside readers who take what they get (CR).
    PW,
    /// Exclusive: nobody else has any access.
    EX,
}

/// How many modes there are.
pub const MODES: usize = 6;

/// Row: asked for. Column: held by another. A bit for each mode, that of [`Mode::NL`] the lowest.
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
    /// Every mode, in the order of the table.
    pub const ALL: [Self; MODES] = [Self::NL, Self::CR, Self::CW, Self::PR, Self::PW, Self::EX];

    /// The mode with this number on the wire.
    #[must_use]
    pub fn from_wire(number: u8) -> Option<Self> {
        Self::from_raw(number).ok()
    }

    /// The mode as an index.
    #[must_use]
    pub fn index(self) -> usize {
        self as usize
    }

    /// Whether one may hold this while another holds `other`.
    #[must_use]
    pub fn goes_with(self, other: Self) -> bool {
        COMPATIBLE[self.index()] & 1 << other.index() != 0
    }

    /// Whether everything that goes with `from` goes with this mode too: a conversion from `from` disturbs nobody and is granted at once.
    #[must_use]
    pub fn is_within(self, from: Self) -> bool {
        COMPATIBLE[from.index()] & !COMPATIBLE[self.index()] == 0
    }

    /// The most that both allow: what a client may use while it waits for a conversion from one to the other, for when that is granted
    /// others may be let in before it knows. Of two that can be compared it is the lesser, of PR and CW it is CR.
    #[must_use]
    pub fn common(self, other: Self) -> Self {
        let both = Self::ALL.into_iter().filter(|mode| mode.is_within(self) && mode.is_within(other));
        both.max().unwrap_or_default()
    }

    /// What a holder may use whose request for another mode, if there is one, is not answered.
    #[must_use]
    pub fn usable(self, asked: Option<Self>) -> Self {
        asked.map_or(self, |asked| self.common(asked))
    }

    /// Whether its holder may write the value block when it gives the lock up.
    #[must_use]
    pub fn writes(self) -> bool {
        matches!(self, Self::PW | Self::EX)
    }

    /// Whether its holder may write the value block on the way to another mode: to one that excludes no more.
    #[must_use]
    pub fn writes_to(self, mode: Self) -> bool {
        self.writes() && mode.is_within(self)
    }

    /// Whether nobody else can write the value block meanwhile: what its holder was told is the last that was written.
    #[must_use]
    pub fn keeps_value(self) -> bool {
        !self.goes_with(Self::PW)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_written_from_pw_and_ex_to_no_more() {
        for from in Mode::ALL {
            for to in Mode::ALL {
                let writes = from == Mode::EX || from == Mode::PW && to != Mode::EX;
                assert_eq!(from.writes_to(to), writes, "{from:?} to {to:?}");
            }
        }
        assert_eq!((Mode::PW.usable(None), Mode::PW.usable(Some(Mode::PR))), (Mode::PW, Mode::PR));
    }

    /// Cell by cell as published, rows: requested, columns: held; in the order NL CR CW PR PW EX.
    const PUBLISHED: [&str; MODES] = [
        "yes yes yes yes yes yes",
        "yes yes yes yes yes no",
        "yes yes yes no no no",
        "yes yes no yes no no",
        "yes yes no no no no",
        "yes no no no no no",
    ];

    #[test]
    fn the_table_is_the_published_one() {
        for (asked, row) in Mode::ALL.into_iter().zip(PUBLISHED) {
            for (held, cell) in Mode::ALL.into_iter().zip(row.split(' ')) {
                assert_eq!(asked.goes_with(held), cell == "yes", "{asked:?} beside {held:?}");
                assert_eq!(asked.goes_with(held), held.goes_with(asked), "{asked:?} and {held:?} both ways");
            }
        }
    }

    #[test]
    fn conversions_that_disturb_nobody_are_those_to_less() {
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
    fn while_a_conversion_waits_what_both_modes_allow_is_left() {
        use Mode::{CR, CW, EX, NL, PR, PW};
        for (from, to, left) in
            [(EX, PR, PR), (PR, EX, PR), (PR, CW, CR), (CW, PR, CR), (NL, EX, NL), (PW, PW, PW)]
        {
            assert_eq!(from.common(to), left);
        }
        for (from, to) in Mode::ALL.into_iter().flat_map(|from| Mode::ALL.map(|to| (from, to))) {
            let left = from.common(to);
            let goes = |mode: Mode| from.goes_with(mode) || to.goes_with(mode);
            assert!(Mode::ALL.into_iter().all(|mode| left.goes_with(mode) || !goes(mode)), "{from:?} {to:?}");
        }
    }

    #[test]
    fn the_value_is_kept_by_those_beside_whom_nobody_writes() {
        let keeps: Vec<Mode> = Mode::ALL.into_iter().filter(|mode| mode.keeps_value()).collect();
        assert_eq!(keeps, [Mode::CW, Mode::PR, Mode::PW, Mode::EX]);
    }
}
