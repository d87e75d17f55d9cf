//! Stop strings: where a text ends, and what of it may still become an end.

use crate::error::Error;
use crate::token::TokenId;
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

/// Most bytes of all stop strings of a request together.
pub const MAX_STOP_BYTES: usize = 4 << 20;

/// What ended a generation.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Stop {
    /// One of the stop strings.
    String(Arc<str>),
    /// One of the stop token ids.
    Token(TokenId),
}

/// Where and how a stop ended a generation.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct StopMatch {
    /// Which stop.
    pub stop: Stop,
    /// Where the text ends.
    pub byte_offset: u64,
    /// The token that completed the stop, counted in the whole generation.
    pub token_index: u64,
    /// Whether that token lost text, or the place where it stood.
    pub cut: bool,
}

/// Stop strings, compiled. Immutable; shared by every request that has the same strings.
pub struct StopStrings {
    strings: Box<[Arc<str>]>,
    automaton: Automaton,
}

/// Strings as one automaton (Aho–Corasick): its work is linear in the text, whether there is one
/// string or thousands.
///
/// After any text it is in the state of the longest suffix that begins a stop string. That is all
/// there is to hold-back too: what must wait is the longest suffix that is a *proper* prefix of one,
/// a number known for each state beforehand. Of the strings that a state completes only the first in
/// the list can ever win, so that space is linear as well, which it is not in automata that know all
/// of them.
struct Automaton {
    /// Prefixes of the strings, the empty one first, shorter ones before longer; those that go on
    /// with one more byte from the same prefix are neighbours, in the order of that byte.
    states: Vec<State>,
    /// By state, its last byte.
    bytes: Vec<u8>,
    /// What the start state goes to, by byte.
    from_start: Box<[u32; 256]>,
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

impl std::fmt::Debug for StopStrings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(&self.strings).finish()
    }
}

/// How far a text is into the stop strings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StopState(u32);

/// A stop string that is complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Completion {
    /// Bytes of the searched text up to its end.
    pub(crate) end: usize,
    /// Its place in the list.
    pub(crate) index: usize,
}

impl StopStrings {
    /// The strings, in the order in which ties between them are settled; `None` for no strings.
    ///
    /// # Errors
    /// [`Error::BadStop`] for an empty one, or more than [`MAX_STOP_BYTES`] of all.
    pub fn new(strings: &[impl AsRef<str>]) -> Result<Option<Self>, Error> {
        if strings.is_empty() {
            return Ok(None);
        }
        if let Some(index) = strings.iter().position(|stop| stop.as_ref().is_empty()) {
            return Err(Error::BadStop(format!(
                "stop[{index}] is empty; leave it out"
            )));
        }
        let bytes: usize = strings.iter().map(|stop| stop.as_ref().len()).sum();
        if bytes > MAX_STOP_BYTES {
            return Err(Error::BadStop(format!(
                "the stop strings have {bytes} bytes together, more than {MAX_STOP_BYTES}"
            )));
        }
        Ok(Some(Self {
            strings: strings.iter().map(|stop| stop.as_ref().into()).collect(),
            automaton: Automaton::new(strings),
        }))
    }

    /// The strings, in list order.
    #[must_use]
    pub fn strings(&self) -> &[Arc<str>] {
        &self.strings
    }

    /// Before any text.
    #[allow(clippy::unused_self)] // A state means nothing without its strings.
    pub(crate) fn start(&self) -> StopState {
        StopState(START)
    }

    /// Bytes at the end of the text that may still become a stop string.
    #[inline]
    pub(crate) fn held(&self, state: StopState) -> usize {
        self.automaton.state(state.0).held as usize
    }

