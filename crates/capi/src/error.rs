//! What went wrong, as a number that C can compare and a text that people can read.

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

        /// The text of a code.
        fn text(code: c_int) -> &'static CStr {
            match code { $($code => $text,)* _ => c"no code of libplexus" }
        }
    };
}

codes! {
    OK = 0, c"done";
    ATTACH = -1, c"cannot attach to a node";
    NODE_LOST = -2, c"attached no more: the node has ended";
    NODE_GONE = -3, c"the other node is gone, or there is none of that number";
    PORT_CLOSED = -4, c"nobody has that port";
    UNDELIVERED = -5, c"messages sent before were not taken";
    TAKEN = -6, c"the port or name is taken";
    TIMED_OUT = -7, c"not within the time given";
    BUSY = -8, c"a limit is reached";
    TOO_LONG = -9, c"longer than a message may be";
    NO_ROOM = -10, c"no room for the window";
    NO_WINDOW = -11, c"no such window";
    OUT_OF_RANGE = -12, c"outside the window, or not a whole word of it";
    ARGUMENT = -13, c"an argument cannot be used";
    SYSTEM = -14, c"the system refused";
    NOT_GRANTED = -15, c"the lock is held by others, and the request was not to wait";
    CANCELLED = -16, c"the request for the lock was cancelled";
    DEADLOCK = -17, c"a deadlock: release what is held and begin again";
    NO_LOCK = -18, c"there is no such lock";
    IN_PROGRESS = -19, c"not done yet";
    NOT_WRITER = -20, c"the value block is written when PW or EX is given up";
    LOCKS_LOST = -21, c"the cluster has stopped: no lock protects anything any more";
    UNLOCKED = -22, c"the lock is given up";
}

/// The number of an error.
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
            LockRefusal::TooManyWaiting
            | LockRefusal::TooManyLocks
            | LockRefusal::TooManyConversions
            | LockRefusal::Overloaded => BUSY,
            LockRefusal::Unknown => NO_LOCK,
            LockRefusal::Busy => IN_PROGRESS,
            LockRefusal::NotWriter => NOT_WRITER,
        },
    }
}

/// Keeps the error's words for [`plexus_last_error`]; its number.
pub(crate) fn fail(error: &Error) -> c_int {
    // An error's text has no zero in it, except through a path that has none either.
    let words = CString::new(error.to_string()).unwrap_or_default();
    // A thread that is ending may call this from what it runs then; its words are gone already.
    let _ = LAST.try_with(|last| *last.borrow_mut() = words);
    code(error)
}

/// An argument that is none, in words for people.
pub(crate) fn argument(what: &'static str) -> c_int {
    fail(&Error::Argument(what))
}

/// A pointer or what it leads to is none.
pub(crate) fn pointer() -> c_int {
    argument(
        "a pointer is null where something is needed, a text is not UTF-8, or a length is that of no memory",
    )
}

/// The number of a result.
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
