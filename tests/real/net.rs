//! Interfaces for the tests, in the run's own network namespace.

use rxe_testkit::process::must;

/// A tap interface without kernel addresses: QEMU on one side, the target's net_af_packet on the other.
pub struct Tap {
    /// The interface's name.
    pub name: String,
}

impl Tap {
    /// Makes it and sets it up.
    pub fn new(name: &str, mtu: u32) -> Result<Tap, String> {
        must("ip", &["tuntap", "add", "dev", name, "mode", "tap"])?;
        let tap = Tap { name: name.to_owned() };
        // The kernel must neither have an address here nor answer the guest in the target's place.
        std::fs::write(format!("/proc/sys/net/ipv6/conf/{name}/disable_ipv6"), "1").map_err(|e| e.to_string())?;
        must("ip", &["link", "set", name, "mtu", &mtu.to_string(), "up"])?;
        Ok(tap)
    }

    /// Frames that have passed it: "in" are those that the guest sent.
    pub fn counters(&self) -> String {
        let of = |what: &str| {
            let file = format!("/sys/class/net/{}/statistics/{what}", self.name);
            std::fs::read_to_string(file).map_or_else(|e| e.to_string(), |count| count.trim().to_owned())
        };
        let [inward, outward] = ["rx", "tx"]
            .map(|way| format!("{} frames, {} dropped", of(&format!("{way}_packets")), of(&format!("{way}_dropped"))));
        format!("{}: in {inward}; out {outward}", self.name)
    }
}

impl Drop for Tap {
    fn drop(&mut self) {
        let _ = must("ip", &["link", "del", &self.name]);
    }
}
