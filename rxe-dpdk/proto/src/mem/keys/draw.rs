//! Drawing keys, and not drawing them again soon.

use rand_chacha::ChaCha12Rng;
use rand_core::{Rng, SeedableRng};

use super::KeyDomain;
use super::open_table::OpenTable;
use super::quarantine::Quarantine;
use super::slot::Slot;

/// Which bits of its keys a table chooses.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum KeyLayout {
    /// All of them: 31 random bits and the bit of the [`KeyDomain`].
    #[default]
    Random,
    /// All of them at first, but a bind may set the lowest byte of a window's key: IBTA's key of the consumer, which
    /// `ibv_bind_mw` and `ibv_inc_rkey` of libibverbs rely on. The upper 24 bits of no two keys of a table are equal.
    ConsumerByte,
}

impl KeyLayout {
    /// The most keys that a table holds. Few enough that a key that is not in use is found soon.
    #[must_use]
    pub const fn max_keys(self) -> usize {
        match self {
            KeyLayout::Random => 1 << 24,
            KeyLayout::ConsumerByte => 1 << 23,
        }
    }
}

/// Draws keys that are neither in use nor in quarantine.
pub(super) struct KeySource {
    rng: ChaCha12Rng,
    /// Keys that were in use; only their upper 24 bits if consumers set the lowest byte.
    quarantine: Quarantine,
    layout: Layout,
}

enum Layout {
    Random(KeyDomain),
    ConsumerByte {
        /// The upper 24 bits of the keys in use.
        indexes: OpenTable<u32>,
    },
}

impl KeySource {
    /// How many keys are certain not to come back.
    pub(super) const QUARANTINE: usize = 1 << 16;

    /// Random keys of one domain.
    pub(super) fn random(seed: [u8; 32], domain: KeyDomain) -> KeySource {
        KeySource::with_layout(seed, Layout::Random(domain))
    }

    /// Keys with a consumer's byte.
    pub(super) fn consumer_byte(seed: [u8; 32]) -> KeySource {
        KeySource::with_layout(seed, Layout::ConsumerByte { indexes: OpenTable::new(32) })
    }

    fn with_layout(seed: [u8; 32], layout: Layout) -> KeySource {
        KeySource { rng: ChaCha12Rng::from_seed(seed), quarantine: Quarantine::new(Self::QUARANTINE), layout }
    }

    /// Repeats the draws from the beginning.
    #[cfg(test)]
    pub(super) fn restart(&mut self, seed: [u8; 32]) {
        self.rng = ChaCha12Rng::from_seed(seed);
    }

    pub(super) fn layout(&self) -> KeyLayout {
        match self.layout {
            Layout::Random(_) => KeyLayout::Random,
            Layout::ConsumerByte { .. } => KeyLayout::ConsumerByte,
        }
    }

    /// The domain of the keys.
    pub(super) fn domain(&self) -> KeyDomain {
        match self.layout {
            Layout::Random(domain) => domain,
            Layout::ConsumerByte { .. } => KeyDomain::Local,
        }
    }

    /// Whether keys like this one are drawn here; those of adopted regions are not.
    pub(super) fn draws(&self, key: u32) -> bool {
        match self.layout {
            Layout::Random(domain) => key & 1 == domain as u32,
            Layout::ConsumerByte { .. } => true,
        }
    }

    /// A key for use, which is not among `slots`. Most draws succeed at once: at most half of all keys, and far fewer
    /// of random ones, are in use or in quarantine.
    pub(super) fn draw(&mut self, slots: &OpenTable<Slot>) -> u32 {
        loop {
            let drawn = self.rng.next_u32();
            match &mut self.layout {
                // compliance.md [MEM-KEY-RANDOM]: Keys are drawn at random.
                Layout::Random(domain) => {
                    let key = drawn & !1 | *domain as u32;
                    if key != 0 && !slots.contains(key) && !self.quarantine.contains(key) {
                        return key;
                    }
                }
                Layout::ConsumerByte { indexes } => {
                    let index = index_of(drawn);
                    if index != 0 && !indexes.contains(index) && !self.quarantine.contains(index) {
                        indexes.insert(index);
                        return drawn;
                    }
                }
            }
        }
    }

    /// Takes back a key that was in use, unless it was not drawn here. With a consumer's byte, no key with the same
    /// upper bits is drawn soon, whatever bytes the consumer has set.
    pub(super) fn retire(&mut self, key: u32) {
        if !self.draws(key) {
            return;
        }
        match &mut self.layout {
            Layout::Random(_) => self.quarantine.retire(key),
            Layout::ConsumerByte { indexes } => {
                indexes.remove(index_of(key));
                self.quarantine.retire(index_of(key));
            }
        }
    }
}

/// The part of a key that its consumer cannot set.
fn index_of(key: u32) -> u32 {
    key >> 8
}

/// The key with another byte of its consumer.
pub(super) fn with_byte(key: u32, byte: u8) -> u32 {
    index_of(key) << 8 | u32::from(byte)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn draws(source: &mut KeySource, count: usize) -> Vec<u32> {
        let slots = OpenTable::new(32);
        (0..count).map(|_| source.draw(&slots)).collect()
    }

    // [MEM-KEY-QUARANTINE]
    #[test]
    fn a_key_that_was_in_use_is_drawn_again_after_the_quarantine() {
        let mut source = KeySource::random([3; 32], KeyDomain::Local);
        let [first] = draws(&mut source, 1)[..] else { panic!() };
        source.retire(first);
        // The same draws again.
        source.restart([3; 32]);
        assert_ne!(draws(&mut source, 1), [first]);
        for key in 1..=KeySource::QUARANTINE as u32 {
            source.retire(key << 1);
        }
        source.restart([3; 32]);
        assert_eq!(draws(&mut source, 1), [first], "beyond the quarantine nothing is remembered");
    }

    // [MEM-KEY-QUARANTINE] [MEM-CONSUMER-BYTE]
    #[test]
    fn no_key_with_the_same_index_is_drawn_while_one_is_in_use_or_in_quarantine() {
        let mut source = KeySource::consumer_byte([3; 32]);
        let first = draws(&mut source, 2);
        source.restart([3; 32]);
        let second = draws(&mut source, 2);
        assert!(second.iter().all(|key| !first.iter().any(|&used| index_of(used) == index_of(*key))), "in use");
        // The consumer has set another byte meanwhile.
        source.retire(with_byte(first[0], first[0] as u8 ^ 1));
        source.restart([3; 32]);
        assert!(draws(&mut source, 3).iter().all(|&key| index_of(key) != index_of(first[0])), "in quarantine");
        for index in 1..=KeySource::QUARANTINE as u32 {
            source.retire(index << 8);
        }
        source.restart([3; 32]);
        assert_eq!(draws(&mut source, 1), first[..1]);
    }

    #[test]
    fn indexes_are_never_zero_so_no_byte_makes_key_zero() {
        let mut source = KeySource::consumer_byte([4; 32]);
        assert!(draws(&mut source, 1000).iter().all(|&key| index_of(key) != 0));
        assert_eq!(with_byte(0x1234_56FF, 0), 0x1234_5600);
    }
}
