//! Strings as one automaton: which of them a text completes, and what of it may still become one.

use crate::byte_kinds::ByteKinds;
use std::collections::VecDeque;
use std::ops::Range;

/// Strings as one automaton (Aho–Corasick): its work is linear in the text, whether there is one
/// string or thousands.
///
/// After any text it is in the state of the longest suffix that begins a stop string. That is all
/// there is to hold-back too: what must wait is the longest suffix that is a *proper* prefix of one,
/// a number known for each state beforehand. Of the strings that a state completes only the first in
/// the list can ever win, so that space is linear as well, which it is not in automata that know all
/// of them.
#[derive(Debug)]
pub(crate) struct Automaton {
    /// Prefixes of the strings, the empty one first, shorter ones before longer; those that go on
    /// with one more byte from the same prefix are neighbours, in the order of that byte.
    states: Vec<State>,
    /// By state, its last byte.
    bytes: Vec<u8>,
    /// What the start state goes to, by byte.
    from_start: Box<[u32; 256]>,
    /// Bytes that leave the start state.
    openers: ByteKinds,
}

/// A prefix of a stop string.
#[derive(Clone, Copy, Debug)]
struct State {
    /// The first of the prefixes that are one byte longer.
    first_longer: u32,
    longer: u16,
    /// The longest proper suffix that is a prefix too.
    suffix: u32,
    /// Bytes at the end of the text that may still become a stop string.
    held: u32,
    /// Of the strings that end here, the first in the list.
    complete: u32,
}

const START: u32 = 0;
const NONE: u32 = u32::MAX;

/// How far a text is into the strings; at first, nowhere.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Progress(u32);

/// A string that is complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Completion {
    /// Bytes of the searched text up to its end.
    pub(crate) end: usize,
    /// Its place in the list.
    pub(crate) index: usize,
}

impl State {
    /// Of `len` bytes, before it is known what goes on from it.
    fn new(len: usize, suffix: u32, complete: u32) -> Self {
        Self {
            first_longer: 0,
            longer: 0,
            suffix,
            held: len as u32,
            complete,
        }
    }
}

impl Automaton {
    /// Lays out all prefixes, level by level. No string is empty.
    pub(crate) fn new<'s>(strings: impl Iterator<Item = &'s [u8]>) -> Self {
        let mut sorted: Vec<(&[u8], u32)> = strings.zip(0..).collect();
        sorted.sort_unstable();
        let mut automaton = Self {
            states: vec![State::new(0, START, NONE)],
            bytes: vec![0],
            from_start: Box::new([START; 256]),
            openers: ByteKinds::default(),
        };
        // Prefixes whose longer ones are not laid out, and the strings that go on from them.
        let mut waiting = VecDeque::from([(START, 0..sorted.len(), 0)]);
        while let Some((state, strings, len)) = waiting.pop_front() {
            let first = automaton.states.len();
            for (byte, strings) in by_byte(&sorted, strings, len) {
                let longer = automaton.states.len() as u32;
                // Those that end here come first, and of equal ones the first in the list.
                let whole = sorted[strings.clone()].iter();
                let whole = whole.take_while(|(stop, _)| stop.len() == len + 1).count();
                let first_whole = sorted[strings.start..strings.start + whole].first();
                automaton.push(state, byte, len + 1, first_whole.map(|(_, index)| *index));
                waiting.push_back((longer, strings.start + whole..strings.end, len + 1));
            }
            let longer = (automaton.states.len() - first) as u16;
            let state = &mut automaton.states[state as usize];
            (state.first_longer, state.longer) = (first as u32, longer);
        }
        let opens = |byte: &u8| automaton.from_start[usize::from(*byte)] != START;
        automaton.openers = ByteKinds::of((0..=u8::MAX).filter(opens));
        // A string that begins no other holds what its longest proper suffix holds.
        for index in 0..automaton.states.len() {
            let State { longer, suffix, .. } = automaton.states[index];
            if longer == 0 {
                automaton.states[index].held = automaton.states[suffix as usize].held;
            }
        }
        automaton
    }

    /// How many prefixes there are.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.states.len()
    }

    /// Adds the prefix that goes on from `shorter` with `byte`; `string` is the first that it is.
    fn push(&mut self, shorter: u32, byte: u8, len: usize, string: Option<u32>) {
        let suffix = if shorter == START {
            self.from_start[usize::from(byte)] = self.states.len() as u32;
            START
        } else {
            self.step(self.state(shorter).suffix, byte)
        };
        let complete = string.unwrap_or(NONE).min(self.state(suffix).complete);
        self.states.push(State::new(len, suffix, complete));
        self.bytes.push(byte);
    }

    /// Bytes at the end of the text that may still become a string.
    #[inline]
    pub(crate) fn held(&self, progress: Progress) -> usize {
        self.state(progress.0).held as usize
    }

    /// Reads `text`, up to the first byte that completes a string. With `counts` false, what is
    /// completed does not count and all of the text is read.
    #[inline]
    pub(crate) fn search(
        &self,
        progress: &mut Progress,
        text: &[u8],
        counts: bool,
    ) -> Option<Completion> {
        let mut read = 0;
        loop {
            let rest = text.get(read..).unwrap_or_default();
            // At the start most bytes change nothing.
            let idle = if progress.0 == START {
                self.idle(rest)
            } else {
                0
            };
            let &byte = rest.get(idle)?;
            read += idle + 1;
            progress.0 = self.step(progress.0, byte);
            let complete = self.state(progress.0).complete;
            if counts && complete != NONE {
                return Some(Completion {
                    end: read,
                    index: complete as usize,
                });
            }
        }
    }

    /// Whether reading a text with bytes of these kinds would change nothing, for sure.
    #[inline]
    pub(crate) fn passes_over(&self, progress: Progress, kinds: ByteKinds) -> bool {
        progress.0 == START && !self.openers.may_share(kinds)
    }

    /// How many bytes at the front begin no string.
    #[inline]
    pub(crate) fn idle(&self, text: &[u8]) -> usize {
        let opens = |byte: &u8| self.from_start[usize::from(*byte)] != START;
        text.iter().position(opens).unwrap_or(text.len())
    }

    #[inline]
    fn state(&self, at: u32) -> &State {
        &self.states[at as usize]
    }

    /// The state behind one more byte.
    #[inline]
    fn step(&self, mut at: u32, byte: u8) -> u32 {
        while at != START {
            let state = self.state(at);
            let first = state.first_longer as usize;
            let longer = &self.bytes[first..first + usize::from(state.longer)];
            if let Ok(nth) = longer.binary_search(&byte) {
                return (first + nth) as u32;
            }
            at = state.suffix;
        }
        self.from_start[usize::from(byte)]
    }
}

/// Sorted strings that have `len` bytes in common, by the byte behind these.
fn by_byte<'s>(
    sorted: &'s [(&[u8], u32)],
    strings: Range<usize>,
    len: usize,
) -> impl Iterator<Item = (u8, Range<usize>)> + 's {
    let mut start = strings.start;
    sorted[strings]
        .chunk_by(move |(one, _), (next, _)| one[len] == next[len])
        .map(move |group| {
            let range = start..start + group.len();
            start = range.end;
            (group[0].0[len], range)
        })
}
