//! A word that one process writes and other processes only read, such as a notice or the end of a
//! lease. Reading it needs no system call and no trust: the readers cannot change it.
#![allow(unsafe_code, reason = "the word lies in memory shared with its readers")]

use std::{
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::atomic::AtomicU64,
};

use crate::memory::{Memory, SetupError};

/// The length of the page of a word; the rest is unused.
const PAGE_LEN: usize = 4096;

/// A word that only this process can write.
#[derive(Debug)]
pub struct PublishedWord {
    page: Memory,
    fd: OwnedFd,
}

/// A word that another process publishes.
#[derive(Debug)]
pub struct SeenWord(Memory);

fn word(page: &Memory) -> &AtomicU64 {
    // SAFETY: the page is mapped as long as it is borrowed, aligned, and this word is only ever
    // used as an atomic. A seen page is mapped for reading, and `SeenWord` hands out no way to
    // write.
    unsafe { AtomicU64::from_ptr(page.start().as_ptr().cast()) }
}

impl PublishedWord {
    /// Creates a word of value 0; errors call it `what`.
    ///
    /// # Errors
    /// No memory or no descriptor is free.
    pub fn create(what: &'static str) -> Result<Self, SetupError> {
        let (page, fd) = Memory::publish(what, PAGE_LEN)?;
        Ok(Self { page, fd })
    }

    /// The word itself.
    #[must_use]
    #[inline]
    pub fn word(&self) -> &AtomicU64 {
        word(&self.page)
    }

    /// The page descriptor to hand out; it permits only reading, however it is opened or mapped.
    #[must_use]
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl SeenWord {
    /// Maps the page of a published word; errors call it `what`.
    ///
    /// # Errors
    /// The page is not a sealed page.
    pub fn map(what: &'static str, fd: BorrowedFd<'_>) -> Result<Self, SetupError> {
        Ok(Self(Memory::map_to_read(what, fd, PAGE_LEN as u64)?))
    }

    /// Returns the value.
    #[must_use]
    #[inline]
    pub fn load(&self) -> u64 {
        self.word().load(std::sync::atomic::Ordering::Acquire)
    }

    /// The word, for loads only: a store faults.
    #[inline]
    pub(crate) fn word(&self) -> &AtomicU64 {
        word(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering::Release;

    use super::*;

    #[test]
    fn a_published_word_is_seen_and_its_page_cannot_be_mapped_for_writing() {
        let published = PublishedWord::create("word").unwrap();
        let seen = SeenWord::map("word", published.fd()).unwrap();
        for value in [0, 7, u64::MAX] {
            published.word().store(value, Release);
            assert_eq!(seen.load(), value);
        }
        assert!(Memory::map("word", published.fd(), PAGE_LEN as u64).is_err());
    }
}
