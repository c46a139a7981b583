//! Errors: a number that C can compare and a text for people.

use std::{
    cell::RefCell,
    ffi::{CStr, CString, c_char, c_int},
};

use plexus_client::{Error, LockRefusal};

thread_local! {
    static LAST: RefCell<CString> = RefCell::new(CString::default());
}

macro_rules! codes {
    ($($name:ident = $code:literal, $text:literal;)*) => {
        $(pub(crate) const $name: c_int = $code;)*

        /// Returns the text of a code.
        fn text(code: c_int) -> &'static CStr {
            match code { $($code => $text,)* _ => c"unknown error code" }
        }
    };
}

codes! {
    OK = 0, c"done";
    ATTACH = -1, c"cannot attach to a node";
    NODE_LOST = -2, c"no longer attached: the node ended or detached the program";
    NODE_GONE = -3, c"the other node is down or does not exist";
    PORT_CLOSED = -4, c"no program has that port open";
    UNDELIVERED = -5, c"earlier messages were not received and are lost";
    TAKEN = -6, c"the port or name is taken";
    TIMED_OUT = -7, c"not within the time given";
    BUSY = -8, c"a limit is reached";
    TOO_LONG = -9, c"longer than the longest message or than the posted buffer";
    NO_ROOM = -10, c"no room for the window";
    NO_WINDOW = -11, c"no such window";
    OUT_OF_RANGE = -12, c"outside the window, or not an aligned word";
    ARGUMENT = -13, c"an argument is not valid";
    SYSTEM = -14, c"a system call failed";
    NOT_GRANTED = -15, c"the lock is not free and the request does not wait";
    CANCELLED = -16, c"the lock request was cancelled";
    DEADLOCK = -17, c"deadlock victim: release all locks and start again";
    NO_LOCK = -18, c"no such lock";
    IN_PROGRESS = -19, c"the request is in progress";
    NOT_WRITER = -20, c"only a holder in PW or EX may write the value block";
    LOCKS_LOST = -21, c"the cluster stopped: all locks are lost";
    UNLOCKED = -22, c"the lock was released";
}

/// Returns the code of an error.
pub(crate) fn code(error: &Error) -> c_int {
    match error {
        Error::Attach { .. } => ATTACH,
        Error::NodeLost(_) => NODE_LOST,
        Error::NodeGone(_) => NODE_GONE,
        Error::PortClosed(_) => PORT_CLOSED,
        Error::Undelivered { .. } => UNDELIVERED,
        Error::Taken(_) => TAKEN,
        Error::TimedOut => TIMED_OUT,
        Error::Busy(_) => BUSY,
        Error::TooLong { .. } => TOO_LONG,
        Error::NoRoom(_) => NO_ROOM,
        Error::NoWindow => NO_WINDOW,
        Error::OutOfRange => OUT_OF_RANGE,
        Error::Argument(_) => ARGUMENT,
        Error::System { .. } => SYSTEM,
        Error::LocksLost => LOCKS_LOST,
        Error::NotLocked(why) => match why {
            LockRefusal::NotGranted => NOT_GRANTED,
            LockRefusal::TimedOut => TIMED_OUT,
            LockRefusal::Cancelled => CANCELLED,
            LockRefusal::Deadlock => DEADLOCK,
            LockRefusal::TooManyWaiting | LockRefusal::TooManyLocks | LockRefusal::TooManyConversions => BUSY,
            LockRefusal::Unknown => NO_LOCK,
            LockRefusal::Busy => IN_PROGRESS,
            LockRefusal::NotWriter => NOT_WRITER,
        },
    }
}

/// Keeps the error's text for [`plexus_last_error`] and returns its code.
pub(crate) fn fail(error: &Error) -> c_int {
    // The text has no zero byte, since no part of it, such as a path, can have one.
    let text = CString::new(error.to_string()).unwrap_or_default();
    // A thread that ends may call this from a destructor, when its text is already gone.
    let _ = LAST.try_with(|last| *last.borrow_mut() = text);
    code(error)
}

/// Fails with `PLEXUS_E_ARGUMENT` and a text for people.
pub(crate) fn argument(what: &'static str) -> c_int {
    fail(&Error::Argument(what))
}

/// Fails because a pointer, a text or a length is not valid.
pub(crate) fn pointer() -> c_int {
    argument("a required pointer is null, a text is not UTF-8, or a length is negative")
}

/// Returns the code of a result.
pub(crate) fn of(result: Result<(), Error>) -> c_int {
    result.map_or_else(|error| fail(&error), |()| OK)
}

#[unsafe(no_mangle)]
pub extern "C" fn plexus_strerror(code: c_int) -> *const c_char {
    text(code).as_ptr()
}

#[unsafe(no_mangle)]
pub extern "C" fn plexus_last_error() -> *const c_char {
    LAST.try_with(|last| last.borrow().as_ptr()).unwrap_or(c"".as_ptr())
}