    /// Reads `text`, up to the first byte that completes a stop string. With `counts` false, what
    /// is completed does not count and all of the text is read.
    #[inline]
    pub(crate) fn search(
        &self,
        state: &mut StopState,
        text: &str,
        counts: bool,
    ) -> Option<Completion> {
        let bytes = text.as_bytes();
        let mut read = 0;
        loop {
            let rest = bytes.get(read..).unwrap_or_default();
            // In the start state most bytes change nothing.
            let idle = if state.0 == START {
                let opens = |byte: &u8| self.automaton.from_start[usize::from(*byte)] != START;
                rest.iter().position(opens)?
            } else {
                0
            };
            let &byte = rest.get(idle)?;
            read += idle + 1;
            state.0 = self.automaton.step(state.0, byte);
            let complete = self.automaton.state(state.0).complete;
            if counts && complete != NONE {
                return Some(Completion {
                    end: read,
                    index: complete as usize,
                });
            }
        }
    }

    /// The string at a place in the list.
    pub(crate) fn string(&self, index: usize) -> Arc<str> {
        self.strings.get(index).cloned().unwrap_or_default()
    }
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
    /// Lays out all prefixes, level by level.
    fn new(strings: &[impl AsRef<str>]) -> Self {
        let bytes = strings.iter().map(|stop| stop.as_ref().as_bytes());
        let mut sorted: Vec<(&[u8], u32)> = bytes.zip(0..).collect();
        sorted.sort_unstable();
        let mut automaton = Self {
            states: vec![State::new(0, START, NONE)],
            bytes: vec![0],
            from_start: Box::new([START; 256]),
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
        // A string that begins no other holds what its longest proper suffix holds.
        for index in 0..automaton.states.len() {
            let State { longer, suffix, .. } = automaton.states[index];
            if longer == 0 {
                automaton.states[index].held = automaton.states[suffix as usize].held;
            }
        }
        automaton
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

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn stops(strings: &[&str]) -> StopStrings {
        StopStrings::new(strings)
            .expect("legal")
            .expect("not empty")
    }

    /// What the definition says, by trying everything.
    fn naive(strings: &[&str], text: &str) -> Option<Completion> {
        (1..=text.len()).find_map(|end| {
            let ends = |stop: &&str| text.as_bytes()[..end].ends_with(stop.as_bytes());
            let index = strings.iter().position(ends)?;
            Some(Completion { end, index })
        })
    }

    fn naive_held(strings: &[&str], text: &str) -> usize {
        let begins = |len: &usize| {
            let suffix = &text.as_bytes()[text.len() - len..];
            strings
                .iter()
                .any(|stop| stop.len() > *len && stop.as_bytes().starts_with(suffix))
        };
        (1..=text.len()).rev().find(begins).unwrap_or(0)
    }

    #[test]
    fn the_first_to_be_complete_wins_and_ties_go_to_the_list() {
        type Case<'c> = (&'c [&'c str], &'c str, Option<(usize, usize)>);
        let cases: [Case<'_>; 12] = [
            (&["wor"], "say wor", Some((7, 0))),
            (&["xyz"], "say wor", None),
            (&["wor", "say"], "say wor", Some((3, 1))),
            (&["a", "is"], " The user is a", Some((12, 1))),
            (&["is", "a"], " The user is a", Some((12, 0))),
            (&["ab", "b"], "ab", Some((2, 0))),
            (&["b", "ab"], "ab", Some((2, 0))),
            (&["abc", "b"], "abc", Some((2, 1))),
            (&["世界"], "你好世界", Some((12, 0))),
            (&[".*"], "abc.*", Some((5, 0))),
            (&["aab"], "aaab", Some((4, 0))),
            (&["ll", "lo"], "hello", Some((4, 0))),
        ];
        for (strings, text, expected) in cases {
            let stops = stops(strings);
            let found = stops.search(&mut stops.start(), text, true);
            let expected = expected.map(|(end, index)| Completion { end, index });
            assert_eq!(found, expected, "{strings:?} in {text:?}");
            assert_eq!(found, naive(strings, text), "{strings:?} in {text:?}");
        }
    }

    #[test]
    fn a_completion_that_does_not_count_keeps_the_partial_match() {
        let stops = stops(&["</s>"]);
        let mut state = stops.start();
        assert_eq!(stops.search(&mut state, "a<", false), None);
        assert_eq!(stops.held(state), 1);
        assert_eq!(
            stops.search(&mut state, "/s>", true),
            Some(Completion { end: 3, index: 0 })
        );
        // A whole string that did not count is no proper prefix of itself.
        let mut state = stops.start();
        assert_eq!(stops.search(&mut state, "</s>", false), None);
        assert_eq!(stops.held(state), 0);
    }

    #[test]
    fn refuses_what_cannot_stop() {
        let none: [&str; 0] = [];
        assert!(StopStrings::new(&none).expect("legal").is_none());
        assert!(matches!(
            StopStrings::new(&["a", ""]),
            Err(Error::BadStop(_))
        ));
        let long = "a".repeat(MAX_STOP_BYTES + 1);
        assert!(matches!(
            StopStrings::new(&[long.as_str()]),
            Err(Error::BadStop(_))
        ));
    }

    #[test]
    fn limits_are_reached_in_linear_space() {
        let many: Vec<String> = (0..100_000).map(|n| format!("stop {n} here")).collect();
        let stops = StopStrings::new(&many).expect("legal").expect("some");
        let found = stops.search(&mut stops.start(), "a stop 99999 here", true);
        assert_eq!(
            found,
            Some(Completion {
                end: 17,
                index: 99_999
            })
        );
        let long = "あ".repeat(10_000);
        let stops = StopStrings::new(&[long.as_str()])
            .expect("legal")
            .expect("some");
        let mut state = stops.start();
        assert_eq!(
            stops.search(&mut state, &long[..long.len() - 3], true),
            None
        );
        assert_eq!(stops.held(state), long.len() - 3);
        assert_eq!(stops.search(&mut state, "い", true), None);
        assert_eq!(stops.held(state), 0);
    }

    #[test]
    fn strings_inside_each_other_share_their_states() {
        let nested: Vec<String> = (1..=1_000).map(|len| "a".repeat(len)).collect();
        let stops = StopStrings::new(&nested).expect("legal").expect("some");
        assert_eq!(stops.automaton.states.len(), 1_001);
        let mut many = vec!["a".to_owned(); 4_000];
        many.push("a".repeat(100_000));
        let stops = StopStrings::new(&many).expect("legal").expect("some");
        assert_eq!(stops.automaton.states.len(), 100_001);
        let first = Some(Completion { end: 2, index: 0 });
        assert_eq!(stops.search(&mut stops.start(), "ba", true), first);
    }

    proptest! {
        #[test]
        fn agrees_with_the_definition(
            strings in prop::collection::vec("[abあい]{1,4}", 1..6),
            text in "[abcあい]{0,24}",
            cuts in prop::collection::vec(0..24_usize, 0..4),
        ) {
            let strings: Vec<&str> = strings.iter().map(String::as_str).collect();
            let stops = stops(&strings);
            let mut state = stops.start();
            let mut found = None;
            let mut read = 0;
            let characters: Vec<char> = text.chars().collect();
            let mut ends: Vec<usize> = cuts.iter().map(|cut| (*cut).min(characters.len())).collect();
            ends.push(characters.len());
            ends.sort_unstable();
            let mut from = 0;
            for end in ends {
                let part: String = characters[from..end].iter().collect();
                from = end;
                if let Some(completion) = stops.search(&mut state, &part, true) {
                    found = Some(Completion { end: read + completion.end, ..completion });
                    break;
                }
                read += part.len();
                if naive(&strings, &text[..read]).is_none() {
                    prop_assert_eq!(stops.held(state), naive_held(&strings, &text[..read]));
                }
            }
            prop_assert_eq!(found, naive(&strings, &text));
            let mut uncounted = stops.start();
            prop_assert_eq!(stops.search(&mut uncounted, &text, false), None);
            prop_assert_eq!(stops.held(uncounted), naive_held(&strings, &text));
        }
    }
}
