//! The recent health of each voting file as seen by this node.

use std::collections::BTreeMap;

use plexus_base::Nanos;

use crate::protocol::{FileId, VotingFile};

#[derive(Clone, Debug)]
pub(super) struct Fate {
    pub(super) file: VotingFile,
    began: Nanos,
    /// The time of the last successful turn, and its duration.
    pub(super) answered: Option<(Nanos, Nanos)>,
    pub(super) error: Option<String>,
    pub(super) is_aside: bool,
}

/// The health of all files.
#[derive(Debug, Default)]
pub(super) struct FileFates(BTreeMap<FileId, Fate>);

impl FileFates {
    pub(super) fn began(&mut self, file: VotingFile, now: Nanos) {
        let new = Fate { file, began: now, answered: None, error: None, is_aside: false };
        let fate = self.0.entry(file.id).or_insert_with(|| new.clone());
        if fate.file != file {
            // State from before another view added the file again does not count.
            *fate = Fate { is_aside: fate.is_aside, ..new };
        }
        fate.began = now;
    }

    /// Records a failed turn. Returns true if the error is new.
    pub(super) fn failed(&mut self, file: FileId, why: &str) -> bool {
        let Some(fate) = self.0.get_mut(&file) else { return false };
        let is_news = fate.error.as_deref() != Some(why);
        fate.error = Some(why.into());
        is_news
    }

    /// Records a successful turn. Returns true if the previous turn failed.
    pub(super) fn finished(&mut self, file: FileId, now: Nanos) -> bool {
        let Some(fate) = self.0.get_mut(&file) else { return false };
        fate.answered = Some((now, now.since(fate.began)));
        // A file that is set aside has turns only after a view without it was decided.
        fate.is_aside = false;
        fate.error.take().is_some()
    }

    pub(super) fn set_aside(&mut self, file: FileId) {
        if let Some(fate) = self.0.get_mut(&file) {
            fate.is_aside = true;
        }
    }

    pub(super) fn of(&self, file: FileId) -> Option<&Fate> {
        self.0.get(&file)
    }

    pub(super) fn all(&self) -> impl Iterator<Item = (&FileId, &Fate)> {
        self.0.iter()
    }
}
