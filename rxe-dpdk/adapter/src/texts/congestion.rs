//! Congestion control, as the configuration file and command lines write it.

use std::str::FromStr;

use rxe_proto::transport::{CongestionControl, Dcqcn, DelayControl};

use super::{Invalid, Span, invalid};

/// `off`, `cnp`, or `delay:TIME` with the target round trip.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Congestion(pub CongestionControl);

impl FromStr for Congestion {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Congestion, Invalid> {
        let control = match (text, text.strip_prefix("delay:")) {
            ("off", _) => CongestionControl::Off,
            ("cnp", _) => CongestionControl::Notifications(Dcqcn::default()),
            (_, Some(time)) => {
                let Span(target) = time.parse()?;
                if target.is_zero() {
                    return invalid!("'{text}' has no time: write the round trip to keep to, as delay:100us");
                }
                // Windows of a tenth of a packet get half as much again.
                CongestionControl::Delay(DelayControl { target, scaling: target / 2 })
            }
            _ => {
                return invalid!(
                    "'{text}' is no congestion control: it is 'cnp', 'off', or 'delay:TIME', as delay:100us"
                );
            }
        };
        Ok(Congestion(control))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn each_kind_is_read_and_others_are_refused_with_what_is_right() {
        assert_eq!("off".parse(), Ok(Congestion(CongestionControl::Off)));
        assert_eq!("cnp".parse(), Ok(Congestion(CongestionControl::default())));
        let Ok(Congestion(CongestionControl::Delay(delay))) = "delay:80us".parse() else { panic!("delay") };
        assert_eq!((delay.target, delay.scaling), (Duration::from_micros(80), Duration::from_micros(40)));
        for (text, words) in
            [("dcqcn", "'cnp', 'off'"), ("delay:0us", "no time"), ("delay:5", "not a time"), ("", "'cnp'")]
        {
            let Invalid(sentence) = text.parse::<Congestion>().unwrap_err();
            assert!(sentence.contains(words), "{sentence}");
        }
    }
}
