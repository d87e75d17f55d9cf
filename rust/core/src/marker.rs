//! Markers: where the sections of a text begin and end, for one tokenizer.

use crate::automaton::Automaton;
use crate::error::Error;
use crate::token::TokenId;
use crate::tokenizer::Tokenizer;
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

/// Most bytes of all patterns of a splitter together; an id counts as six.
pub const MAX_MARKER_BYTES: usize = 64 << 10;

/// The section outside of all markers.
pub const CONTENT: &str = "content";

/// The name under which the tokens of markers are counted.
pub const MARKERS: &str = "markers";

/// A piece of a pattern.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum MarkerPart {
    /// A token by its id.
    Id(TokenId),
    /// Text; if it is just the content of a special or added token, that token.
    Text(Arc<str>),
}

/// A section's name, and the patterns that open and close it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Marker {
    /// Of the section.
    pub name: Arc<str>,
    /// What opens it.
    pub start: Vec<MarkerPart>,
    /// What closes it; of those that are complete at once, the first.
    pub ends: Vec<Vec<MarkerPart>>,
    /// Whether it opens more than once.
    pub reopen: bool,
    /// Whether its markers stay in the text of the section.
    pub keep_markers: bool,
}

/// Markers compiled for one tokenizer. Immutable, shared by all splitters with the same markers.
///
/// A pattern is a string of bytes, in which an id is a word that no text has, so that one automaton
/// reads both.
#[derive(Debug)]
pub struct Sections {
    /// The first is that of the content.
    names: Vec<Arc<str>>,
    markers: Vec<CompiledMarker>,
    ids: MarkedIds,
    outside: Arc<PatternSet>,
}

/// A marker whose patterns are bytes.
#[derive(Debug)]
pub(crate) struct CompiledMarker {
    /// Its section, as a place in the list of names.
    pub(crate) section: usize,
    pub(crate) reopens: bool,
    pub(crate) keeps_markers: bool,
    /// What is looked for where its section is open.
    pub(crate) inside: Arc<PatternSet>,
    start: Vec<u8>,
}

/// Tokens that stand for themselves in a pattern, in the order in which they were met.
#[derive(Debug, Default)]
struct MarkedIds {
    ids: Vec<TokenId>,
    places: HashMap<TokenId, usize>,
}

/// Patterns that are looked for at the same time.
#[derive(Debug)]
pub(crate) struct PatternSet {
    pub(crate) automaton: Automaton,
    /// Whether one of them begins with text: if none does, text is not looked at.
    pub(crate) opens_with_text: bool,
    /// By place in the list.
    pub(crate) patterns: Vec<Pattern>,
    /// Ids that occur in them, ascending, and their places among all marked ids.
    ids: Vec<(TokenId, usize)>,
}

/// A pattern that is looked for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pattern {
    pub(crate) bytes: usize,
    /// The marker whose section it opens; if none, it closes the one that is open.
    pub(crate) opens: Option<usize>,
}

/// A byte that begins the word of an id. Neither this nor those behind it occur in UTF-8.
const ID: u8 = 0xff;
const DIGIT: u8 = 0xf8;
const DIGITS: usize = 7;

/// An id in a pattern. A list of patterns has room for fewer than the words there are.
pub(crate) const WORD: usize = 6;

pub(crate) fn word(nth: usize) -> [u8; WORD] {
    let mut word = [ID; WORD];
    let mut rest = nth;
    for digit in &mut word[1..] {
        *digit = DIGIT + (rest % DIGITS) as u8;
        rest /= DIGITS;
    }
    word
}

fn nth_of(word: &[u8]) -> usize {
    let digits = word.iter().skip(1).rev();
    digits.fold(0, |nth, digit| nth * DIGITS + usize::from(*digit - DIGIT))
}

