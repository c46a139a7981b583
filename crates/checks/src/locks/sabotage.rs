//! Breaking it on purpose, between what a shard decides and what is done: each property must notice what breaks it.

use plexus_locks::protocol::{Action, Body, LockRefusal, Mode, Token, Validity};

use super::Locks;

/// What goes wrong, now and then.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sabotage {
    /// A request that was not to wait is granted although it was refused.
    GrantRefused,
    /// A token is one that came before.
    OldToken,
    /// A client is granted another mode than it asked for.
    OtherMode,
    /// A client is not told of its grant.
    ForgetGrant,
    /// What may be lost is called valid.
    VouchForLost,
    /// What is valid is another value.
    WrongValue,
    /// A client that cancelled is told of a deadlock.
    FalseVictim,
    /// A client that was not to wait is told that it waited too long.
    OtherReason,
    /// Workers do not tell each other, and masters do not tell homes, who waits for whom.
    NoSearch,
    /// A new master is not told what is held.
    ForgetRecords,
    /// A holder is not told that others wait.
    ForgetBlocking,
}

impl Sabotage {
    /// The action as it is carried out; none: it is not.
    pub(super) fn of(run: &mut Locks, action: Action) -> Option<Action> {
        let Some(sabotage) = run.sabotage else { return Some(action) };
        let sometimes = run.engine.random.percent(20);
        match (sabotage, action) {
            (Self::NoSearch, Action::Tell { .. }) => None,
            (Self::NoSearch, Action::Send { message, .. }) if matches!(message.body, Body::Chase(..)) => None,
            (Self::ForgetRecords, Action::Send { message, .. })
                if matches!(message.body, Body::Records(_)) =>
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
