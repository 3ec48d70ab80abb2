//! Values of command-line options.

use std::time::Duration;

/// A queue pair number, decimal or hexadecimal.
pub fn qpn(text: &str) -> Result<u32, String> {
    let number = match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        Some(hex) => u32::from_str_radix(hex, 16),
        None => text.parse(),
    };
    match number {
        Ok(number) if number < 1 << 24 => Ok(number),
        _ => Err("queue pair numbers go from 0 to 0xffffff".to_owned()),
    }
}

/// An interval in seconds.
pub fn seconds(text: &str) -> Result<Duration, String> {
    match text.parse::<f64>() {
        Ok(seconds) if (0.1..=3600.0).contains(&seconds) => Ok(Duration::from_secs_f64(seconds)),
        _ => Err("intervals go from 0.1 to 3600 seconds".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queue_pair_numbers_are_decimal_or_hexadecimal() {
        assert_eq!((qpn("17"), qpn("0x11")), (Ok(17), Ok(17)));
        assert!(qpn("0x1000000").is_err() && qpn("x").is_err());
    }

    #[test]
    fn intervals_may_be_fractions_of_seconds() {
        assert_eq!(seconds("0.5"), Ok(Duration::from_millis(500)));
        assert!(seconds("0").is_err() && seconds("NaN").is_err());
    }
}
