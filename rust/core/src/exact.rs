//! The exact decoder: contributions of tokens → settled text and places of tokens.
//!
//! Its whole state is a few words, whatever the length of the prompt or of the text so far.
//! What it has not settled is, in this order: characters that the end of text would take off
//! (`withheld`), then the beginning of a character (`tail`).

use crate::buffer::Sink;
use crate::program::{Lead, Program, Repair};
use crate::table::{Piece, Table, TokenFlags};
use crate::token::TokenId;
use crate::utf8::{Utf8Tail, is_incomplete};
use smallvec::SmallVec;

pub(crate) const REPLACEMENT: &str = "\u{fffd}";

/// State of one text under a [`Program`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ExactDecoder {
    tail: Utf8Tail,
    /// What [`Lead`] may still take off: a count of characters, or 1 until the first token.
    lead: u32,
    /// Whole characters at the end that [`crate::program::Trail`] would take off if no more came.
    withheld: u32,
    /// The token before left a blank to the next.
    owes_blank: bool,
    /// In the middle of text with nothing pending: a plain token is a copy.
    copies: bool,
}

impl ExactDecoder {
    /// At the start of text.
    pub(crate) fn new(program: &Program) -> Self {
        let lead = match program.lead {
            Lead::Nothing => 0,
            Lead::FirstToken | Lead::Marker { .. } => 1,
            Lead::Strip { count, .. } => count,
        };
        let mut decoder = Self {
            tail: Utf8Tail::default(),
            lead,
            withheld: 0,
            owes_blank: false,
            copies: false,
        };
        decoder.update_copies(program);
        decoder
    }

    /// Behind text that the start of text no longer reaches.
    pub(crate) fn in_mid_text(program: &Program) -> Self {
        let mut decoder = Self::new(program);
        decoder.lead = 0;
        decoder.update_copies(program);
        decoder
    }

    /// Leaves what is pending to the prompt.
    pub(crate) fn assign_to_prompt(&mut self) {
        self.tail.assign_to_prompt();
    }

    /// Bytes of an unfinished character that generated tokens brought, or that the prompt did.
    pub(crate) fn incomplete_bytes(&self) -> usize {
        self.tail.len()
    }

    /// Whether a token for which [`Table::copied_text`] answers may skip [`Self::push`].
    #[inline]
    pub(crate) fn copies(&self) -> bool {
        self.copies
    }

    /// Whether a token's contribution is that of the middle of text.
    pub(crate) fn is_in_mid_text(&self) -> bool {
        self.lead == 0 && !self.owes_blank
    }

    /// Bytes that begin a character.
    pub(crate) fn tail_bytes(&self) -> &[u8] {
        self.tail.bytes()
    }

    /// What a token would contribute here, shown or not: a blank owed to it, then its bytes. What the
    /// start of text takes off as a whole is still on.
    pub(crate) fn upcoming(
        mut self,
        table: &Table,
        index: usize,
    ) -> (SmallVec<[u8; 32]>, TokenFlags) {
        let piece = self.contribution(table, index);
        let mut bytes = SmallVec::new();
        if self.owes_blank {
            bytes.push(b' ');
        }
        bytes.extend_from_slice(piece.bytes);
        (bytes, piece.flags)
    }

    /// How many of which character the start of text may still take off as a whole.
    pub(crate) fn strippable(&self, program: &Program) -> Option<(char, u32)> {
        match program.lead {
            Lead::Strip { content, .. } if self.lead > 0 => Some((content, self.lead)),
            _ => None,
        }
    }

    /// A mapped and shown token.
    pub(crate) fn push(&mut self, table: &Table, id: TokenId, index: usize, sink: &mut impl Sink) {
        let program = table.program();
        let piece = self.contribution(table, index);
        if self.push_fragment(program, id, &piece, sink) {
            return;
        }
        if program.pieces_end_runs && !piece.flags.has(TokenFlags::BYTE) {
            self.end_run(program, sink);
        }
        let blank: &[u8] = if self.owes_blank { b" " } else { b"" };
        self.owes_blank = piece.flags.has(TokenFlags::LEAVES_BLANK);
        if blank.is_empty() && piece.bytes.is_empty() {
            sink.place_zero_width(id);
        } else {
            sink.wait(id, self.unsettled_len(program));
            self.feed(program, blank, &piece, sink);
        }
        self.update_copies(program);
    }

