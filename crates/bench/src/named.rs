//! Enums whose values have a name on the command line and in results.

/// Declares an enum whose values have a name on the command line and in results.
macro_rules! named {
    ($(#[$meta:meta])* $type:ident, $what:literal { $($(#[$doc:meta])* $variant:ident $name:literal),+ $(,)? }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, serde::Serialize, serde::Deserialize)]
        #[serde(rename_all = "lowercase")]
        pub enum $type { $($(#[$doc])* $variant),+ }

        impl $type {
            /// All values.
            pub const ALL: &[Self] = &[$(Self::$variant),+];

            /// Returns the name on the command line and in results.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self { $(Self::$variant => $name),+ }
            }
        }
        impl std::fmt::Display for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(self.name())
            }
        }
        impl std::str::FromStr for $type {
            type Err = String;
            fn from_str(text: &str) -> Result<Self, String> {
                Self::ALL.iter().copied().find(|value| value.name() == text).ok_or_else(|| {
                    let known: Vec<_> = Self::ALL.iter().map(|value| value.name()).collect();
                    format!(concat!("unknown ", $what, " `{}`: use one of {}"), text, known.join(", "))
                })
            }
        }
    };
}
pub(crate) use named;

#[cfg(test)]
mod tests {
    use crate::locks::Names;

    #[test]
    fn values_have_names_and_others_are_refused_with_them() {
        for names in Names::ALL {
            assert_eq!(names.to_string().parse(), Ok(*names));
        }
        let refused = "four".parse::<Names>();
        assert_eq!(refused, Err("unknown names `four`: use one of local, remote, shared".into()));
    }
}
