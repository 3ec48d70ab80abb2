//! EAL's arguments, parsed before EAL reads them.

use std::collections::HashMap;

use super::error::EalError;

/// The `--file-prefix` among EAL's arguments, which distinguishes processes on one machine; `rte` by default.
pub fn file_prefix(args: &[String]) -> String {
    EalArgs::new(args).values("--file-prefix").last().copied().unwrap_or("rte").to_owned()
}

/// Whether the `--file-prefix` among EAL's arguments, if there is one, is the name of a folder and nothing else.
///
/// # Errors
///
/// [`EalError::BadArguments`], as [`Eal::init`](super::Eal::init) would answer.
pub fn check_file_prefix(args: &[String]) -> Result<(), EalError> {
    EalArgs::new(args).bad_file_prefix().map_or(Ok(()), |detail| Err(EalError::BadArguments { detail }))
}

/// The longest file prefix: with it the path of a socket below `/var/run` still fits.
const MAX_PREFIX: usize = 64;

/// Whether a file prefix is the name of a folder and nothing else. EAL makes paths with it unseen, and cleans up there:
/// `..` or a `/` would lead it, and us, to folders of others.
fn is_file_prefix(prefix: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    (1..=MAX_PREFIX).contains(&prefix.len()) && prefix.bytes().all(plain) && !matches!(prefix, "." | "..")
}

/// Whether `key` is the option `name`. As getopt_long does, EAL takes the beginning of a long option's name for it.
fn is_option(key: &str, name: &str) -> bool {
    key == name || (key.len() > 2 && key.starts_with("--") && name.starts_with(key))
}

/// EAL arguments (without a program name), looked at but not owned by us: EAL is the one that judges them.
#[derive(Debug)]
pub(super) struct EalArgs<'a>(&'a [String]);

/// A `--vdev` argument: `name,key=value,key=value`.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Vdev {
    pub(super) name: String,
    pub(super) args: HashMap<String, String>,
}

impl Vdev {
    fn parse(text: &str) -> Vdev {
        let mut parts = text.split(',');
        let name = parts.next().unwrap_or_default().to_owned();
        let args = parts.map(|part| part.split_once('=').unwrap_or((part, "")));
        Vdev { name, args: args.map(|(key, value)| (key.to_owned(), value.to_owned())).collect() }
    }

    /// Whether this device is made by the driver whose devices are called `net_<kind>N`, `eth_<kind>N` or `<kind>N`.
    pub(super) fn is(&self, kind: &str) -> bool {
        let name = self.name.strip_prefix("net_").or_else(|| self.name.strip_prefix("eth_")).unwrap_or(&self.name);
        name.strip_prefix(kind).is_some_and(|rest| rest.bytes().all(|b| b.is_ascii_digit()))
    }

    /// Whether this is to be a port.
    pub(super) fn is_port(&self) -> bool {
        ["net_", "eth_", "virtio_user"].iter().any(|prefix| self.name.starts_with(prefix))
    }

    /// The value of a numeric argument.
    pub(super) fn number(&self, key: &str) -> Option<u32> {
        self.args.get(key)?.parse().ok()
    }
}

impl<'a> EalArgs<'a> {
    pub(super) fn new(args: &'a [String]) -> EalArgs<'a> {
        EalArgs(args)
    }

    /// The arguments themselves.
    pub(super) fn words(&self) -> &'a [String] {
        self.0
    }

    /// Whether the flag `name` (with its dashes) is given.
    pub(super) fn has(&self, name: &str) -> bool {
        self.0
            .iter()
            .map(|arg| arg.split_once('=').map_or(arg.as_str(), |(key, _)| key))
            .any(|key| is_option(key, name))
    }