    /// The usual lives of a character in pieces, at little cost: a token that begins one, and one
    /// that goes on with it or ends it. Says whether it was one of these.
    #[inline]
    fn push_fragment(
        &mut self,
        program: &Program,
        id: TokenId,
        piece: &Piece<'_>,
        sink: &mut impl Sink,
    ) -> bool {
        let simple = self.lead == 0
            && !self.owes_blank
            && program.trail.is_none()
            && program.after_joining.is_empty()
            && !piece.is_whole();
        if !simple {
            return false;
        }
        let before = self.tail.len();
        if before == 0 {
            if !piece.flags.has(TokenFlags::OPENS_CHAR) {
                return false;
            }
            self.tail = Utf8Tail::new(piece.bytes, 0);
        } else {
            let Some(character) = self.tail.joined(piece.bytes) else {
                return false;
            };
            match std::str::from_utf8(character.as_slice()) {
                Ok(character) => {
                    sink.wait(id, before);
                    sink.settle(character.len(), character);
                    self.tail = Utf8Tail::default();
                    self.copies = true;
                    return true;
                }
                Err(error) if error.error_len().is_none() => {
                    self.tail = Utf8Tail::new(character.as_slice(), self.tail.of_prompt());
                }
                Err(_) => return false,
            }
        }
        sink.wait(id, before);
        self.copies = false;
        true
    }

    /// A run of byte pieces that is not UTF-8 as a whole, as the `tokenizers` crate has it.
    pub(crate) fn push_broken_run(
        &mut self,
        program: &Program,
        bytes: usize,
        sink: &mut impl Sink,
    ) {
        if !matches!(program.lead, Lead::Strip { .. }) {
            self.lead = 0;
        }
        for _ in 0..bytes {
            self.settle(program, 1, REPLACEMENT, false, sink);
        }
        self.update_copies(program);
    }

    /// Ends the text: what is pending settles or is taken off.
    pub(crate) fn finish(&mut self, program: &Program, sink: &mut impl Sink) {
        self.end_run(program, sink);
        if self.withheld > 0 {
            sink.discard(self.withheld_len(program), false);
            self.withheld = 0;
        }
    }

