//! The path MTU: most payload of one packet.

/// A path MTU, one of the five sizes of the standard.
///
/// Ordered by size, so `a.min(b)` is the smaller MTU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum PathMtu {
    /// 256 bytes, code 1.
    Mtu256 = 1,
    /// 512 bytes, code 2.
    Mtu512 = 2,
    /// 1024 bytes, code 3.
    Mtu1024 = 3,
    /// 2048 bytes, code 4.
    Mtu2048 = 4,
    /// 4096 bytes, code 5.
    Mtu4096 = 5,
}

impl PathMtu {
    /// Every path MTU, the smallest first.
    pub const ALL: [PathMtu; 5] =
        [PathMtu::Mtu256, PathMtu::Mtu512, PathMtu::Mtu1024, PathMtu::Mtu2048, PathMtu::Mtu4096];

    /// The path MTU of a code of the wire or of the verbs, if there is one.
    #[must_use]
    pub const fn from_code(code: u8) -> Option<PathMtu> {
        match code {
            1 => Some(PathMtu::Mtu256),
            2 => Some(PathMtu::Mtu512),
            3 => Some(PathMtu::Mtu1024),
            4 => Some(PathMtu::Mtu2048),
            5 => Some(PathMtu::Mtu4096),
            _ => None,
        }
    }

    /// The largest path MTU that is at most `bytes`, if `bytes` holds even the smallest.
    #[must_use]
    pub const fn at_most(bytes: usize) -> Option<PathMtu> {
        match bytes {
            0..256 => None,
            256..512 => Some(PathMtu::Mtu256),
            512..1024 => Some(PathMtu::Mtu512),
            1024..2048 => Some(PathMtu::Mtu1024),
            2048..4096 => Some(PathMtu::Mtu2048),
            4096.. => Some(PathMtu::Mtu4096),
        }
    }

    /// The code of the wire and of the verbs: 1 for 256 bytes up to 5 for 4096.
    #[must_use]
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// The size in bytes.
    #[must_use]
    pub const fn bytes(self) -> usize {
        128 << self as u8
    }
}

#[cfg(test)]
mod tests {
    use super::PathMtu;

    #[test]
    fn codes_sizes_and_order_agree() {
        for (index, mtu) in PathMtu::ALL.into_iter().enumerate() {
            assert_eq!(mtu.bytes(), 256 << index);
            assert_eq!(PathMtu::from_code(mtu.code()), Some(mtu));
            assert_eq!(PathMtu::at_most(mtu.bytes()), Some(mtu));
            assert_eq!(PathMtu::at_most(mtu.bytes() - 1), PathMtu::ALL[..index].last().copied());
        }
        assert_eq!(PathMtu::from_code(0), None);
        assert_eq!(PathMtu::from_code(6), None);
        assert!(PathMtu::Mtu256 < PathMtu::Mtu4096);
    }
}
