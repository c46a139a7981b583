//! The functions of the catalogs.

use crate::functions::Function;

/// The functions that show definitions, for the table of all functions.
pub(crate) static SYSTEM: &[Function] = &[];
