//! The test suite of every kind of rail, over two providers of libfabric. Each is skipped, with the
//! reason printed, where libfabric is absent.

#[path = "conformance/death.rs"]
mod death;
#[allow(dead_code, reason = "the tests of other rails use the rest")]
#[path = "conformance/pairs.rs"]
mod pairs;
#[path = "../../fabric/tests/conformance/peer.rs"]
mod peer;
#[path = "../../fabric/tests/conformance/properties.rs"]
mod properties;
#[path = "../../fabric/tests/conformance/suite.rs"]
mod suite;
#[path = "../../fabric/tests/conformance/words.rs"]
mod words;
#[path = "../../fabric/tests/conformance/wordwise.rs"]
mod wordwise;

use pairs::Kind;

/// Runs a test over libfabric; prints that it is skipped where libfabric is absent.
fn over(kind: Kind, property: impl Fn(Kind)) {
    if kind.is_here() {
        property(kind);
    }
}

macro_rules! over_every_provider {
    ($($module:ident { $($property:ident)* })*) => {
        mod tcp {
            $($(#[test] fn $property() { crate::over(crate::Kind::TCP, crate::$module::$property); })*)*
        }
        mod shm {
            $($(#[test] fn $property() { crate::over(crate::Kind::SHM, crate::$module::$property); })*)*
        }
    };
}

properties::every_property!(over_every_provider);