    /// The contribution of a token at this point, the start of text considered.
    fn contribution<'t>(&mut self, table: &'t Table, index: usize) -> Piece<'t> {
        let piece = table.piece(index);
        match table.program().lead {
            Lead::FirstToken if self.lead > 0 => {
                self.lead = 0;
                table.first_piece(index)
            }
            Lead::Marker { repeat } if self.lead > 0 => {
                let first = table.first_piece(index);
                let took_marker = first.bytes.len() < piece.bytes.len();
                if !first.bytes.is_empty() || (took_marker && !repeat) {
                    self.lead = 0;
                }
                first
            }
            _ => piece,
        }
    }

    /// Replaces the tail: a run of bytes is over.
    fn end_run(&mut self, program: &Program, sink: &mut impl Sink) {
        let tail = std::mem::take(&mut self.tail);
        if !tail.is_empty() {
            self.replace(program, tail.bytes(), tail.of_prompt(), false, sink);
        }
    }

    fn feed(&mut self, program: &Program, blank: &[u8], piece: &Piece<'_>, sink: &mut impl Sink) {
        let of_prompt = self.tail.of_prompt();
        let tail = std::mem::take(&mut self.tail);
        let joined: SmallVec<[u8; 64]>;
        let bytes = if tail.is_empty() && blank.is_empty() {
            piece.bytes
        } else {
            let mut parts = SmallVec::from_slice(tail.bytes());
            parts.extend_from_slice(blank);
            parts.extend_from_slice(piece.bytes);
            joined = parts;
            &joined
        };
        let mapped = !program.after_joining.is_empty() && piece.flags.has(TokenFlags::BYTE);
        let mut at = 0;
        for chunk in bytes.utf8_chunks() {
            let (valid, invalid) = (chunk.valid(), chunk.invalid());
            if !valid.is_empty() {
                at += valid.len();
                if mapped {
                    self.settle_mapped(program, valid, bytes.len() > at, sink);
                } else {
                    self.settle(program, valid.len(), valid, bytes.len() > at, sink);
                }
            }
            if invalid.is_empty() {
                continue;
            }
            let start = at;
            at += invalid.len();
            let of_prompt = of_prompt.saturating_sub(start);
            if at == bytes.len() && is_incomplete(invalid) {
                self.tail = Utf8Tail::new(invalid, of_prompt);
                self.release_before_tail(program, sink);
            } else {
                self.replace(program, invalid, of_prompt, bytes.len() > at, sink);
            }
        }
    }

    /// Settles U+FFFD for bytes that are no character, or nothing where one is the prompt's.
    fn replace(
        &mut self,
        program: &Program,
        bytes: &[u8],
        of_prompt: usize,
        goes_on: bool,
        sink: &mut impl Sink,
    ) {
        let parts = match program.repair {
            Repair::MaximalPart => 1,
            Repair::EachByte => bytes.len(),
        };
        for part in 0..parts {
            let consumed = bytes.len() / parts;
            if part < of_prompt {
                // decode(prompt) has this U+FFFD already; it ends what the start of text takes off.
                self.lead = 0;
                self.release(program, sink);
                sink.discard(consumed, goes_on || part + 1 < parts);
            } else {
                self.settle(program, consumed, REPLACEMENT, goes_on, sink);
            }
        }
    }

    /// Characters of byte pieces, each replaced as the steps after joining say.
    fn settle_mapped(
        &mut self,
        program: &Program,
        valid: &str,
        goes_on: bool,
        sink: &mut impl Sink,
    ) {
        let mut behind = valid.len();
        for character in valid.chars() {
            let mut buffer = [0; 4];
            let consumed = character.len_utf8();
            behind -= consumed;
            let goes_on = goes_on || behind > 0;
            let replaced = program
                .after_joining
                .iter()
                .find(|(from, _)| *from == character);
            let Some((_, to)) = replaced else {
                self.settle(
                    program,
                    consumed,
                    character.encode_utf8(&mut buffer),
                    goes_on,
                    sink,
                );
                continue;
            };
            // The bytes become the first character; what else the replacement has follows it.
            let first = to.chars().next().map_or(0, char::len_utf8);
            let (first, rest) = to.split_at(first);
            if first.is_empty() {
                sink.discard(consumed, goes_on);
            } else {
                self.settle(program, consumed, first, goes_on, sink);
                self.settle(program, 0, rest, goes_on, sink);
            }
        }
    }

    /// Settles `text` in place of `consumed` bytes, less what the ends of text take off.
    /// `goes_on`: the token at work has more bytes behind.
    fn settle(
        &mut self,
        program: &Program,
        consumed: usize,
        text: &str,
        goes_on: bool,
        sink: &mut impl Sink,
    ) {
        let mut text = text;
        let mut consumed = consumed;
        if let Lead::Strip { content, .. } = program.lead {
            while self.lead > 0 && !text.is_empty() {
                let Some(rest) = text.strip_prefix(content) else {
                    self.lead = 0;
                    break;
                };
                let taken = if rest.is_empty() {
                    consumed
                } else {
                    content.len_utf8()
                };
                sink.discard(taken, goes_on || !rest.is_empty());
                self.lead -= 1;
                consumed -= taken;
                text = rest;
            }
        } else if let Lead::Marker { .. } = program.lead {
            self.lead = 0;
        }
        if text.is_empty() {
            return;
        }
        let Some(trail) = program.trail else {
            sink.settle(consumed, text);
            return;
        };
        let head = text.trim_end_matches(trail.content);
        let ending = text.len() - head.len();
        if !head.is_empty() {
            self.release(program, sink);
            sink.settle(consumed - ending, head);
        }
        let more = (ending / trail.content.len_utf8()) as u32;
        self.withheld = self.withheld.saturating_add(more);
        self.release_to(program, trail.count, sink);
    }

    /// Settles the withheld characters: the text goes on behind them.
    fn release(&mut self, program: &Program, sink: &mut impl Sink) {
        self.release_to(program, 0, sink);
    }

    /// Settles what a character that has begun makes certain.
    fn release_before_tail(&mut self, program: &Program, sink: &mut impl Sink) {
        let Some(trail) = program.trail else { return };
        let mut buffer = [0; 4];
        let content = trail.content.encode_utf8(&mut buffer).as_bytes();
        // It may still become one more of those that the end of text takes off.
        let is_content = content.starts_with(self.tail.bytes());
        let keeps = if is_content {
            trail.count.saturating_sub(1)
        } else {
            0
        };
        self.release_to(program, keeps, sink);
    }

    /// Settles all but the last `keeps` of the withheld characters.
    fn release_to(&mut self, program: &Program, keeps: u32, sink: &mut impl Sink) {
        let (Some(trail), true) = (program.trail, self.withheld > keeps) else {
            return;
        };
        let text = trail
            .content
            .to_string()
            .repeat((self.withheld - keeps) as usize);
        self.withheld = keeps;
        sink.settle(text.len(), &text);
    }

    fn withheld_len(&self, program: &Program) -> usize {
        let width = program.trail.map_or(0, |trail| trail.content.len_utf8());
        self.withheld as usize * width
    }

    fn unsettled_len(&self, program: &Program) -> usize {
        self.withheld_len(program) + self.tail.len()
    }

    /// Bytes of whole characters that wait for more text.
    pub(crate) fn withheld_bytes(&self, program: &Program) -> usize {
        self.withheld_len(program)
    }

    /// Most bytes of text that what is unsettled can become.
    pub(crate) fn most_unsettled(&self, program: &Program) -> usize {
        self.withheld_len(program) + self.tail.len() * REPLACEMENT.len()
    }

    fn update_copies(&mut self, program: &Program) {
        self.copies =
            self.tail.is_empty() && self.lead == 0 && !self.owes_blank && program.trail.is_none();
    }
}
