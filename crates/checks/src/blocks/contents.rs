//! The bytes of simulated pages.
//!
//! A page or record has a number instead of bytes, so that it is small and can be compared.
//! [`Contents`] knows the bytes of each number. Where only the identity of contents matters, a
//! number is a content itself, and a patch is the number that it leads to.

use std::{collections::BTreeMap, rc::Rc};

use plexus_base::wire::DecodeError;
use plexus_disks::{PageType, Patch, apply_patch};

/// The bytes before them: the type of the page.
const TYPE: usize = 2;

/// The bytes that the value of a session takes in a page; [tasks](super::tasks) have the others.
const VALUE_AT: usize = 8;

/// The bytes of all numbers so far.
pub(crate) enum Contents {
    /// Each number is a content.
    Numbers,
    /// Each number has bytes, and each content has one number.
    Bytes { user: usize, all: Vec<Rc<[u8]>>, numbers: BTreeMap<Rc<[u8]>, u64> },
}

impl Contents {
    /// Returns contents with pages of so many user bytes, in which 0 is a page of zeros.
    pub(crate) fn with_bytes(user: usize) -> Self {
        let mut contents = Self::Bytes { user, all: Vec::new(), numbers: BTreeMap::new() };
        contents.number(&vec![0; TYPE + user]);
        contents
    }

    /// Returns the bytes of a number: the type of a page and its user bytes, or a patch.
    pub(crate) fn bytes(&self, number: u64) -> Rc<[u8]> {
        match self {
            Self::Numbers => Rc::new(number.to_le_bytes()),
            Self::Bytes { all, .. } => Rc::clone(&all[number as usize]),
        }
    }

    /// Returns the number of these bytes, if they ever had one.
    pub(crate) fn find(&self, bytes: &[u8]) -> Option<u64> {
        match self {
            Self::Numbers => bytes.try_into().map(u64::from_le_bytes).ok(),
            Self::Bytes { numbers, .. } => numbers.get(bytes).copied(),
        }
    }

    /// Returns the number of these bytes.
    pub(crate) fn number(&mut self, bytes: &[u8]) -> u64 {
        if let Some(number) = self.find(bytes) {
            return number;
        }
        let Self::Bytes { all, numbers, .. } = self else { unreachable!("a number of other bytes") };
        let (number, bytes) = (all.len() as u64, Rc::<[u8]>::from(bytes));
        all.push(Rc::clone(&bytes));
        numbers.insert(bytes, number);
        number
    }

    /// Returns the number of an empty page.
    pub(crate) fn blank(&mut self, page_type: PageType) -> u64 {
        let Self::Bytes { user, .. } = self else { return 0 };
        let mut page = vec![0; TYPE + *user];
        page[..TYPE].copy_from_slice(&page_type.0.to_le_bytes());
        self.number(&page)
    }

    /// Returns the patch that makes the value of a session.
    pub(crate) fn patch_of(&mut self, value: u64) -> u64 {
        match self {
            Self::Numbers => value,
            Self::Bytes { .. } => {
                let mut patch = Patch::EMPTY;
                patch.range(VALUE_AT, &value.to_le_bytes());
                self.number(patch.encoded())
            }
        }
    }

    /// Applies a patch to the bytes of a page, as replay does.
    pub(crate) fn apply(&self, page: &mut [u8], patch: &[u8]) -> Result<(), DecodeError> {
        match self {
            Self::Numbers => {
                page.copy_from_slice(patch);
                Ok(())
            }
            Self::Bytes { .. } => apply_patch(&mut page[TYPE..], patch),
        }
    }

    /// Returns the page that a patch leads to.
    pub(crate) fn after(&mut self, page: u64, patch: u64) -> u64 {
        let mut bytes = self.bytes(page).to_vec();
        self.apply(&mut bytes, &self.bytes(patch)).expect("a patch of this page");
        self.number(&bytes)
    }
}

/// Returns the type and the user bytes of a page.
pub(crate) fn parts(page: &[u8]) -> (PageType, &[u8]) {
    let (page_type, user) = page.split_first_chunk().expect("a page has a type");
    (PageType(u16::from_le_bytes(*page_type)), user)
}
