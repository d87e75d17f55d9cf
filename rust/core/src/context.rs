//! Prompt context: what the tokens before the first generated one mean for its text.
//!
//! Only the tail of the prompt is read, as far as the decoder's state can depend on it; the
//! prompt is never kept. Ids the tokenizer does not know are passed over, as are hidden ones.

use crate::buffer::Sink;
use crate::exact::ExactDecoder;
use crate::program::{Lead, Program};
use crate::table::{Piece, Table, TokenFlags};
use crate::token::TokenId;
use smallvec::SmallVec;

/// A prompt that can be read from its end. `E` is the reader's own error for an id that is none.
pub trait Prompt<E> {
    /// Number of ids.
    fn len(&self) -> usize;

    /// The id at `index`, below [`Prompt::len`].
    ///
    /// # Errors
    /// Whatever the reader finds wrong with that id.
    fn get(&self, index: usize) -> Result<TokenId, E>;

    /// No ids.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl<E> Prompt<E> for [TokenId] {
    fn len(&self) -> usize {
        <[TokenId]>::len(self)
    }

    fn get(&self, index: usize) -> Result<TokenId, E> {
        Ok(self[index])
    }
}

/// The decoder as the prompt leaves it. `shown` tells of a mapped token whether it is decoded.
pub(crate) fn seed<E>(
    table: &Table,
    shown: impl Fn(TokenId, TokenFlags) -> bool,
    prompt: &(impl Prompt<E> + ?Sized),
) -> Result<ExactDecoder, E> {
    let program = table.program();
    let mut needs = Needs::new(program);
    let mut tail: SmallVec<[(TokenId, usize); 8]> = SmallVec::new();
    let mut at = prompt.len();
    while needs.more() && at > 0 {
        at -= 1;
        let id = prompt.get(at)?;
        let Some(index) = table.index(id) else {
            continue;
        };
        let piece = table.piece(index);
        if shown(id, piece.flags) {
            needs.look_at(table, index, &piece);
            tail.push((id, index));
        }
    }
    let mut decoder = if needs.more() {
        ExactDecoder::new(program) // The whole prompt was read.
    } else {
        ExactDecoder::in_mid_text(program)
    };
    for &(id, index) in tail.iter().rev() {
        decoder.push(table, id, index, &mut Discard);
    }
    decoder.assign_to_prompt();
    Ok(decoder)
}

/// What is still unknown about the state after the prompt, while it is read backwards.
struct Needs<'p> {
    program: &'p Program,
    /// Whether a token came, and whether the start of text is far enough away.
    lead: bool,
    /// Characters at the start that are all of the kind [`Lead::Strip`] takes off.
    strippable: u32,
    /// Bytes that may belong to an unfinished character.
    tail: usize,
    /// Characters that [`crate::program::Trail`] may take off.
    trail: u32,
}

/// No character has more bytes than this before its last.
const LONGEST_TAIL: usize = 3;

impl<'p> Needs<'p> {
    fn new(program: &'p Program) -> Self {
        Self {
            program,
            lead: true,
            strippable: 0,
            tail: LONGEST_TAIL,
            trail: program.trail.map_or(0, |trail| trail.count),
        }
    }

    fn more(&self) -> bool {
        self.lead || self.tail > 0 || self.trail > 0
    }

    fn look_at(&mut self, table: &Table, index: usize, piece: &Piece<'_>) {
        self.lead = self.lead
            && match self.program.lead {
                Lead::Nothing | Lead::FirstToken => false,
                Lead::Marker { repeat: false } => piece.bytes.is_empty(),
                Lead::Marker { repeat: true } => table.first_piece(index).bytes.is_empty(),
                Lead::Strip { content, count } => {
                    self.strippable = self.strippable.saturating_add(count_of(content, piece));
                    // Those that both ends of text may take off must all be counted.
                    let both = self.program.trail.map_or(0, |trail| trail.count);
                    !has_other(content, piece) && self.strippable < count.saturating_add(both)
                }
            };
        if self.program.pieces_end_runs && !piece.flags.has(TokenFlags::BYTE) {
            self.tail = 0;
        } else if piece.is_whole() && !piece.bytes.is_empty() {
            // ASCII and other whole characters leave nothing open behind them.
            self.tail = 0;
        } else {
            self.tail = self.tail.saturating_sub(piece.bytes.len());
        }
        if let Some(trail) = self.program.trail {
            let taken = count_of(trail.content, piece);
            let other = has_other(trail.content, piece);
            self.trail = if other {
                0
            } else {
                self.trail.saturating_sub(taken)
            };
        }
    }
}

/// How many of `content` a token of nothing else has.
fn count_of(content: char, piece: &Piece<'_>) -> u32 {
    (piece.bytes.len() / content.len_utf8()) as u32
}

/// Whether a token surely gives a character other than `content`.
fn has_other(content: char, piece: &Piece<'_>) -> bool {
    match std::str::from_utf8(piece.bytes) {
        Ok(text) => text.chars().any(|character| character != content),
        // Bytes may still join to `content` if that is more than one byte.
        Err(_) => content.is_ascii(),
    }
}

/// Text of the prompt goes nowhere.
pub(crate) struct Discard;

impl Sink for Discard {
    fn copy(&mut self, _token_id: TokenId, _text: &str) {}
    fn place_zero_width(&mut self, _token_id: TokenId) {}
    fn wait(&mut self, _token_id: TokenId, _position: usize) {}
    fn settle(&mut self, _consumed: usize, _text: &str) {}
    fn discard(&mut self, _consumed: usize, _latest_goes_on: bool) {}
}
