//! Sections: named parts of a text between markers, with the records of their tokens.
//!
//! Text and records become one string of symbols in generation order: a token that stands for
//! itself in a pattern is one symbol, whether it is shown or hidden; every other byte of text is
//! one; all other tokens are symbols of nothing. A marker is a run of symbols, so it is found
//! across tokens, and never in text that only looks like one of its tokens.

use crate::attribution::{DecodedText, TokenAttribution};
use crate::automaton::{Completion, Progress};
use crate::context::Prompt;
use crate::error::{Ended, Error};
use crate::marker::{CompiledMarker, MARKERS, PatternSet, Sections, word};
use crate::stream::{DecodeStream, StreamOptions};
use crate::token::{TokenId, UnknownIds};
use crate::tokenizer::{DecodeOptions, Tokenizer};
use std::collections::VecDeque;
use std::sync::Arc;

/// A place between symbols: so many bytes of text and so many records are before it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) text: usize,
    pub(crate) records: usize,
}

impl Place {
    /// This place, or the other where that is farther.
    fn behind(self, other: Self) -> Self {
        Self {
            text: self.text.max(other.text),
            records: self.records.max(other.records),
        }
    }
}

/// What a stretch of text is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// Text of the section.
    Body,
    /// The marker that opens it, or a piece of that.
    Opening,
    /// The marker that closes it, or a piece of that.
    Closing,
}

/// A stretch of text that is decided, from the end of the one before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stretch {
    pub(crate) part: Part,
    /// The marker whose section it belongs to; `None` is the content outside of all.
    pub(crate) marker: Option<usize>,
    pub(crate) end: Place,
}

/// A symbol that may be part of a marker.
#[derive(Clone, Copy, Debug)]
struct Held {
    start: Place,
    /// From where on nothing is decided: before `start` if that is behind a character which tokens
    /// on both sides share, as their records must not be torn apart for nothing.
    undecided: Place,
    /// Bytes it has in a pattern.
    len: usize,
}

/// Finds markers in what is settled. Each byte and each record is looked at once.
#[derive(Clone, Debug)]
pub(crate) struct SectionScanner {
    sections: Arc<Sections>,
    /// The marker whose section is open.
    inside: Option<usize>,
    /// By marker, whether it has opened.
    opened: Box<[bool]>,
    /// What is looked for.
    set: Arc<PatternSet>,
    /// What is looked for outside; made again when a marker has opened for the only time.
    outside: Option<Arc<PatternSet>>,
    progress: Progress,
    /// Symbols at the end that may become a marker: as many as the automaton holds.
    held: VecDeque<Held>,
    held_len: usize,
    /// Everything before it has been looked at.
    at: Place,
    /// The first record with text at `at`, if one has been looked at.
    visible_here: Option<usize>,
    /// Text goes on to be that of a token that is a symbol, until another token has text; and what
    /// it is if that is decided.
    in_own: bool,
    own_part: Option<(Part, Option<usize>)>,
    /// The end of the last stretch.
    decided_to: Place,
}

impl SectionScanner {
    /// Outside of all sections.
    pub(crate) fn new(sections: Arc<Sections>) -> Self {
        Self {
            opened: vec![false; sections.markers().len()].into(),
            set: sections.outside(|_| true),
            outside: None,
            sections,
            inside: None,
            progress: Progress::default(),
            held: VecDeque::new(),
            held_len: 0,
            at: Place::default(),
            visible_here: None,
            in_own: false,
            own_part: None,
            decided_to: Place::default(),
        }
    }

    /// Inside the first section of that name, as if its marker had been seen; or outside.
    pub(crate) fn in_section(sections: Arc<Sections>, section: usize) -> Self {
        let named = |marker: &CompiledMarker| marker.section == section;
        let inside = sections.markers().iter().position(named);
        let mut scanner = Self::new(sections);
        if section > 0
            && let Some(marker) = inside
        {
            scanner.enter(Some(marker));
        }
        scanner
    }

