//! Parts of all comparisons with peers: the document, medians, free ports, the load of the cores.

pub(crate) mod document;
pub(crate) mod ports;
pub(crate) mod quiet;
pub(crate) mod spread;
pub(crate) mod unit;
