//! The end of a byte stream that is not yet a whole character.

/// At most three bytes that begin a character and do not complete it.
///
/// Law (bounded): nothing else is ever withheld by UTF-8; a byte that cannot become part of a
/// character is replaced with the byte that proves it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Utf8Tail {
    bytes: [u8; 3],
    len: u8,
    of_prompt: u8,
}

impl Utf8Tail {
    pub(crate) fn bytes(&self) -> &[u8] {
        self.bytes.get(..usize::from(self.len)).unwrap_or_default()
    }

    pub(crate) fn len(&self) -> usize {
        usize::from(self.len)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// How many of the bytes, at their front, belong to the prompt.
    pub(crate) fn of_prompt(&self) -> usize {
        usize::from(self.of_prompt)
    }

    /// Gives all bytes to the prompt.
    pub(crate) fn assign_to_prompt(&mut self) {
        self.of_prompt = self.len;
    }

    /// The tail with `more` behind it, if together they are no longer than the character they began.
    pub(crate) fn joined(&self, more: &[u8]) -> Option<CharBytes> {
        let width = match self.bytes[0] {
            0xc2..=0xdf => 2,
            0xe0..=0xef => 3,
            _ => 4,
        };
        let len = self.len() + more.len();
        if len > width {
            return None;
        }
        let mut bytes = [0; 4];
        for (slot, byte) in bytes.iter_mut().zip(self.bytes().iter().chain(more)) {
            *slot = *byte;
        }
        Some(CharBytes { bytes, len })
    }

    /// The tail `bytes`, of which the first `of_prompt` are the prompt's. `bytes` must satisfy
    /// [`is_incomplete`], so there are at most three.
    pub(crate) fn new(bytes: &[u8], of_prompt: usize) -> Self {
        let mut tail = Self::default();
        for (slot, &byte) in tail.bytes.iter_mut().zip(bytes) {
            *slot = byte;
            tail.len += 1;
        }
        tail.of_prompt = of_prompt.min(tail.len()) as u8;
        tail
    }
}

/// Bytes of at most one character.
pub(crate) struct CharBytes {
    bytes: [u8; 4],
    len: usize,
}

impl CharBytes {
    pub(crate) fn as_slice(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or_default()
    }
}

/// Whether `bytes` begin a character that more bytes may complete.
pub(crate) fn is_incomplete(bytes: &[u8]) -> bool {
    std::str::from_utf8(bytes)
        .is_err_and(|error| error.valid_up_to() == 0 && error.error_len().is_none())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn incomplete_means_that_more_bytes_may_help() {
        let cases: [(&[u8], bool); 9] = [
            (b"", false),
            (b"a", false),
            (b"\xe4", true),
            (b"\xe4\xbd", true),
            (b"\xf0\x9f\x98", true),
            (b"\x80", false),
            (b"\xe0\x80", false),
            (b"\xff", false),
            (b"a\xe4", false),
        ];
        for (bytes, incomplete) in cases {
            assert_eq!(is_incomplete(bytes), incomplete, "{bytes:x?}");
        }
    }
}