    /// Where the prompt leaves it: as if what is behind its last special token that is no marker
    /// had been text of the same generation.
    pub(crate) fn behind<E: From<Error>>(
        sections: Arc<Sections>,
        tokenizer: &Arc<Tokenizer>,
        prompt: &(impl Prompt<E> + ?Sized),
    ) -> Result<Self, E> {
        let mut scanner = Self::new(sections);
        let mut tail = Vec::new();
        let mut before = prompt.len();
        while before > 0 {
            let id = prompt.get(before - 1)?;
            if !scanner.sections.marks(id) && tokenizer.is_special(id)? {
                break;
            }
            tail.push(id);
            before -= 1;
        }
        tail.reverse();
        let options = StreamOptions {
            decode: DecodeOptions {
                skip_special_tokens: false,
                unknown_ids: UnknownIds::Skip,
                ..DecodeOptions::default()
            },
            keep_output: false,
            ..StreamOptions::default()
        };
        let before = Until {
            prompt,
            end: before,
        };
        let mut stream = DecodeStream::open::<E>(Arc::clone(tokenizer), &before, options)?;
        stream.push_tokens(&tail)?;
        let shown = stream.next_chunk().unwrap_or_default();
        scanner.scan(&shown.text, &shown.attributions, 0, &mut Vec::new());
        scanner.start_counting();
        Ok(scanner)
    }

    /// Everything so far was before the first byte.
    fn start_counting(&mut self) {
        self.at = Place::default();
        self.visible_here = None;
        self.in_own = false;
        self.own_part = None;
        self.decided_to = Place::default();
        for held in &mut self.held {
            held.start = Place::default();
            held.undecided = Place::default();
        }
    }

    pub(crate) fn sections(&self) -> &Arc<Sections> {
        &self.sections
    }

    /// The section that what is not decided belongs to, if it is no marker.
    pub(crate) fn section(&self) -> usize {
        self.section_of(self.inside)
    }

    pub(crate) fn section_of(&self, marker: Option<usize>) -> usize {
        marker.map_or(0, |marker| self.sections.markers()[marker].section)
    }

    fn keeps_markers(&self, marker: usize) -> bool {
        self.sections.markers()[marker].keeps_markers
    }

    /// Everything before it is decided.
    pub(crate) fn decided(&self) -> Place {
        let undecided = self.held.front().map_or(self.at, |held| held.undecided);
        undecided.behind(self.decided_to)
    }

    /// Bytes of text that were looked at.
    pub(crate) fn read_bytes(&self) -> usize {
        self.at.text
    }

    /// The end of the text: what is held is no marker.
    pub(crate) fn finish(&mut self, stretches: &mut Vec<Stretch>) {
        self.held.clear();
        let mut batch = Batch {
            text: "",
            read: 0,
            stretches,
        };
        self.decide(&mut batch, Part::Body, self.inside, self.at);
    }

    /// Looks at more settled text and the records that came with it, whose offsets count from
    /// `base` bytes before the text. What is decided by it is put behind `stretches`.
    pub(crate) fn scan(
        &mut self,
        text: &str,
        records: &[TokenAttribution],
        base: usize,
        stretches: &mut Vec<Stretch>,
    ) {
        let mut batch = Batch {
            text,
            read: 0,
            stretches,
        };
        let offset = |record: &TokenAttribution| {
            let offset = record.anchor.byte_offset() as usize;
            offset.saturating_sub(base).min(text.len())
        };
        let is_visible = |record: &&TokenAttribution| record.anchor.is_visible();
        let mut last_visible = None;
        // A character that tokens share on both sides of one that may be of a marker.
        let mut shared = None;
        for (index, record) in records.iter().enumerate() {
            let at = offset(record);
            self.read_to(&mut batch, at);
            shared = shared.filter(|(place, _)| *place == at);
            let marks = self.set.marked(record.token_id).is_some();
            if marks && !is_visible(&record) && last_visible == Some(at) {
                // Half a character was there when the token came: it stands behind the whole.
                shared.get_or_insert((at, self.text_place()));
                let rest = text.get(at..).unwrap_or_default();
                let len = rest.chars().next().map_or(0, char::len_utf8);
                self.read_to(&mut batch, at + len);
            }
            let start = self.at;
            self.at.records += 1;
            let opens_text = is_visible(&record) && at == batch.read;
            if is_visible(&record) {
                last_visible = Some(at);
                self.in_own = false;
            }
            if opens_text {
                self.visible_here.get_or_insert(start.records);
            }
            let Some(nth) = self.set.marked(record.token_id) else {
                continue;
            };
            if opens_text {
                // Its text reaches up to the next token that has some.
                let next = records.iter().skip(index + 1).find(is_visible);
                let end = next.map_or(text.len(), offset);
                self.in_own = next.is_none();
                self.advance(&mut batch, end - at);
            }
            let undecided = shared.map_or(start, |(_, before)| before);
            self.read_symbol(&mut batch, start, undecided, &word(nth));
        }
        self.read_to(&mut batch, text.len());
        self.decide(&mut batch, Part::Body, self.inside, self.decided());
    }

