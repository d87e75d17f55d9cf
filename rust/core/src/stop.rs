//! Stop strings: where a text ends, and what of it may still become an end.

use crate::automaton::{Automaton, Completion, Progress};
use crate::byte_kinds::ByteKinds;
use crate::error::Error;
use crate::token::TokenId;
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

impl std::fmt::Debug for StopStrings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(&self.strings).finish()
    }
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
            automaton: Automaton::new(strings.iter().map(|stop| stop.as_ref().as_bytes())),
        }))
    }

    /// The strings, in list order.
    #[must_use]
    pub fn strings(&self) -> &[Arc<str>] {
        &self.strings
    }

    /// Bytes at the end of the text that may still become a stop string.
    #[inline]
    pub(crate) fn held(&self, progress: Progress) -> usize {
        self.automaton.held(progress)
    }

    /// Whether a text with bytes of these kinds has nothing to do with the stop strings, for sure.
    #[inline]
    pub(crate) fn passes_over(&self, progress: Progress, kinds: ByteKinds) -> bool {
        self.automaton.passes_over(progress, kinds)
    }

    /// Reads `text`, up to the first byte that completes a stop string. With `counts` false, what
    /// is completed does not count and all of the text is read.
    #[inline]
    pub(crate) fn search(
        &self,
        progress: &mut Progress,
        text: &str,
        counts: bool,
    ) -> Option<Completion> {
        self.automaton.search(progress, text.as_bytes(), counts)
    }

    /// The string at a place in the list.
    pub(crate) fn string(&self, index: usize) -> Arc<str> {
        self.strings.get(index).cloned().unwrap_or_default()
    }
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
            let found = stops.search(&mut Progress::default(), text, true);
            let expected = expected.map(|(end, index)| Completion { end, index });
            assert_eq!(found, expected, "{strings:?} in {text:?}");
            assert_eq!(found, naive(strings, text), "{strings:?} in {text:?}");
        }
    }

    #[test]
    fn a_completion_that_does_not_count_keeps_the_partial_match() {
        let stops = stops(&["</s>"]);
        let mut state = Progress::default();
        assert_eq!(stops.search(&mut state, "a<", false), None);
        assert_eq!(stops.held(state), 1);
        assert_eq!(
            stops.search(&mut state, "/s>", true),
            Some(Completion { end: 3, index: 0 })
        );
        // A whole string that did not count is no proper prefix of itself.
        let mut state = Progress::default();
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
        let found = stops.search(&mut Progress::default(), "a stop 99999 here", true);
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
        let mut state = Progress::default();
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
        assert_eq!(stops.automaton.len(), 1_001);
        let mut many = vec!["a".to_owned(); 4_000];
        many.push("a".repeat(100_000));
        let stops = StopStrings::new(&many).expect("legal").expect("some");
        assert_eq!(stops.automaton.len(), 100_001);
        let first = Some(Completion { end: 2, index: 0 });
        assert_eq!(stops.search(&mut Progress::default(), "ba", true), first);
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
            let mut state = Progress::default();
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
            let mut uncounted = Progress::default();
            prop_assert_eq!(stops.search(&mut uncounted, &text, false), None);
            prop_assert_eq!(stops.held(uncounted), naive_held(&strings, &text));
        }
    }
}
