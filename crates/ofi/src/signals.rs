//! Keeps the signal actions of this process while a library changes them.
//!
//! A library that libfabric loads (`libpsm_infinipath`) takes over SIGINT, SIGTERM and the crash
//! signals. Its handler writes a `.btr` file into the working directory and ends the process, so
//! the program's own handlers never run.
//!
//! This module does not know which code changes the actions.
#![allow(unsafe_code, reason = "reads and sets the actions of signals")]

use std::{ffi::c_int, mem::MaybeUninit, ptr};

/// The signals with an action that can be set; the rest are the system's or unused.
const SIGNALS: std::ops::RangeInclusive<c_int> = 1..=31;

/// The actions of all signals at one moment.
pub(crate) struct Actions(Vec<(c_int, libc::sigaction)>);

impl Actions {
    pub(crate) fn now() -> Self {
        Self(SIGNALS.filter_map(|signal| Some((signal, action(signal)?))).collect())
    }

    /// Sets the actions again that have changed. A signal that comes meanwhile runs the changed
    /// action.
    pub(crate) fn restore(self) {
        for (signal, before) in self.0 {
            let same = |now: libc::sigaction| {
                now.sa_sigaction == before.sa_sigaction && now.sa_flags == before.sa_flags
            };
            if !action(signal).is_none_or(same) {
                // SAFETY: the action is one that the system gave for this signal.
                unsafe { libc::sigaction(signal, &raw const before, ptr::null_mut()) };
            }
        }
    }
}

fn action(signal: c_int) -> Option<libc::sigaction> {
    let mut action = MaybeUninit::uninit();
    // SAFETY: sets nothing; the place is large enough for what is asked for, and filled where that
    // succeeds.
    unsafe { (libc::sigaction(signal, ptr::null(), action.as_mut_ptr()) == 0).then(|| action.assume_init()) }
}
