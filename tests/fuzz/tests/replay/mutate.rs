//! Mutations of inputs, chosen by a seeded generator.

/// splitmix64: small, seeded, and the same on every machine.
pub struct Rng(u64);

impl Rng {
    pub fn new(seed: u64) -> Rng {
        Rng(seed)
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ z >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ z >> 31
    }

    /// A number below `n`; 0 if there is none.
    pub fn below(&mut self, n: usize) -> usize {
        if n == 0 { 0 } else { (self.next() % n as u64) as usize }
    }
}

/// Values at the edges of fields.
const EDGES: [u64; 12] = [0, 1, 2, 3, 0x7F, 0x80, 0xFF, 0x7FFF_FFFF, 0x8000_0000, 0xFF_FFFF, u64::MAX / 2, u64::MAX];

/// One of `inputs`, changed in up to eight places, with at most `longest` bytes.
pub fn mutate(rng: &mut Rng, inputs: &[&[u8]], longest: usize) -> Vec<u8> {
    let mut out = inputs[rng.below(inputs.len())].to_vec();
    for _ in 0..1 << rng.below(4) {
        change(rng, inputs, &mut out);
        out.truncate(longest);
    }
    out
}

fn change(rng: &mut Rng, inputs: &[&[u8]], out: &mut Vec<u8>) {
    let at = rng.below(out.len());
    match rng.below(9) {
        0 if !out.is_empty() => out[at] ^= 1 << rng.below(8),
        1 if !out.is_empty() => out[at] = rng.next() as u8,
        2 => overwrite(rng, out, at),
        3 if !out.is_empty() => out[at] = out[at].wrapping_add(rng.below(9) as u8).wrapping_sub(4),
        4 => {
            let len = rng.below(out.len() - at + 1).min(1 << rng.below(9));
            out.drain(at..at + len);
        }
        5 => {
            let (len, byte) = (1 << rng.below(9), rng.next() as u8);
            out.splice(at..at, std::iter::repeat_n(byte, len));
        }
        6 => {
            let from = piece(rng, out).to_vec();
            out.splice(at..at, from);
        }
        7 => {
            // The rest comes from another input.
            let other = inputs[rng.below(inputs.len())];
            out.truncate(at);
            out.extend_from_slice(&other[rng.below(other.len())..]);
        }
        8 => {
            let other = inputs[rng.below(inputs.len())];
            let other = piece(rng, other).to_vec();
            out.splice(at..at, other);
        }
        _ => out.push(rng.next() as u8),
    }
}

/// A value of one, two, four or eight bytes, in either byte order.
fn overwrite(rng: &mut Rng, out: &mut [u8], at: usize) {
    let width = 1 << rng.below(4);
    let value = EDGES[rng.below(EDGES.len())];
    let mut bytes = value.to_le_bytes();
    if rng.below(2) == 0 {
        bytes[..width].reverse();
    }
    for (to, from) in out.iter_mut().skip(at).zip(&bytes[..width]) {
        *to = *from;
    }
}

/// Some bytes of `from`.
fn piece<'a>(rng: &mut Rng, from: &'a [u8]) -> &'a [u8] {
    let start = rng.below(from.len());
    let len = rng.below(from.len() - start + 1).min(1 << rng.below(10));
    &from[start..start + len]
}
