//! Names of enum values: in configuration files, on the command line and in reports.

/// Gives each value of an enum a name.
///
/// The macro adds `ALL`, `name` and `Display`. With `as` it also adds `FromStr`, whose error lists
/// all names.
///
/// ```
/// #[derive(Clone, Copy, PartialEq, Debug)]
/// enum Color { Red, Green }
///
/// plexus_base::named! { impl Color as "color" { Red "red", Green "green" } }
///
/// assert_eq!("green".parse(), Ok(Color::Green));
/// assert_eq!("blue".parse::<Color>(), Err("unknown color `blue`: use one of red, green".into()));
/// assert_eq!(Color::ALL.map(Color::name), ["red", "green"]);
/// ```
#[macro_export]
macro_rules! named {
    (impl $type:ident { $($variant:ident $name:literal),+ $(,)? }) => {
        impl $type {
            /// All values.
            pub const ALL: [Self; [$($name),+].len()] = [$(Self::$variant),+];

            /// Returns the name of the value.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)+
                }
            }
        }

        impl std::fmt::Display for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(self.name())
            }
        }
    };
    (impl $type:ident as $what:literal { $($variant:ident $name:literal),+ $(,)? }) => {
        $crate::named! { impl $type { $($variant $name),+ } }

        impl std::str::FromStr for $type {
            type Err = String;

            fn from_str(text: &str) -> Result<Self, String> {
                Self::ALL.into_iter().find(|value| value.name() == text).ok_or_else(|| {
                    let known = Self::ALL.map(Self::name).join(", ");
                    format!(concat!("unknown ", $what, " `{}`: use one of {}"), text, known)
                })
            }
        }
    };
}
