//! Values as users write them, in configuration files, on command lines and in requests of management.

mod congestion;
mod fault_rule;
mod fault_values;

use std::fmt;
use std::str::FromStr;

use serde::de::{Deserialize, Deserializer, Error, Visitor};

pub use congestion::Congestion;
pub use fault_rule::{RuleSpec, fault_rule};
pub use fault_values::{Frames, Seed, Share, Span};

/// A text that is no value; the sentence says what would be one.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{0}")]
pub struct Invalid(pub String);

/// Returns an [`Invalid`] with a formatted sentence.
macro_rules! invalid {
    ($($sentence:tt)*) => {
        Err($crate::texts::Invalid(format!($($sentence)*)))
    };
}
use invalid;

/// A value of a file or request that is parsed from text, or from a plain number.
#[derive(Clone, Debug)]
pub struct Text<T>(pub T);

impl<'de, T: FromStr<Err: fmt::Display>> Deserialize<'de> for Text<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Text<T>, D::Error> {
        struct TextVisitor<T>(std::marker::PhantomData<T>);

        impl<T: FromStr<Err: fmt::Display>> Visitor<'_> for TextVisitor<T> {
            type Value = Text<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a text or a number")
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Text<T>, E> {
                text.parse().map(Text).map_err(E::custom)
            }

            fn visit_i64<E: Error>(self, number: i64) -> Result<Text<T>, E> {
                self.visit_str(&number.to_string())
            }

            fn visit_f64<E: Error>(self, number: f64) -> Result<Text<T>, E> {
                self.visit_str(&number.to_string())
            }
        }

        deserializer.deserialize_any(TextVisitor(std::marker::PhantomData))
    }
}
