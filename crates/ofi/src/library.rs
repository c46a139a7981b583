//! libfabric, loaded on the first use of a rail over it.
//!
//! The library is searched once, by the name that every 1.x and 2.x release carries, and stays
//! loaded: its providers keep threads and handlers that outlive any rail. A machine without it can
//! do everything else.
//!
//! Loading it runs its providers' start-up code, which reads the `FI_*` variables of the
//! environment. Its changes to signal actions are undone. Nothing is printed unless `FI_LOG_LEVEL`
//! requests it.
#![allow(unsafe_code, reason = "loads a C library and calls its symbols")]

use std::{
    error::Error,
    ffi::{CStr, c_char, c_int, c_void},
    ptr,
    sync::OnceLock,
};

use libloading::os::unix::{Library as Loaded, Symbol};

use crate::{OfiError, signals::Actions, sys};

const SONAME: &str = "libfabric.so.1";

/// The symbols that libfabric exports and this rail uses.
pub(crate) struct Library {
    pub(crate) getinfo: Symbol<
        unsafe extern "C" fn(
            u32,
            *const c_char,
            *const c_char,
            u64,
            *const sys::Info,
            *mut *mut sys::Info,
        ) -> c_int,
    >,
    pub(crate) freeinfo: Symbol<unsafe extern "C" fn(*mut sys::Info)>,
    pub(crate) dupinfo: Symbol<unsafe extern "C" fn(*const sys::Info) -> *mut sys::Info>,
    pub(crate) fabric:
        Symbol<unsafe extern "C" fn(*mut sys::FabricAttr, *mut *mut sys::Fabric, *mut c_void) -> c_int>,
    strerror: Symbol<unsafe extern "C" fn(c_int) -> *const c_char>,
    /// The library that contains the symbols.
    _loaded: Loaded,
}

impl Library {
    /// The library of this process.
    ///
    /// # Errors
    /// There is none, it is too old, or it lacks a symbol.
    pub(crate) fn load() -> Result<&'static Self, OfiError> {
        static LIBRARY: OnceLock<Result<Library, OfiError>> = OnceLock::new();
        LIBRARY.get_or_init(Self::open).as_ref().map_err(Clone::clone)
    }

    /// Loads the library and its providers, which then examine the host; their signal handlers are
    /// removed.
    fn open() -> Result<Self, OfiError> {
        let actions = Actions::now();
        let library = Self::loaded().inspect(Self::look_for_providers);
        actions.restore();
        library
    }

    fn look_for_providers(&self) {
        let mut found = ptr::null_mut();
        // SAFETY: no hints and a place for the answer, a list that is given back and not used.
        unsafe {
            let (any, flags) = (ptr::null(), sys::FI_PROV_ATTR_ONLY);
            if (self.getinfo)(sys::API, any, any, flags, ptr::null(), &raw mut found) == 0 {
                (self.freeinfo)(found);
            }
        }
    }

    fn loaded() -> Result<Self, OfiError> {
        // SAFETY: runs the library's initializers, which is what loading it is for; it is the one
        // of the system.
        let loaded = unsafe { Loaded::new(SONAME) }.map_err(absent)?;
        // SAFETY: the types are those of the headers, see `sys`, for every library of this name.
        unsafe {
            let version: Symbol<unsafe extern "C" fn() -> u32> = symbol(&loaded, "fi_version")?;
            let found = version();
            if found < sys::API {
                return Err(OfiError::Version { found });
            }
            Ok(Self {
                getinfo: symbol(&loaded, "fi_getinfo")?,
                freeinfo: symbol(&loaded, "fi_freeinfo")?,
                dupinfo: symbol(&loaded, "fi_dupinfo")?,
                fabric: symbol(&loaded, "fi_fabric")?,
                strerror: symbol(&loaded, "fi_strerror")?,
                _loaded: loaded,
            })
        }
    }

    /// The text of libfabric's error `code`, of either sign.
    pub(crate) fn explain(&self, code: c_int) -> String {
        // SAFETY: returns a string constant for any number.
        let text = unsafe { CStr::from_ptr((self.strerror)(code.abs())) };
        text.to_string_lossy().into_owned()
    }
}

/// Looks up a symbol of the library.
///
/// # Safety
/// `T` is the type of the symbol `name`.
unsafe fn symbol<T>(loaded: &Loaded, name: &'static str) -> Result<Symbol<T>, OfiError> {
    // SAFETY: the caller's promise.
    unsafe { loaded.get(name) }.map_err(absent)
}

/// The loader's message, which stands behind that of `libloading`.
fn absent(error: libloading::Error) -> OfiError {
    OfiError::Absent { why: error.source().map_or_else(|| error.to_string(), ToString::to_string) }
}