impl Marker {
    /// A marker with patterns that can match.
    ///
    /// # Errors
    /// [`Error::BadMarker`] for a reserved or empty name and for empty patterns and texts.
    pub fn new(
        name: &str,
        start: Vec<MarkerPart>,
        ends: Vec<Vec<MarkerPart>>,
        reopen: bool,
        keep_markers: bool,
    ) -> Result<Self, Error> {
        if name.is_empty() || name == MARKERS {
            return Err(Error::BadMarker(format!(
                "a section cannot be named {name:?}: give it another name, or {CONTENT:?} for text outside of sections"
            )));
        }
        let is_empty =
            |part: &MarkerPart| matches!(part, MarkerPart::Text(text) if text.is_empty());
        for pattern in std::iter::once(&start).chain(&ends) {
            if pattern.is_empty() || pattern.iter().any(is_empty) {
                return Err(Error::BadMarker(format!(
                    "marker {name:?} has an empty pattern, or one with an empty text: leave it out"
                )));
            }
        }
        Ok(Self {
            name: name.into(),
            start,
            ends,
            reopen,
            keep_markers,
        })
    }
}

impl Sections {
    /// The markers, in the order in which ties between them are settled.
    ///
    /// # Errors
    /// [`Error::UnknownMarkerToken`]; [`Error::BadMarker`] for an id that is a part of a character, two
    /// markers that start alike, or more than [`MAX_MARKER_BYTES`]; a window source's own.
    pub fn new(tokenizer: &Tokenizer, markers: &[Marker]) -> Result<Self, Error> {
        let mut names = vec![Arc::from(CONTENT)];
        let mut sections = HashMap::from([(Arc::clone(&names[0]), 0)]);
        let mut ids = MarkedIds::default();
        let mut starts = Vec::new();
        let mut by_start = HashMap::new();
        let mut ends = Vec::new();
        let mut bytes = 0;
        for (at, marker) in markers.iter().enumerate() {
            let section = sections.entry(Arc::clone(&marker.name));
            section.or_insert_with(|| {
                names.push(Arc::clone(&marker.name));
                names.len() - 1
            });
            let mut encode = |pattern, place: fmt::Arguments<'_>| {
                let encoded = encode(tokenizer, marker, pattern, place, &mut ids)?;
                bytes += encoded.len();
                if bytes > MAX_MARKER_BYTES {
                    return Err(Error::BadMarker(format!(
                        "the patterns of all markers have more than {MAX_MARKER_BYTES} bytes together"
                    )));
                }
                Ok(encoded)
            };
            let start = encode(&marker.start, format_args!("start"))?;
            let mut own_ends = Vec::new();
            for (nth, end) in marker.ends.iter().enumerate() {
                own_ends.push(match nth {
                    0 => encode(end, format_args!("end"))?,
                    _ => encode(end, format_args!("also_end[{}]", nth - 1))?,
                });
            }
            if let Some(first) = by_start.insert(start.clone(), at) {
                return Err(Error::BadMarker(format!(
                    "markers {first} ({:?}) and {at} ({:?}) start alike: give one of them",
                    markers[first].name, marker.name
                )));
            }
            starts.push(start);
            ends.push(own_ends);
        }
        let compile = |(at, marker): (usize, &Marker)| {
            let opens = |end: &Vec<u8>| {
                let other = by_start.get(end).copied();
                other.filter(|other| *other != at)
            };
            let inside = ends[at].iter();
            let inside = inside.map(|end| (end.as_slice(), opens(end)));
            CompiledMarker {
                section: sections.get(&marker.name).copied().unwrap_or(0),
                reopens: marker.reopen,
                keeps_markers: marker.keep_markers,
                inside: Arc::new(PatternSet::new(inside, &ids)),
                start: starts[at].clone(),
            }
        };
        let outside = starts.iter().enumerate();
        let outside = outside.map(|(at, start)| (start.as_slice(), Some(at)));
        Ok(Self {
            outside: Arc::new(PatternSet::new(outside, &ids)),
            markers: markers.iter().enumerate().map(compile).collect(),
            names,
            ids,
        })
    }

    /// The names of the sections, the content's first.
    #[must_use]
    pub fn names(&self) -> &[Arc<str>] {
        &self.names
    }

    /// A section by its name.
    #[must_use]
    pub fn named(&self, name: &str) -> Option<usize> {
        self.names.iter().position(|own| **own == *name)
    }

    /// The names, as a sentence about what there is.
    pub(crate) fn list(&self) -> String {
        format!("the sections are {}", self.names.join(", "))
    }

    pub(crate) fn markers(&self) -> &[CompiledMarker] {
        &self.markers
    }

    /// Whether an id is part of a pattern.
    pub(crate) fn marks(&self, id: TokenId) -> bool {
        self.ids.places.contains_key(&id)
    }

    /// What is looked for outside, where the markers that `may_open` tells may.
    pub(crate) fn outside(&self, may_open: impl Fn(usize) -> bool) -> Arc<PatternSet> {
        if (0..self.markers.len()).all(&may_open) {
            return Arc::clone(&self.outside);
        }
        let starts = self.markers.iter().enumerate();
        let starts = starts.filter(|(at, _)| may_open(*at));
        let starts = starts.map(|(at, marker)| (marker.start.as_slice(), Some(at)));
        Arc::new(PatternSet::new(starts, &self.ids))
    }
}

