//! Enums whose values have a name on the command line and in results.

/// Declares an enum whose values have a name on the command line and in results.
macro_rules! named {
    ($(#[$meta:meta])* $type:ident, $what:literal { $($(#[$doc:meta])* $variant:ident $name:literal),+ $(,)? }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, serde::Serialize, serde::Deserialize)]
        #[serde(rename_all = "lowercase")]
        pub enum $type { $($(#[$doc])* $variant),+ }

        plexus_base::named! { impl $type as $what { $($variant $name),+ } }
    };
}
pub(crate) use named;