    /// Every value of the option `name`, given as `name=value` or as two arguments.
    pub(super) fn values(&self, name: &str) -> Vec<&'a str> {
        let mut found = Vec::new();
        for (i, arg) in self.0.iter().enumerate() {
            match arg.split_once('=') {
                Some((key, value)) if is_option(key, name) => found.push(value),
                None if is_option(arg, name) => found.extend(self.0.get(i + 1).map(String::as_str)),
                _ => {}
            }
        }
        found
    }

    pub(super) fn vdevs(&self) -> Vec<Vdev> {
        self.values("--vdev").into_iter().map(Vdev::parse).collect()
    }

    /// Whether a request for help or the version would make EAL print it and end the process.
    pub(super) fn asks_for_help(&self) -> bool {
        self.0.iter().any(|arg| matches!(arg.as_str(), "-h" | "--help" | "-v" | "--version"))
    }

    /// The fault of `--file-prefix`, if it has one.
    pub(super) fn bad_file_prefix(&self) -> Option<String> {
        let prefix = self.values("--file-prefix").into_iter().find(|prefix| !is_file_prefix(prefix))?;
        Some(format!(
            "`{prefix}` cannot be a --file-prefix: write 1 to {MAX_PREFIX} letters, digits, dots, dashes and underscores, \
             and not `.` or `..`"
        ))
    }

    /// Additional arguments for EAL.
    pub(super) fn additions(&self) -> Vec<String> {
        let mut more = Vec::new();
        // vhost accepts at most 8 memory regions and virtio_user sends one per file: with one file per 2 MiB page
        // the connection fails with "Too many memory regions".
        let virtio_user = self.vdevs().iter().any(|vdev| vdev.is("virtio_user"));
        let excluded = ["--single-file-segments", "--no-huge", "--legacy-mem"].iter().any(|flag| self.has(flag));
        if virtio_user && !excluded {
            more.push("--single-file-segments".to_owned());
        }
        more
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(text: &str) -> Vec<String> {
        text.split_whitespace().map(str::to_owned).collect()
    }

    #[test]
    fn options_are_found_in_both_spellings() {
        let args = args("-l 0 --vdev=net_af_packet0,iface=veth0,framesz=8192 --vdev net_ring3 --no-pci");
        let args = EalArgs::new(&args);
        let vdevs = args.vdevs();
        assert_eq!(vdevs.len(), 2);
        assert!(vdevs[0].is("af_packet") && !vdevs[0].is("ring"));
        assert_eq!(vdevs[0].number("framesz"), Some(8192));
        assert_eq!(vdevs[0].number("iface"), None);
        assert!(vdevs[1].is("ring"));
        assert!(args.has("--no-pci") && args.has("--vdev") && !args.has("--no-huge"));
    }

    #[test]
    fn virtio_user_wants_single_file_segments_once() {
        let wanted = |text: &str| !EalArgs::new(&args(text)).additions().is_empty();
        assert!(wanted("--vdev net_virtio_user0,path=/tmp/s"));
        assert!(wanted("--vdev=virtio_user0,path=/tmp/s"));
        assert!(!wanted("--vdev=virtio_user0,path=/tmp/s --single-file-segments"));
        assert!(!wanted("--vdev=net_vhost0,iface=/tmp/s"));
        assert!(!wanted("--vdev=virtio_user0,path=/dev/vhost-net --no-huge -m 64"));
    }

    #[test]
    fn the_file_prefix_is_found() {
        assert_eq!(file_prefix(&args("-l 0 --file-prefix=a --no-pci")), "a");
        assert_eq!(file_prefix(&args("--file-prefix a --file-prefix b")), "b");
        assert_eq!(file_prefix(&args("-l 0")), "rte");
    }

    #[test]
    fn a_file_prefix_is_a_plain_name() {
        let bad = |text: &str| EalArgs::new(&args(text)).bad_file_prefix();
        for good in ["rte", "a.b-c_D9", "...", ".a", &"x".repeat(64)] {
            assert_eq!(bad(&format!("--file-prefix {good}")), None, "{good}");
        }
        for wrong in ["..", ".", "/tmp/x", "a/b", "a*b", "\u{e4}", &"x".repeat(65)] {
            assert!(bad(&format!("--file-prefix {wrong}")).is_some(), "{wrong}");
            assert!(bad(&format!("--file-prefix good --file-pre={wrong}")).is_some(), "{wrong}, abbreviated");
        }
        assert!(bad("--file-prefix=").is_some());
        assert_eq!(bad("-l 0 --no-pci"), None);
    }

    #[test]
    fn a_dangling_option_has_no_value() {
        assert!(EalArgs::new(&args("--no-pci --vdev")).vdevs().is_empty());
    }
}