impl PatternSet {
    fn new<'p>(patterns: impl Iterator<Item = (&'p [u8], Option<usize>)>, all: &MarkedIds) -> Self {
        let (bytes, opens): (Vec<&[u8]>, Vec<_>) = patterns.unzip();
        let mut ids = Vec::new();
        for pattern in &bytes {
            let mut rest = *pattern;
            while let Some(at) = rest.iter().position(|byte| *byte == ID) {
                let (word, behind) = rest[at..].split_at(WORD);
                let nth = nth_of(word);
                ids.push((all.ids[nth], nth));
                rest = behind;
            }
        }
        ids.sort_unstable();
        ids.dedup();
        let patterns = bytes.iter().zip(opens);
        Self {
            opens_with_text: bytes.iter().any(|pattern| !pattern.starts_with(&[ID])),
            patterns: patterns
                .map(|(bytes, opens)| Pattern {
                    bytes: bytes.len(),
                    opens,
                })
                .collect(),
            automaton: Automaton::new(bytes.into_iter()),
            ids,
        }
    }

    /// Place of an id among all marked ids, if it occurs in one of the patterns.
    #[inline]
    pub(crate) fn marked(&self, id: TokenId) -> Option<usize> {
        let at = self.ids.binary_search_by_key(&id, |(id, _)| *id).ok()?;
        self.ids.get(at).map(|(_, nth)| *nth)
    }
}

/// A pattern as bytes; ids that are new are added to the list. `place` is its place in the marker.
fn encode(
    tokenizer: &Tokenizer,
    marker: &Marker,
    pattern: &[MarkerPart],
    place: fmt::Arguments<'_>,
    ids: &mut MarkedIds,
) -> Result<Vec<u8>, Error> {
    let mut bytes = Vec::new();
    for (index, part) in pattern.iter().enumerate() {
        let id = match part {
            MarkerPart::Id(id) => Some(*id),
            MarkerPart::Text(text) => tokenizer.marked_token(text)?,
        };
        match (id, part) {
            (Some(id), _) => {
                let named = || format!("part {index} of {place} of marker {:?}", marker.name);
                bytes.extend(word(ids.add(tokenizer, id, index, named)?));
            }
            (None, MarkerPart::Text(text)) => bytes.extend(text.as_bytes()),
            (None, MarkerPart::Id(_)) => {}
        }
        if bytes.len() > MAX_MARKER_BYTES {
            break;
        }
    }
    Ok(bytes)
}

impl MarkedIds {
    /// The place of an id, which may be new; `index` and `named` are where it stands.
    fn add(
        &mut self,
        tokenizer: &Tokenizer,
        id: TokenId,
        index: usize,
        named: impl Fn() -> String,
    ) -> Result<usize, Error> {
        if let Some(&nth) = self.places.get(&id) {
            return Ok(nth);
        }
        let Some(bytes) = tokenizer.token_bytes(id)? else {
            let place = named();
            return Err(Error::UnknownMarkerToken { id, index, place });
        };
        // Text is cut between characters, so a marker cannot begin or end inside one.
        if std::str::from_utf8(&bytes).is_err() {
            return Err(Error::BadMarker(format!(
                "{} is token id {id}, which has a part of a character: give whole characters",
                named()
            )));
        }
        let nth = self.ids.len();
        self.ids.push(id);
        self.places.insert(id, nth);
        Ok(nth)
    }
}
