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

/// All rows of results.
pub fn rows(text: &str) -> Vec<Row> {
    let row = |line: &str| {
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
