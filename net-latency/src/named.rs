//! Enums of values that have names.

/// Makes an enum from one list of its values and their names: `ALL` has both, in this order.
macro_rules! named {
    ($(#[$meta:meta])* $vis:vis enum $named:ident { $($(#[$own:meta])* $value:ident $name:literal,)+ }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        $vis enum $named {
            $($(#[$own])* $value,)+
        }

        impl $named {
            /// All of them, each with its name.
            $vis const ALL: &'static [(Self, &'static str)] = &[$((Self::$value, $name),)+];

            /// Its name.
            #[must_use]
            $vis const fn name(self) -> &'static str {
                Self::ALL[self as usize].1
            }
        }

        impl serde::Serialize for $named {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(self.name())
            }
        }
    };
}
pub(crate) use named;