    /// Reads bytes of text up to `end`.
    fn read_to(&mut self, batch: &mut Batch<'_, '_>, end: usize) {
        if self.in_own && batch.read < end {
            self.advance(batch, end - batch.read);
            if let Some((part, marker)) = self.own_part {
                let end = Place {
                    text: self.at.text,
                    records: self.decided_to.records,
                };
                self.decide(batch, part, marker, end);
            }
        }
        while batch.read < end {
            let rest = batch.rest(end);
            let idle = if !self.held.is_empty() {
                0
            } else if self.set.opens_with_text {
                self.set.automaton.idle(rest)
            } else {
                rest.len()
            };
            if idle > 0 {
                self.advance(batch, idle);
                continue;
            }
            let start = self.text_place();
            let byte = rest.first().copied();
            self.advance(batch, 1);
            self.read_symbol(batch, start, start, byte.as_slice());
        }
    }

    /// Where the next byte begins: before the first token that has text here.
    fn text_place(&self) -> Place {
        Place {
            text: self.at.text,
            records: self.visible_here.unwrap_or(self.at.records),
        }
    }

    fn advance(&mut self, batch: &mut Batch<'_, '_>, bytes: usize) {
        batch.read += bytes;
        self.at.text += bytes;
        self.visible_here = None;
    }

    /// Reads a symbol, which ends here.
    fn read_symbol(
        &mut self,
        batch: &mut Batch<'_, '_>,
        start: Place,
        undecided: Place,
        symbol: &[u8],
    ) {
        self.own_part = None;
        let automaton = &self.set.automaton;
        let complete = automaton.search(&mut self.progress, symbol, true);
        let len = symbol.len();
        self.held.push_back(Held {
            start,
            undecided,
            len,
        });
        self.held_len += len;
        let holds = match complete {
            Some(Completion { index, .. }) => self.set.patterns[index].bytes,
            None => automaton.held(self.progress),
        };
        while self.held_len > holds
            && let Some(held) = self.held.pop_front()
        {
            self.held_len -= held.len;
        }
        if let Some(Completion { index, .. }) = complete {
            self.pass_marker(batch, self.set.patterns[index].opens);
        }
    }

    /// What is held is a marker.
    fn pass_marker(&mut self, batch: &mut Batch<'_, '_>, opens: Option<usize>) {
        let start = self.held.front().map_or(self.at, |held| held.start);
        self.decide(batch, Part::Body, self.inside, start);
        let opens = opens.filter(|marker| self.may_open(*marker));
        let (part, marker) = match opens {
            Some(marker) => (Part::Opening, Some(marker)),
            None => (Part::Closing, self.inside),
        };
        self.decide(batch, part, marker, self.at);
        self.own_part = Some((part, marker));
        self.enter(opens);
    }

    fn may_open(&self, marker: usize) -> bool {
        self.sections.markers()[marker].reopens || !self.opened[marker]
    }

    /// Looks for what may come there, afresh.
    fn enter(&mut self, inside: Option<usize>) {
        self.inside = inside;
        self.set = if let Some(nth) = inside {
            let marker = &self.sections.markers()[nth];
            if !self.opened[nth] && !marker.reopens {
                self.outside = None;
            }
            self.opened[nth] = true;
            Arc::clone(&marker.inside)
        } else {
            let outside = self.outside.take();
            let outside =
                outside.unwrap_or_else(|| self.sections.outside(|nth| self.may_open(nth)));
            self.outside = Some(Arc::clone(&outside));
            outside
        };
        self.progress = Progress::default();
        self.held.clear();
        self.held_len = 0;
    }

