//! Which kinds of bytes a text has, as a set in one word.
//!
//! Few bytes begin a stop string, and most tokens have none of these: the sets of the two say so, and
//! the token need not be read.

/// A set of kinds of bytes. What begins stop strings and markers is of a kind of its own, or shares it
/// with what is rare in text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ByteKinds(u32);

const fn kind(byte: u8) -> u32 {
    match byte {
        b'a'..=b'm' => 0,
        b'n'..=b'z' => 1,
        b'A'..=b'H' => 2,
        b'I'..=b'P' => 3,
        b'Q'..=b'Z' => 4,
        b'0'..=b'9' => 5,
        b' ' => 6,
        b'\n' => 7,
        b'<' => 8,
        b'>' => 9,
        b'#' => 10,
        b'[' => 11,
        b']' => 12,
        b'{' => 13,
        b'}' => 14,
        b'(' => 15,
        b')' => 16,
        b'"' => 17,
        b'\'' => 18,
        b'`' => 19,
        b'|' => 20,
        b'*' => 21,
        b'-' | b'_' => 22,
        b'=' | b'+' => 23,
        b'/' | b'\\' => 24,
        b',' | b';' => 25,
        b'.' => 26,
        b':' => 27,
        b'!' | b'?' => 28,
        0x80..=0xbf => 29,
        0xc0.. => 30,
        _ => 31,
    }
}

const SETS: [u32; 256] = {
    let mut sets = [0; 256];
    let mut byte = 0;
    while byte < sets.len() {
        sets[byte] = 1 << kind(byte as u8);
        byte += 1;
    }
    sets
};

impl ByteKinds {
    /// Those of these bytes.
    pub(crate) fn of(bytes: impl Iterator<Item = u8>) -> Self {
        Self(bytes.fold(0, |set, byte| set | SETS[usize::from(byte)]))
    }

    /// Whether a byte of one may be in the other.
    #[inline]
    pub(crate) const fn may_share(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_byte_of_both_is_never_missed() {
        for byte in 0..=u8::MAX {
            let alone = ByteKinds::of([byte].into_iter());
            assert!(alone.may_share(alone));
            let among = ByteKinds::of([b'x', byte, b' '].into_iter());
            assert!(among.may_share(alone), "{byte}");
        }
    }

    #[test]
    fn what_begins_stops_is_not_in_words() {
        let words = ByteKinds::of(b" the answer Is 42.".iter().copied());
        for opener in [b'<', b'#', b'\n', b'[', b'{', b'`', b'|'] {
            assert!(!words.may_share(ByteKinds::of([opener].into_iter())));
        }
    }
}
