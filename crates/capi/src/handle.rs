//! Handles: boxes of Rust objects that C holds by pointer.
//!
//! All that are handed out are noted, so that a handle that is ended twice is an argument that cannot be used and not the end
//! of whatever lies there by then. Other functions do not look: they cost nothing for it, and a handle that was ended is
//! none of theirs to be given.

use std::{
    any::TypeId,
    collections::BTreeSet,
    sync::{Mutex, MutexGuard, PoisonError},
};

/// Where the handles that were handed out are, and what they are.
static LIVE: Mutex<BTreeSet<(usize, TypeId)>> = Mutex::new(BTreeSet::new());

fn live() -> MutexGuard<'static, BTreeSet<(usize, TypeId)>> {
    LIVE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Hands a new object out.
///
/// # Safety
/// `place` can be written.
pub(crate) unsafe fn hand_out<T: 'static>(place: *mut *mut T, object: T) {
    let object = Box::into_raw(Box::new(object));
    live().insert((object as usize, TypeId::of::<T>()));
    // SAFETY: as the caller says.
    unsafe { place.write(object) }
}

/// Takes an object back, if it was handed out and not taken back before.
pub(crate) fn take_back<T: 'static>(object: *mut T) -> Option<Box<T>> {
    let handed_out = live().remove(&(object as usize, TypeId::of::<T>()));
    // SAFETY: it came from a box of this type in `hand_out`, and whoever removes the note is the only one to take it back.
    handed_out.then(|| unsafe { Box::from_raw(object) })
}

/// Ends an object that was handed out; nothing for null.
pub(crate) fn end<T: 'static>(object: *mut T) {
    if !object.is_null() && take_back(object).is_none() {
        crate::error::argument("the handle was ended before, or never was one");
    }
}

#[cfg(test)]
mod tests {
    use std::{ffi::CStr, rc::Rc};

    use super::*;
    use crate::error::plexus_last_error;

    fn said() -> String {
        // SAFETY: it is a text, good until the thread's next failure.
        unsafe { CStr::from_ptr(plexus_last_error()) }.to_str().unwrap().to_owned()
    }

    #[test]
    fn a_handle_ends_once() {
        let (object, mut handle) = (Rc::new(7), std::ptr::null_mut());
        // SAFETY: the place is ours.
        unsafe { hand_out(&mut handle, Rc::clone(&object)) };
        end(handle.cast::<u8>());
        assert!(said().contains("never was one"), "another type: {}", said());
        assert_eq!(Rc::strong_count(&object), 2);
        end(handle);
        assert_eq!(Rc::strong_count(&object), 1);
        crate::error::argument("something else");
        end(handle);
        assert!(said().contains("ended before"), "{}", said());
        end(std::ptr::null_mut::<Rc<i32>>());
    }
}