    fn decide(&mut self, batch: &mut Batch<'_, '_>, part: Part, marker: Option<usize>, end: Place) {
        let end = end.behind(self.decided_to);
        if end != self.decided_to {
            self.decided_to = end;
            batch.stretches.push(Stretch { part, marker, end });
        }
    }
}

/// Text that is looked at, and what is decided by it.
struct Batch<'t, 's> {
    text: &'t str,
    read: usize,
    stretches: &'s mut Vec<Stretch>,
}

impl<'t> Batch<'t, '_> {
    /// Bytes that were not read, up to `end`.
    fn rest(&self, end: usize) -> &'t [u8] {
        let text = self.text.as_bytes();
        text.get(self.read..end).unwrap_or_default()
    }
}

/// The beginning of a prompt.
struct Until<'p, P: ?Sized> {
    prompt: &'p P,
    end: usize,
}

impl<E, P: Prompt<E> + ?Sized> Prompt<E> for Until<'_, P> {
    fn len(&self) -> usize {
        self.end
    }

    fn get(&self, index: usize) -> Result<TokenId, E> {
        self.prompt.get(index)
    }
}

/// A stretch of decoded text that lies in one section.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Section {
    /// Its name.
    pub name: Arc<str>,
    /// Its text and the tokens that belong to it.
    pub decoded: DecodedText,
}

/// Splits decoded text into sections at markers, and counts the tokens of each.
///
/// Law: however the text of a generation is cut into pushes, the sections have the same text,
/// records and counts; and every record is counted, once.
#[derive(Debug)]
pub struct SectionSplitter {
    scanner: SectionScanner,
    /// What may still become a marker, from `decided` on.
    waiting: DecodedText,
    decided: Place,
    /// Records, by section.
    counts: Vec<u64>,
    marker_count: u64,
    pushed: u64,
    has_ended: bool,
    stretches: Vec<Stretch>,
}

impl SectionSplitter {
    /// In the section that the prompt leaves open.
    ///
    /// # Errors
    /// The prompt's own for an id that is none; a window source's own.
    pub fn open<E: From<Error>>(
        tokenizer: &Arc<Tokenizer>,
        sections: Arc<Sections>,
        prompt: &(impl Prompt<E> + ?Sized),
    ) -> Result<Self, E> {
        SectionScanner::behind(sections, tokenizer, prompt).map(Self::with)
    }

    /// In a section, whatever the prompt is.
    ///
    /// # Errors
    /// [`Error::BadMarker`] if there is no section of that name.
    pub fn open_in(sections: Arc<Sections>, name: &str) -> Result<Self, Error> {
        let section = sections.named(name).ok_or_else(|| {
            Error::BadMarker(format!(
                "no marker has the name {name:?}: {}",
                sections.list()
            ))
        })?;
        Ok(Self::with(SectionScanner::in_section(sections, section)))
    }

    fn with(scanner: SectionScanner) -> Self {
        Self {
            counts: vec![0; scanner.sections().names().len()],
            scanner,
            waiting: DecodedText::default(),
            decided: Place::default(),
            marker_count: 0,
            pushed: 0,
            has_ended: false,
            stretches: Vec::new(),
        }
    }

