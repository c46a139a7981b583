//! The modes of transactions: their isolation, and whether they only read.

use plexus_store::Isolation;
use sqlparser::ast;

use super::{Session, settings::Settings};
use crate::error::{Result, SqlError};

/// The modes of a transaction.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Modes {
    pub(super) isolation: Isolation,
    /// The isolation as the client named it.
    pub(super) level: &'static str,
    pub(super) is_read_only: bool,
}

impl Default for Modes {
    fn default() -> Self {
        Self { isolation: Isolation::ReadCommitted, level: "read committed", is_read_only: false }
    }
}

impl Modes {
    /// Returns the modes of transactions that name none.
    pub(super) fn of(settings: &Settings) -> Result<Self> {
        let is_read_only = settings.is_on("default_transaction_read_only");
        let level = settings.show("default_transaction_isolation")?.to_ascii_lowercase();
        Self { is_read_only, ..Self::default() }.at(&level)
    }

    /// Returns the modes with those that a statement names.
    pub(super) fn with(mut self, named: &[ast::TransactionMode]) -> Result<Self> {
        for mode in named {
            match mode {
                ast::TransactionMode::AccessMode(mode) => {
                    self.is_read_only = *mode == ast::TransactionAccessMode::ReadOnly;
                }
                ast::TransactionMode::IsolationLevel(level) => {
                    self = self.at(&level.to_string().to_ascii_lowercase())?
                }
            }
        }
        Ok(self)
    }

    pub(super) fn at(self, level: &str) -> Result<Self> {
        let (isolation, level) = match level {
            "read committed" => (Isolation::ReadCommitted, "read committed"),
            "read uncommitted" => (Isolation::ReadCommitted, "read uncommitted"),
            "repeatable read" => (Isolation::RepeatableRead, "repeatable read"),
            other => return Err(SqlError::unsupported(format!("the isolation level {other}"))),
        };
        Ok(Self { isolation, level, ..self })
    }

    /// Refuses what changes something in a transaction that reads only.
    pub(super) fn check_write(&self, what: &str) -> Result<()> {
        match self.is_read_only {
            false => Ok(()),
            true => Err(SqlError::read_only(what)),
        }
    }
}

impl Session<'_> {
    pub(super) fn set_modes(&mut self, modes: Modes) {
        if modes != self.modes {
            self.context.settings.borrow_mut().note_modes(modes.level, modes.is_read_only);
        }
        self.modes = modes;
        self.context.sequences.is_read_only.set(modes.is_read_only);
    }
}
