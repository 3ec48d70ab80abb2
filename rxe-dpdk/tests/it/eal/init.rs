//! The errors that a user sees when EAL does not start.

use rxe_dpdk::eal::{Eal, EalError};
use rxe_testkit::child;

fn init(args: &str) -> Result<Eal, EalError> {
    Eal::init(&args.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
}

/// The error for `args`, and its text.
fn sentence(args: &str) -> (EalError, String) {
    let error = init(args).unwrap_err();
    let text = error.to_string();
    assert!(!text.contains('\n') && text.len() < 600, "{args}: {text}");
    (error, text)
}

const QUIET: &str = "--no-huge -m 64 --no-pci --no-telemetry --no-shconf";

#[test]
fn invalid_arguments_are_named_and_eal_can_start_after_them() {
    child::alone(|| {
        let cases = [
            ("--nonsense", "unrecognized option '--nonsense'"),
            ("-c", "requires an argument"),
            ("-l nowhere", "invalid core list"),
            ("--iova-mode=x", "iova-mode"),
            ("--file-prefix ..", "`..` cannot be a --file-prefix"),
            ("--file-pre=/tmp/rxe-no-such-folder", "cannot be a --file-prefix"),
        ];
        for (bad, hint) in cases {
            let (error, text) = sentence(&format!("{QUIET} {bad}"));
            assert!(matches!(error, EalError::BadArguments { .. }), "{bad}: {error:?}");
            assert!(text.contains(hint), "{bad}: {text}");
        }
        // EAL would print these and end the process.
        for help in ["-h", "--help", "-v", "--version"] {
            assert!(matches!(init(help), Err(EalError::BadArguments { .. })), "{help}");
        }
        assert!(matches!(Eal::init(&["\0".to_owned()]), Err(EalError::BadArguments { .. })));

        // EAL can still start after all these errors.
        let eal = init(QUIET).unwrap();
        assert_eq!(eal.port_count(), 0);
        assert!(eal.ports().is_empty());
    });
}

#[test]
fn stray_word_is_named() {
    child::alone(|| {
        let (error, text) = sentence(&format!("{QUIET} vdev=net_ring0"));
        assert!(matches!(error, EalError::BadArguments { .. }), "{error:?}");
        assert!(text.contains("vdev=net_ring0"), "{text}");
        assert!(matches!(init(QUIET), Err(EalError::AlreadyInitialised)));
    });
}

#[test]
fn missing_driver_is_named() {
    child::alone(|| {
        let (_, text) = sentence(&format!("{QUIET} --vdev=net_nonsense0"));
        assert!(text.contains("net_nonsense0"), "{text}");
    });
}

#[test]
fn device_that_does_not_start_is_named() {
    child::alone(|| {
        let (error, text) = sentence(&format!("{QUIET} --vdev=net_ring0 --vdev=net_af_packet7,iface=nosuchif0"));
        assert!(matches!(error, EalError::Device { .. }), "{error:?}");
        assert!(text.starts_with("the device net_af_packet7 did not start: "), "{text}");
        assert!(text.contains("nosuchif0") || text.contains("net_af_packet7"), "{text}");
    });
}

#[test]
fn lack_of_memory_is_named() {
    child::alone(|| {
        // With hugepages or without, on any machine: the error names memory or hugepages.
        let (error, text) = sentence("--in-memory -m 16000000 --no-pci --no-telemetry");
        assert!(matches!(error, EalError::Init { .. } | EalError::NoHugepages { .. }), "{error:?}");
        assert!(text.contains("emory") || text.contains("hugepages"), "{text}");
    });
}
