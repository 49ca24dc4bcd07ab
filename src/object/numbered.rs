//! Enums whose numbers are part of a contract: the protocol's, or the shared memory's.

/// Declares an enum with its numbers, and the way back from a number.
macro_rules! numbered {
    ($(#[$meta:meta])* $name:ident: $repr:ty { $($(#[$doc:meta])* $variant:ident = $number:literal),+ $(,)? }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr($repr)]
        pub enum $name { $($(#[$doc])* $variant = $number),+ }

        impl $name {
            /// The variant of a number; `None` for one that this version does not know.
            pub fn from_number(number: $repr) -> Option<Self> {
                match number { $($number => Some(Self::$variant),)+ _ => None }
            }

            /// The number in the protocol.
            pub fn number(self) -> $repr {
                self as $repr
            }
        }
    };
}
pub(crate) use numbered;
