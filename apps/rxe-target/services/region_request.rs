//! Requests of management to the region service, as JSON: `{"set":{"region":"a","watch":false,"peers":null}}`.

use rxe_proto::wire::{Cidr, PrefixList};
use serde::{Deserialize, Serialize};

use crate::config::RegionSpec;

/// What the service must know about a region besides its keys.
#[derive(Clone, PartialEq, Debug)]
pub struct RegionOptions {
    /// Print its text whenever its first byte changes.
    pub watch: bool,
    /// The addresses that it serves; `None` for all.
    pub peers: Option<PrefixList>,
}

impl RegionOptions {
    /// The options of a region.
    pub fn of(region: &RegionSpec) -> RegionOptions {
        RegionOptions { watch: region.watch, peers: region.peers.clone() }
    }
}

/// A request.
#[derive(Clone, PartialEq, Debug)]
pub enum RegionRequest {
    /// Use these options from now on; watching begins when the region is added.
    Set {
        /// Name of the region.
        region: String,
        /// Options of the client's region.
        options: RegionOptions,
    },
    /// The region is gone.
    Forget {
        /// Name of the region.
        region: String,
    },
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Text {
    Set { region: String, watch: bool, peers: Option<Vec<String>> },
    Forget { region: String },
}

impl RegionRequest {
    /// Parses a request.
    pub fn parse(text: &str) -> Result<RegionRequest, String> {
        let text = serde_json::from_str(text).map_err(|error| format!("the request cannot be parsed: {error}"))?;
        Ok(match text {
            Text::Set { region, watch, peers } => {
                let network = |text: String| text.parse::<Cidr>().map_err(|_| format!("'{text}' is not a network"));
                let peers: Option<Vec<Cidr>> =
                    peers.map(|peers| peers.into_iter().map(network).collect()).transpose()?;
                let options = RegionOptions { watch, peers: peers.map(|peers| peers.into_iter().collect()) };
                RegionRequest::Set { region, options }
            }
            Text::Forget { region } => RegionRequest::Forget { region },
        })
    }

    /// The request as JSON.
    pub fn text(self) -> String {
        let text = match self {
            RegionRequest::Set { region, options: RegionOptions { watch, peers } } => {
                let peers = peers.map(|peers| peers.networks().iter().map(ToString::to_string).collect());
                Text::Set { region, watch, peers }
            }
            RegionRequest::Forget { region } => Text::Forget { region },
        };
        // Serialization fails only for maps with keys that are not strings.
        serde_json::to_string(&text).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_read_as_they_were_written() {
        let peers: PrefixList =
            ["10.0.0.0/24", "fd00::/8"].map(|text| text.parse::<Cidr>().unwrap()).into_iter().collect();
        let set = |peers| RegionRequest::Set { region: "a".to_owned(), options: RegionOptions { watch: true, peers } };
        for request in [set(None), set(Some(peers)), RegionRequest::Forget { region: "b".to_owned() }] {
            assert_eq!(RegionRequest::parse(&request.clone().text()), Ok(request));
        }
        let wrong = r#"{"set":{"region":"a","watch":false,"peers":["10.0.0/24"]}}"#;
        assert_eq!(RegionRequest::parse(wrong), Err("'10.0.0/24' is not a network".to_owned()));
        assert!(RegionRequest::parse("{}").is_err_and(|said| said.starts_with("the request cannot be parsed: ")));
    }
}
