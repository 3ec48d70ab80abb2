//! Output of perftest's programs.

/// A row of results.
#[derive(Clone, PartialEq, Debug)]
pub struct Row {
    /// Bytes of a message.
    pub size: u64,
    /// Number of messages.
    pub count: u64,
    /// The other columns, which depend on the program.
    pub figures: Vec<f64>,
}

/// What perftest prints on standard error when it could not measure the CPU's clock, on a busy machine: its rates are 0 then. On a
/// terminal, or in the output of a guest, it stands behind a row.
pub const NO_CLOCK: &str = "Correlation coefficient";

/// All rows of results.
pub fn rows(text: &str) -> Vec<Row> {
    let row = |line: &str| {
        let line = line.split(NO_CLOCK).next()?;
        let mut words = line.split_whitespace();
        let (size, count) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
        let figures: Vec<f64> = words.map(str::parse).collect::<Result<_, _>>().ok()?;
        // A result, not a line of the header.
        (!figures.is_empty()).then_some(Row { size, count, figures })
    };
    text.lines().filter_map(row).collect()
}

/// The path MTU that the head of the output names.
pub fn path_mtu(text: &str) -> Option<u32> {
    let line = text.lines().find_map(|line| line.trim().strip_prefix("Mtu"))?;
    line.split(':').nth(1)?.split('[').next()?.trim().parse().ok()
}
