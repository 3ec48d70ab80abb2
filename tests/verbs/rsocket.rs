//! librdmacm's programs on rsockets.

use std::fs;

use crate::case::Case;
use crate::client_output::Wants;
use crate::pair::{Command, Pair, Ready};

/// All pairs.
pub fn cases() -> Vec<Case> {
    let listens = Ready::Command(Command::Listen);
    let mut cases = Vec::new();
    for flags in [
        "-S 1 -C 1 -I 20 -T v",
        "-S 4096 -C 10 -I 10",
        "-S 65536 -C 2 -I 5 -T v",
        "-S 1000001 -C 2 -I 2 -T v",
        "-S 5000 -C 50 -I 2 -T v -B 8192",
        "-S 512 -C 2 -I 10 -T b -T v",
        "-S 30000 -C 10 -I 2 -T n -T v",
    ] {
        for program in ["rstream", "riostream"] {
            let client = format!("{program} -s SERVER {flags}");
            let pair = Pair::new(format!("{program} -b SERVER {flags}"), client, Wants::Custom);
            cases.push(pair.ready(listens).server_wants(Wants::Custom).case("rsocket"));
        }
    }
    cases.push(Case::new("rsocket/rcopy", move |place| {
        let bytes: Vec<u8> = (0..3_000_001_u32).map(|index| (index.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        let (source, copy) = (place.work().join("rcopy.source"), place.work().join("rcopy.copy"));
        fs::write(&source, &bytes).map_err(|error| error.to_string())?;
        let client = format!("rcopy {} SERVER:{}", source.display(), copy.display());
        Pair::new("rcopy", client, Wants::Texts(&["done"])).ready(listens).runs_for_ever().run(place)?;
        let copied = fs::read(&copy).map_err(|error| format!("{}: {error}", copy.display()))?;
        if copied == bytes { Ok(()) } else { Err(format!("the copy of {} bytes is another one", copied.len())) }
    }));
    cases
}
