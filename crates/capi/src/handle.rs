//! Handles: boxes of Rust objects that C holds by pointer.
//!
//! A table lists all live handles, so that ending a handle twice is an argument error and touches
//! no memory. Other functions do not check their handles, which keeps them fast; passing an ended
//! handle to them is an error of the program.

use std::{
    any::TypeId,
    collections::BTreeSet,
    ffi::c_int,
    sync::{Mutex, MutexGuard, PoisonError},
};

use plexus_client::Error;

use crate::error::{OK, fail};

/// The addresses and types of all live handles.
static LIVE: Mutex<BTreeSet<(usize, TypeId)>> = Mutex::new(BTreeSet::new());

fn live() -> MutexGuard<'static, BTreeSet<(usize, TypeId)>> {
    LIVE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Gives a new object to the program, or returns the code of the error.
///
/// # Safety
/// `place` can be written.
pub(crate) unsafe fn hand_out<T: 'static>(place: *mut *mut T, object: Result<T, Error>) -> c_int {
    let object = match object {
        Ok(object) => Box::into_raw(Box::new(object)),
        Err(error) => return fail(&error),
    };
    live().insert((object as usize, TypeId::of::<T>()));
    // SAFETY: as the caller says.
    unsafe { place.write(object) };
    OK
}

/// Takes an object back, if it is a live handle.
pub(crate) fn take_back<T: 'static>(object: *mut T) -> Option<Box<T>> {
    let handed_out = live().remove(&(object as usize, TypeId::of::<T>()));
    // SAFETY: it came from a box of this type in `hand_out`, and only the caller that removes its
    // entry takes it back.
    handed_out.then(|| unsafe { Box::from_raw(object) })
}

/// Ends a handle; does nothing for null.
pub(crate) fn end<T: 'static>(object: *mut T) {
    if !object.is_null() && take_back(object).is_none() {
        crate::error::argument("the handle was ended before or is not a handle");
    }
}

#[cfg(test)]
mod tests {
    use std::{ffi::CStr, rc::Rc};

    use super::*;
    use crate::error::plexus_last_error;

    fn last_error() -> String {
        // SAFETY: it is a text, good until the thread's next failure.
        unsafe { CStr::from_ptr(plexus_last_error()) }.to_str().unwrap().to_owned()
    }

    #[test]
    fn a_handle_ends_once() {
        let (object, mut handle) = (Rc::new(7), std::ptr::null_mut());
        // SAFETY: the place is ours.
        assert_eq!(unsafe { hand_out(&mut handle, Ok(Rc::clone(&object))) }, OK);
        end(handle.cast::<u8>());
        assert!(last_error().contains("is not a handle"), "another type: {}", last_error());
        assert_eq!(Rc::strong_count(&object), 2);
        end(handle);
        assert_eq!(Rc::strong_count(&object), 1);
        crate::error::argument("something else");
        end(handle);
        assert!(last_error().contains("ended before"), "{}", last_error());
        end(std::ptr::null_mut::<Rc<i32>>());
    }
}
