//! Values that help and completions show, while the option takes any text: its own parser names what is wrong with it.

use std::ffi::OsStr;

use clap::builder::{PossibleValue, StringValueParser, TypedValueParser};

/// A text, with these suggestions.
#[derive(Clone, Debug)]
pub struct Suggested(Vec<&'static str>);

impl Suggested {
    /// Suggests `values`.
    pub fn new(values: impl IntoIterator<Item = &'static str>) -> Suggested {
        Suggested(values.into_iter().collect())
    }
}

impl TypedValueParser for Suggested {
    type Value = String;

    fn parse_ref(
        &self,
        command: &clap::Command,
        argument: Option<&clap::Arg>,
        value: &OsStr,
    ) -> Result<String, clap::Error> {
        StringValueParser::new().parse_ref(command, argument, value)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        Some(Box::new(self.0.iter().map(PossibleValue::new)))
    }
}

#[cfg(test)]
mod tests {
    use clap::{Arg, Command};

    use super::*;

    #[test]
    fn suggestions_are_shown_and_other_texts_are_taken() {
        let command = Command::new("x").arg(Arg::new("level").value_parser(Suggested::new(["warn", "info"])));
        let matches = command.clone().try_get_matches_from(["x", "loud"]).unwrap();
        assert_eq!(matches.get_one::<String>("level").map(String::as_str), Some("loud"));
        let values = command.get_arguments().next().unwrap().get_possible_values();
        assert_eq!(values.iter().map(PossibleValue::get_name).collect::<Vec<_>>(), ["warn", "info"]);
    }
}
