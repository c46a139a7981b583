//! What a process inherits from its starter and must not keep.

#![allow(unsafe_code, reason = "the library for signals and descriptors has no safe form of these calls")]

use std::{io, mem::MaybeUninit};

/// Lets this process see the ends of its children, and blocks no signal. A starter that ignores
/// SIGCHLD, as some init systems and cron do, would make each child end unseen.
pub(crate) fn reset_signals() {
    // SAFETY: no handler is installed and no thread runs yet; `none` is initialized before its use.
    unsafe {
        libc::signal(libc::SIGCHLD, libc::SIG_DFL);
        let mut none = MaybeUninit::uninit();
        libc::sigemptyset(none.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, none.as_ptr(), std::ptr::null_mut());
    }
}

/// Makes this process a daemon: the leader of a session, which keeps no directory busy and no file
/// open of its starter, except for standard input and output. Call it before any file is opened.
///
/// # Errors
/// Those of the system.
pub(crate) fn detach() -> io::Result<()> {
    // Fails only if the process already leads a session, which is good enough.
    let _ = rustix::process::setsid();
    std::env::set_current_dir("/")?;
    // Fails only on systems without the call, where the files stay open.
    // SAFETY: nothing in this process has opened a file yet.
    let _ = unsafe { libc::close_range(3, libc::c_uint::MAX, 0) };
    Ok(())
}
