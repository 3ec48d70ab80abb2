//! What a user sees when EAL does not start. One test: a process has one EAL, and failed starts come before it.

use rxe_dpdk::eal::{Eal, EalError};

fn init(args: &str) -> Result<Eal, EalError> {
    Eal::init(&args.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
}

const QUIET: &str = "--no-huge -m 64 --no-pci --no-telemetry --no-shconf";

#[test]
fn failures_are_one_sentence_each_and_do_not_end_the_process() {
    for bad in ["--nonsense", "-c", "-l nowhere", "--iova-mode=x"] {
        let error = init(&format!("{QUIET} {bad}")).unwrap_err();
        let text = error.to_string();
        assert!(matches!(error, EalError::BadArguments { .. }), "{bad}: {error:?}");
        assert!(!text.contains('\n') && text.len() < 500, "{bad}: {text}");
        eprintln!("{bad}: {text}");
    }
    for help in ["-h", "--help", "-v", "--version"] {
        assert!(matches!(init(help), Err(EalError::BadArguments { .. })), "{help}");
    }
    assert!(matches!(Eal::init(&["\0".to_owned()]), Err(EalError::BadArguments { .. })));

    // The process can still start, and stderr is what it was.
    let eal = init(QUIET).unwrap();
    assert_eq!(eal.port_count(), 0);
    assert!(eal.ports().is_empty());
}
