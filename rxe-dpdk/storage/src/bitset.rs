//! A set of small numbers with a fast minimum.

/// A set of numbers below a limit. A second level has one bit per non-empty word of the first.
pub(crate) struct BitSet {
    words: Vec<u64>,
    summary: Vec<u64>,
}

impl BitSet {
    /// An empty set for numbers below `limit`.
    pub(crate) fn new(limit: usize) -> BitSet {
        let words = limit.div_ceil(64);
        BitSet { words: vec![0; words], summary: vec![0; words.div_ceil(64)] }
    }

    pub(crate) fn insert(&mut self, number: usize) {
        self.words[number / 64] |= 1 << (number % 64);
        self.summary[number / 4096] |= 1 << (number / 64 % 64);
    }

    pub(crate) fn remove(&mut self, number: usize) {
        let word = &mut self.words[number / 64];
        *word &= !(1 << (number % 64));
        if *word == 0 {
            self.summary[number / 4096] &= !(1 << (number / 64 % 64));
        }
    }

    pub(crate) fn contains(&self, number: usize) -> bool {
        self.words.get(number / 64).is_some_and(|word| word >> (number % 64) & 1 == 1)
    }

    /// The smallest number of the set.
    pub(crate) fn first(&self) -> Option<usize> {
        let at = self.summary.iter().position(|word| *word != 0)?;
        let word = at * 64 + self.summary[at].trailing_zeros() as usize;
        Some(word * 64 + self.words[word].trailing_zeros() as usize)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn behaves_like_an_ordered_set(changes in proptest::collection::vec((0_usize..9000, any::<bool>()), 0..200)) {
            let (mut set, mut model) = (BitSet::new(9000), BTreeSet::new());
            for (number, insert) in changes {
                if insert {
                    set.insert(number);
                    model.insert(number);
                } else {
                    set.remove(number);
                    model.remove(&number);
                }
                prop_assert_eq!(set.first(), model.first().copied());
                prop_assert_eq!(set.contains(number), model.contains(&number));
            }
        }
    }
}
