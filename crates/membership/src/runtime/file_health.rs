//! The recent health of each voting file as seen by this node.

use std::collections::BTreeMap;

use plexus_base::Nanos;

use crate::protocol::{FileId, VotingFile};

/// A successful turn.
#[derive(Clone, Copy, Debug)]
pub(super) struct AnsweredTurn {
    pub(super) at: Nanos,
    pub(super) took: Nanos,
}

#[derive(Clone, Debug)]
pub(super) struct FileHealth {
    pub(super) file: VotingFile,
    began: Nanos,
    /// The last successful turn.
    pub(super) answered: Option<AnsweredTurn>,
    pub(super) error: Option<String>,
    pub(super) is_set_aside: bool,
}

/// The health of all files.
#[derive(Debug, Default)]
pub(super) struct FilesHealth(BTreeMap<FileId, FileHealth>);

impl FilesHealth {
    pub(super) fn began(&mut self, file: VotingFile, now: Nanos) {
        let new = FileHealth { file, began: now, answered: None, error: None, is_set_aside: false };
        let health = self.0.entry(file.id).or_insert_with(|| new.clone());
        if health.file != file {
            // State from before another view added the file again does not count.
            *health = FileHealth { is_set_aside: health.is_set_aside, ..new };
        }
        health.began = now;
    }

    /// Returns the files whose turns have just stalled: they have taken this long and not failed.
    pub(super) fn stalled(&mut self, limit: Nanos, now: Nanos) -> Vec<FileId> {
        let is_new = |health: &FileHealth| {
            let is_under_way = health.answered.is_none_or(|turn| turn.at < health.began);
            health.error.is_none() && is_under_way && now.since(health.began) >= limit
        };
        let stalled = self.0.iter_mut().filter(|(_, health)| is_new(health));
        let noted = stalled.map(|(file, health)| {
            health.error = Some("it stalls: a turn takes longer than a lease".into());
            *file
        });
        noted.collect()
    }

    /// Records a failed turn. Returns true if the error is new.
    pub(super) fn failed(&mut self, file: FileId, why: &str) -> bool {
        let Some(health) = self.0.get_mut(&file) else { return false };
        let is_new_error = health.error.as_deref() != Some(why);
        health.error = Some(why.into());
        is_new_error
    }

    /// Records a successful turn. Returns true if the previous turn failed.
    pub(super) fn finished(&mut self, file: FileId, now: Nanos) -> bool {
        let Some(health) = self.0.get_mut(&file) else { return false };
        health.answered = Some(AnsweredTurn { at: now, took: now.since(health.began) });
        // A file that is set aside has turns only after a view without it was decided.
        health.is_set_aside = false;
        health.error.take().is_some()
    }

    pub(super) fn set_aside(&mut self, file: FileId) {
        if let Some(health) = self.0.get_mut(&file) {
            health.is_set_aside = true;
        }
    }

    pub(super) fn of(&self, file: FileId) -> Option<&FileHealth> {
        self.0.get(&file)
    }

    pub(super) fn all(&self) -> impl Iterator<Item = (&FileId, &FileHealth)> {
        self.0.iter()
    }
}
