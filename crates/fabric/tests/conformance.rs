//! One test suite over every kind of rail: the properties on which the interconnect relies. The
//! crate `ofi` runs it over its own.
//!
//! Tests of one kind only: `conformance/hostile.rs` (hostile memory and bytes),
//! `conformance/death.rs` (the end of a real peer process), `conformance/path.rs` (a rail's view of
//! its path).

#[path = "conformance/death.rs"]
mod death;
#[path = "conformance/hostile.rs"]
mod hostile;
#[path = "conformance/pairs.rs"]
mod pairs;
#[path = "conformance/path.rs"]
mod path;
#[path = "conformance/peer.rs"]
mod peer;
#[path = "conformance/properties.rs"]
mod properties;
#[path = "conformance/suite.rs"]
mod suite;
#[path = "conformance/words.rs"]
mod words;
#[path = "conformance/wordwise.rs"]
mod wordwise;

macro_rules! over_every_rail {
    ($($module:ident { $($property:ident)* })*) => {
        mod shm {
            $($(#[test] fn $property() { crate::$module::$property(crate::pairs::Kind::Shm); })*)*
        }
        mod sealed_tcp {
            $($(#[test] fn $property() { crate::$module::$property(crate::pairs::Kind::SealedTcp); })*)*
        }
        mod tcp {
            $($(#[test] fn $property() { crate::$module::$property(crate::pairs::Kind::Tcp); })*)*
        }
    };
}

properties::every_property!(over_every_rail);