    /// The sections of more decoded text, as far as they are certain; those that come one after
    /// the other are apart, also if they have one name.
    ///
    /// # Errors
    /// [`Error::Ended`]; [`Error::TextTooLong`] if what waits passes what offsets address.
    pub fn push(&mut self, decoded: &DecodedText) -> Result<Vec<Section>, Error> {
        self.check_not_ended()?;
        let nothing_waits = self.waiting.is_empty();
        if !nothing_waits {
            self.waiting.append(decoded)?;
        }
        let mut stretches = std::mem::take(&mut self.stretches);
        self.scanner
            .scan(&decoded.text, &decoded.attributions, 0, &mut stretches);
        self.pushed += decoded.attributions.len() as u64;
        let all = Place {
            text: self.decided.text + decoded.text.len(),
            records: self.pushed as usize,
        };
        let sections = match &stretches[..] {
            [] if !nothing_waits || decoded.is_empty() => Vec::new(),
            // Nearly always it all is text of one section.
            [
                Stretch {
                    part: Part::Body,
                    marker,
                    end,
                },
            ] if nothing_waits && *end == all => {
                let section = self.scanner.section_of(*marker);
                self.counts[section] += decoded.attributions.len() as u64;
                self.decided = all;
                vec![self.section(section, decoded.clone())]
            }
            stretches => {
                if nothing_waits {
                    self.waiting = decoded.clone();
                }
                self.take(stretches)
            }
        };
        stretches.clear();
        self.stretches = stretches;
        Ok(sections)
    }

    /// The end of the text: what might have become a marker is text of its section.
    ///
    /// # Errors
    /// [`Error::Ended`].
    pub fn finish(&mut self) -> Result<Vec<Section>, Error> {
        self.check_not_ended()?;
        self.has_ended = true;
        let rest = self.waiting.take();
        if rest.is_empty() {
            return Ok(Vec::new());
        }
        let section = self.scanner.section();
        self.counts[section] += rest.attributions.len() as u64;
        Ok(vec![self.section(section, rest)])
    }

    /// Tokens so far: of each section by its name, and of the markers. Those of which it is not
    /// decided yet are the current section's.
    #[must_use]
    pub fn token_counts(&self) -> Vec<(&str, u64)> {
        let current = self.scanner.section();
        let waiting = self.waiting.attributions.len() as u64;
        let names = self.scanner.sections().names();
        let counts = names.iter().zip(&self.counts).enumerate();
        counts
            .map(|(section, (name, count))| {
                let waiting = if section == current { waiting } else { 0 };
                (&**name, count + waiting)
            })
            .chain([(MARKERS, self.marker_count)])
            .collect()
    }

    /// The section that the next text belongs to, as far as it is decided.
    #[must_use]
    pub fn section_name(&self) -> &Arc<str> {
        &self.scanner.sections().names()[self.scanner.section()]
    }

    fn check_not_ended(&self) -> Result<(), Error> {
        if self.has_ended {
            Err(Error::Ended(Ended::Splitter))
        } else {
            Ok(())
        }
    }

    fn section(&self, section: usize, decoded: DecodedText) -> Section {
        Section {
            name: Arc::clone(&self.scanner.sections().names()[section]),
            decoded,
        }
    }

    /// Takes what is decided from what waits.
    fn take(&mut self, stretches: &[Stretch]) -> Vec<Section> {
        let mut sections: Vec<(usize, Place, Place)> = Vec::new();
        let from = self.decided;
        let mut goes_on = false;
        for Stretch { part, marker, end } in stretches {
            let section = self.scanner.section_of(*marker);
            let tokens = (end.records - self.decided.records) as u64;
            let keeps = marker.is_some_and(|marker| self.scanner.keeps_markers(marker));
            match part {
                Part::Body => self.counts[section] += tokens,
                Part::Opening | Part::Closing => self.marker_count += tokens,
            }
            goes_on &= *part != Part::Opening;
            if *part == Part::Body || keeps {
                match sections.last_mut() {
                    Some((_, _, last)) if goes_on => *last = *end,
                    _ => sections.push((section, self.decided, *end)),
                }
                goes_on = true;
            }
            goes_on &= *part != Part::Closing;
            self.decided = *end;
        }
        let part = |start: Place, end: Place| {
            let bytes = start.text - from.text..end.text - from.text;
            let records = start.records - from.records..end.records - from.records;
            self.waiting.part(bytes, records)
        };
        let sections = sections
            .into_iter()
            .map(|(section, start, end)| self.section(section, part(start, end)))
            .collect();
        let all = Place {
            text: from.text + self.waiting.text.len(),
            records: from.records + self.waiting.attributions.len(),
        };
        self.waiting = part(self.decided, all);
        sections
    }
}
