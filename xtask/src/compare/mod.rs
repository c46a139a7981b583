//! What all comparisons with peers share: the document, medians, free ports, and the refusal to write what something else disturbed.

pub(crate) mod document;
pub(crate) mod ports;
pub(crate) mod quiet;
pub(crate) mod spread;
