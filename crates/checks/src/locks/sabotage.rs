//! Breaks the protocol on purpose, between a shard's decision and its execution: each property must
//! detect its violation.

use plexus_locks::protocol::{Action, LockMessage, LockRefusal, Mode, Token, Validity};

use super::Locks;

/// A fault that happens now and then.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sabotage {
    /// A request that must not wait is granted although it was refused.
    GrantRefused,
    /// A grant has an earlier token.
    OldToken,
    /// A client is granted another mode than it requested.
    OtherMode,
    /// A client does not receive its grant.
    ForgetGrant,
    /// A value that may be lost is called valid.
    VouchForLost,
    /// A valid value is replaced by another.
    WrongValue,
    /// A client that cancelled receives a deadlock error.
    FalseVictim,
    /// A client that did not want to wait receives a timeout error.
    OtherReason,
    /// Workers and masters do not report which request waits for which.
    NoSearch,
    /// A new master does not receive the held locks.
    ForgetRecords,
    /// A holder receives no blocking notice.
    ForgetBlocking,
}

impl Sabotage {
    /// Returns the action to carry out, or `None` to drop it.
    pub(super) fn of(run: &mut Locks, action: Action) -> Option<Action> {
        let Some(sabotage) = run.sabotage else { return Some(action) };
        let sometimes = run.engine.random.percent(20);
        match (sabotage, action) {
            (Self::NoSearch, Action::Tell { .. }) => None,
            (Self::NoSearch, Action::Send { message, .. })
                if matches!(message.body, LockMessage::Chase(..)) =>
            {
                None
            }
            (Self::ForgetRecords, Action::Send { message, .. })
                if matches!(message.body, LockMessage::Records(_)) =>
            {
                None
            }
            (Self::ForgetBlocking, Action::Blocking { .. }) => None,
            (Self::ForgetGrant, Action::Granted { .. }) if sometimes => None,
            (Self::GrantRefused, Action::Refused { lock, why: LockRefusal::NotGranted }) => {
                let id = run.locks.keys().find(|id| id.1 == lock)?;
                let mode = run.locks[id].asked?;
                let (token, value) = (Token(u64::MAX - run.engine.events()), Default::default());
                Some(Action::Granted { lock, mode, token, value })
            }
            (Self::OldToken, Action::Granted { lock, mode, token, value }) => {
                Some(Action::Granted { lock, mode, token: Token(token.0 & !3), value })
            }
            (Self::OtherMode, Action::Granted { lock, token, value, .. }) => {
                Some(Action::Granted { lock, mode: Mode::NL, token, value })
            }
            (Self::VouchForLost, Action::Granted { lock, mode, token, mut value }) => {
                if value.validity == Validity::Lost {
                    value.validity = Validity::Valid;
                }
                Some(Action::Granted { lock, mode, token, value })
            }
            (Self::WrongValue, Action::Granted { lock, mode, token, mut value }) if sometimes => {
                value.bytes[0] ^= 1;
                Some(Action::Granted { lock, mode, token, value })
            }
            (Self::OtherReason, Action::Refused { lock, why: LockRefusal::NotGranted }) => {
                Some(Action::Refused { lock, why: LockRefusal::TimedOut })
            }
            (Self::FalseVictim, Action::Refused { lock, why: LockRefusal::Cancelled }) => {
                Some(Action::Refused { lock, why: LockRefusal::Deadlock })
            }
            (_, action) => Some(action),
        }
    }
}
