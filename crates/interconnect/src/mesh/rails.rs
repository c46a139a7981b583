//! The kinds of rail that this build and this machine have.

use plexus_fabric::RailKind;

/// Checks that this build has rails of this kind; returns the kind.
///
/// # Errors
/// A line that names the kinds of this build.
pub fn check_built(kind: RailKind) -> Result<RailKind, String> {
    if kind == RailKind::Ofi && !cfg!(feature = "libfabric") {
        let others = RailKind::BUILT_IN.map(RailKind::name).join(" or ");
        return Err(format!(
            "rail `ofi` is not in this build: use {others}, or build with the feature `libfabric`"
        ));
    }
    Ok(kind)
}

/// Checks that this build and this machine have what a rail of this kind needs.
///
/// # Errors
/// A line that names the missing part and the remedy.
pub fn check_available(kind: RailKind) -> Result<(), String> {
    #[cfg(feature = "libfabric")]
    if kind == RailKind::Ofi {
        return plexus_ofi::available().map_err(|why| why.to_string());
    }
    check_built(kind).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rail_that_is_not_built_is_refused_with_the_others() {
        for kind in RailKind::ALL {
            match check_built(kind) {
                Ok(built) => assert_eq!(built, kind),
                Err(why) => {
                    assert!(kind == RailKind::Ofi && !cfg!(feature = "libfabric"), "{why}");
                    assert!(why.contains("use shm or tcp, or build with the feature `libfabric`"), "{why}");
                    assert_eq!(check_available(kind), Err(why));
                }
            }
        }
    }
}
