//! What the tests of this folder share.

use crate::tokenizer::{DecodeOptions, Tokenizer};

pub(super) fn decode(tokenizer: &Tokenizer, ids: &[u32]) -> String {
    tokenizer.decode(ids, &DecodeOptions::default()).unwrap()
}

/// Everything a file cut short can be, the empty file first and the whole one left out.
pub(super) fn every_prefix(file: &[u8]) -> impl Iterator<Item = Vec<u8>> + '_ {
    (0..file.len()).map(|len| file[..len].to_vec())
}

/// The file with one to four bytes changed, `count` times, the same in every run.
pub(super) fn flipped(file: &[u8], count: usize) -> impl Iterator<Item = Vec<u8>> + '_ {
    let mut state = 1_u64;
    let mut random = move |below: usize| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (state >> 33) as usize % below
    };
    (0..count).map(move |_| {
        let mut damaged = file.to_vec();
        for _ in 0..=random(4) {
            let at = random(damaged.len());
            damaged[at] = random(256) as u8;
        }
        damaged
    })
}

/// A field of a protocol buffer that holds bytes; short ones only.
pub(super) fn message(number: u8, bytes: &[u8]) -> Vec<u8> {
    let len = u8::try_from(bytes.len()).unwrap();
    assert!(len < 0x80);
    [&[number << 3 | 2, len], bytes].concat()
}

/// A piece of a `SentencePiece` model: name, score 0, type.
pub(super) fn piece(name: &str, kind: u8) -> Vec<u8> {
    let fields = [
        message(1, name.as_bytes()),
        vec![0x15, 0, 0, 0, 0, 0x18, kind],
    ];
    message(1, &fields.concat())
}
