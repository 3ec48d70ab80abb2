//! Counters with one writer and any number of readers.

pub use rxe_sync::Counter;

/// Declares a struct of [`Counter`]s whose field names are the names that users see.
///
/// The struct gets `iter()`, which yields `(name, value)` in declaration order, and `DESCRIPTIONS`, the names with what
/// their documentation says.
///
/// The struct has cache lines of its own (two, as processors prefetch pairs), so that writers on different lcores do
/// not slow each other down.
#[macro_export]
macro_rules! counters {
    ($(#[$meta:meta])* $vis:vis struct $name:ident { $($(#[doc = $doc:literal])* $field:ident,)* }) => {
        $(#[$meta])*
        #[derive(Debug, Default)]
        #[repr(align(128))]
        $vis struct $name { $($(#[doc = $doc])* pub $field: $crate::counters::Counter,)* }

        impl $name {
            /// Every counter's name and what it counts, in declaration order.
            pub const DESCRIPTIONS: &'static [(&'static str, &'static str)] =
                &[$((stringify!($field), concat!($($doc),*).trim_ascii()),)*];

            /// Every counter's name and value, in declaration order.
            pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
                [$((stringify!($field), self.$field.get()),)*].into_iter()
            }
        }
    };
}

#[cfg(test)]
mod tests {
    counters! {
        /// Two.
        struct Two {
            /// The first, which is
            /// described on two lines.
            first,
            /// The second.
            second,
        }
    }

    #[test]
    fn names_values_and_descriptions_go_together() {
        let two = Two::default();
        two.second.add(7);
        assert_eq!(two.iter().collect::<Vec<_>>(), [("first", 0), ("second", 7)]);
        assert_eq!(two.first.get(), 0);
        let first = ("first", "The first, which is described on two lines.");
        assert_eq!(Two::DESCRIPTIONS, [first, ("second", "The second.")]);
    }
}
