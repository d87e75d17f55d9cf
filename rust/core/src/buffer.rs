//! What a decoder writes to: settled text that was not handed out, and the places of tokens in it.

use crate::attribution::{DecodedText, TokenAttribution, floor_char_boundary};
use crate::token::TokenId;
use smallvec::SmallVec;

/// A token whose record cannot be written yet, or stands behind one that cannot.
#[derive(Clone, Copy, Debug)]
struct WaitingToken {
    token_id: TokenId,
    /// Settled bytes when it came: where it stands if it has no text, or later if a record before
    /// it does (A3).
    came_at: u32,
    /// How many bytes into what is not settled its first byte is; `None` if it has no byte.
    position: Option<u32>,
}

/// What a decoder writes to: settled text, and the places of tokens in it.
///
/// Bytes that are not settled stay with the decoder; `wait` and the `consumed` arguments
/// count in them.
pub(crate) trait Sink {
    /// A token whose text is whole and starts at the end of the settled text.
    fn copy(&mut self, token_id: TokenId, text: &str);
    /// A token that contributes no byte.
    fn place_zero_width(&mut self, token_id: TokenId);
    /// A token whose first byte is the `position`-th of those not settled.
    fn wait(&mut self, token_id: TokenId, position: usize);
    /// `text` settles in place of the first `consumed` unsettled bytes. Either both are the same
    /// bytes, or `text` is a single character.
    fn settle(&mut self, consumed: usize, text: &str);
    /// The first `consumed` unsettled bytes give no text. `latest_goes_on`: the latest waiting
    /// token has bytes behind them.
    fn discard(&mut self, consumed: usize, latest_goes_on: bool);
}

/// Text alone, for what a flush would give.
impl Sink for String {
    fn copy(&mut self, _token_id: TokenId, text: &str) {
        self.push_str(text);
    }
    fn place_zero_width(&mut self, _token_id: TokenId) {}
    fn wait(&mut self, _token_id: TokenId, _position: usize) {}
    fn settle(&mut self, _consumed: usize, text: &str) {
        self.push_str(text);
    }
    fn discard(&mut self, _consumed: usize, _latest_goes_on: bool) {}
}

/// Its bytes alone, for one-shot decoding.
impl Sink for Vec<u8> {
    fn copy(&mut self, _token_id: TokenId, text: &str) {
        self.extend_from_slice(text.as_bytes());
    }
    fn place_zero_width(&mut self, _token_id: TokenId) {}
    fn wait(&mut self, _token_id: TokenId, _position: usize) {}
    fn settle(&mut self, _consumed: usize, text: &str) {
        self.extend_from_slice(text.as_bytes());
    }
    fn discard(&mut self, _consumed: usize, _latest_goes_on: bool) {}
}

/// Settled text and records that were not handed out, and the tokens that wait.
#[derive(Clone, Debug, Default)]
pub struct AttributedTextBuffer {
    settled: DecodedText,
    waiting: SmallVec<[WaitingToken; 2]>,
    /// What of `settled` was handed out and is still in memory: it goes when it is the larger part,
    /// so that a long hold-back is not moved at every chunk.
    handed: Handed,
}

#[derive(Clone, Copy, Debug, Default)]
struct Handed {
    bytes: usize,
    records: usize,
}

/// A point to come back to when a call fails half-way.
#[derive(Debug)]
pub(crate) struct Checkpoint {
    text_len: usize,
    records: usize,
    waiting: SmallVec<[WaitingToken; 2]>,
}

impl AttributedTextBuffer {
    /// Settled text that was not handed out.
    #[must_use]
    pub fn text(&self) -> &str {
        self.settled
            .text
            .get(self.handed.bytes..)
            .unwrap_or_default()
    }

    /// The text behind so many bytes of [`Self::text`], the `records` latest records, and where the
    /// text begins by their offsets.
    pub(crate) fn latest(&self, byte: usize, records: usize) -> (&str, &[TokenAttribution], usize) {
        let start = self.handed.bytes + byte;
        let text = self.settled.text.get(start..).unwrap_or_default();
        let all = &self.settled.attributions;
        let records = &all[all.len() - records.min(all.len())..];
        (text, records, start)
    }

    /// Tokens whose place in the text is not known yet, or that stand behind one.
    #[must_use]
    pub fn waiting_tokens(&self) -> usize {
        self.waiting.len()
    }

    /// Neither text nor records nor tokens that wait.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.settled.is_empty() && self.waiting.is_empty()
    }

    pub(crate) fn checkpoint(&self) -> Checkpoint {
        Checkpoint {
            text_len: self.settled.text.len(),
            records: self.settled.attributions.len(),
            waiting: self.waiting.clone(),
        }
    }

    /// Forgets what came after `checkpoint`; nothing may have been handed out since.
    pub(crate) fn restore(&mut self, checkpoint: Checkpoint) {
        self.settled.text.truncate(checkpoint.text_len);
        self.settled.attributions.truncate(checkpoint.records);
        self.waiting = checkpoint.waiting;
    }

    /// Makes room for a run of tokens.
    pub(crate) fn reserve(&mut self, tokens: usize) {
        self.settled.attributions.reserve(tokens);
        // The usual length of a token; longer ones grow the text as it comes.
        self.settled.text.reserve(tokens * 4);
    }

    /// The next chunk, or `None` if neither text nor a record may leave while `min_bytes` bytes at
    /// the end are held back (A5, A6).
    pub fn next_chunk(&mut self, min_bytes: usize) -> Option<DecodedText> {
        let Handed { bytes, records } = self.handed;
        let leaving = self.leaving(min_bytes)?;
        if self.is_all(&leaving) {
            return Some(self.take());
        }
        let chunk = (self.settled).slice(bytes..leaving.bytes, records..leaving.records);
        self.hand_out(leaving);
        Some(chunk)
    }

    /// The same, behind what `text` and `records` have; the records' offsets are those of the
    /// chunk. The memory of the buffer serves what comes next.
    pub(crate) fn move_chunk(
        &mut self,
        min_bytes: usize,
        text: &mut String,
        records: &mut Vec<TokenAttribution>,
    ) {
        let before = self.handed;
        let Some(leaving) = self.leaving(min_bytes) else {
            return;
        };
        let chunk = self.settled.text.get(before.bytes..leaving.bytes);
        text.push_str(chunk.unwrap_or_default());
        let base = before.bytes as u32;
        let of_chunk = self
            .settled
            .attributions
            .get(before.records..leaving.records);
        records.extend(
            of_chunk
                .unwrap_or_default()
                .iter()
                .map(|record| record.rebased(|offset| offset - base.min(offset))),
        );
        if self.is_all(&leaving) {
            self.handed = Handed::default();
            self.move_waiting(leaving.bytes);
            self.settled.text.clear();
            self.settled.attributions.clear();
        } else {
            self.hand_out(leaving);
        }
    }

    /// How far the next chunk goes, if there is one.
    fn leaving(&self, min_bytes: usize) -> Option<Handed> {
        if self.settled.is_empty() {
            return None;
        }
        let Handed { bytes, records } = self.handed;
        let end = self.settled.text.len();
        let cut = floor_char_boundary(&self.settled.text, end.saturating_sub(min_bytes)).max(bytes);
        let leaving = self.settled.leaving(records, cut);
        (cut > bytes || leaving > records).then_some(Handed {
            bytes: cut,
            records: leaving,
        })
    }

    fn is_all(&self, leaving: &Handed) -> bool {
        leaving.bytes == self.settled.text.len()
            && leaving.records == self.settled.attributions.len()
    }

    fn hand_out(&mut self, leaving: Handed) {
        self.handed = leaving;
        if leaving.bytes > self.settled.text.len() - leaving.bytes {
            self.forget_handed();
        }
    }

    /// How far the text reaches that the tokens handed out have a part in: up to the first record
    /// behind them that has text, and over its character if that one goes on with theirs.
    pub(crate) fn end_of_handed_tokens(&self) -> usize {
        let rest = self.settled.attributions.get(self.handed.records..);
        let visible = rest
            .unwrap_or_default()
            .iter()
            .find(|record| record.anchor.is_visible());
        let Some(record) = visible else {
            return self.text().len();
        };
        let start = (record.anchor.byte_offset() as usize).saturating_sub(self.handed.bytes);
        let behind = self.text().get(start..).unwrap_or_default();
        let shared = behind.chars().next().filter(|_| record.continues_char);
        start + shared.map_or(0, char::len_utf8)
    }

    /// Everything that was not handed out.
    pub(crate) fn take(&mut self) -> DecodedText {
        self.forget_handed();
        self.move_waiting(self.settled.text.len());
        self.settled.take()
    }

    /// Moves all settled text into `text`, which is empty; its records are dropped.
    pub(crate) fn take_text(&mut self, text: &mut String) {
        self.forget_handed();
        self.move_waiting(self.settled.text.len());
        self.settled.attributions.clear();
        std::mem::swap(&mut self.settled.text, text);
    }

    fn forget_handed(&mut self) {
        let Handed { bytes, records } = std::mem::take(&mut self.handed);
        if bytes > 0 || records > 0 {
            self.settled.remove_prefix(bytes, records);
            self.move_waiting(bytes);
        }
    }

    /// Keeps the places of waiting tokens true when `bytes` bytes at the front go.
    fn move_waiting(&mut self, bytes: usize) {
        for token in &mut self.waiting {
            token.came_at = token.came_at.saturating_sub(bytes as u32);
        }
    }

    fn end(&self) -> u32 {
        self.settled.text.len() as u32
    }

    /// The first `consumed` unsettled bytes are gone. `place` says where a token stands whose first
    /// byte was among them; with `latest_goes_on` the latest token may have its first byte behind.
    fn resolve(
        &mut self,
        consumed: usize,
        latest_goes_on: bool,
        place: impl Fn(usize, u32) -> TokenAttribution,
    ) {
        let mut resolved = 0;
        let last = self.settled.attributions.last();
        let mut floor = last.map_or(0, |record| record.anchor.byte_offset());
        let total = self.waiting.len();
        for (index, token) in self.waiting.iter_mut().enumerate() {
            let record = match token.position.map(|position| position as usize) {
                None => TokenAttribution::zero_width(0, token.came_at.max(floor)),
                Some(at) if at < consumed && !(latest_goes_on && index + 1 == total) => {
                    place(at, token.came_at.max(floor))
                }
                Some(at) => {
                    token.position = Some(at.saturating_sub(consumed) as u32);
                    continue;
                }
            };
            // What has no byte stays behind a token that waits.
            if resolved == index {
                floor = record.anchor.byte_offset();
                self.settled.attributions.push(TokenAttribution {
                    token_id: token.token_id,
                    ..record
                });
                resolved += 1;
            }
        }
        if resolved == total {
            self.waiting.clear();
        } else {
            self.waiting.drain(..resolved);
        }
    }
}

impl Sink for AttributedTextBuffer {
    #[inline]
    fn copy(&mut self, token_id: TokenId, text: &str) {
        let record = TokenAttribution::visible(token_id, self.settled.text.len() as u32);
        self.settled.text.push_str(text);
        self.settled.attributions.push(record);
    }

    fn place_zero_width(&mut self, token_id: TokenId) {
        let end = self.end();
        if self.waiting.is_empty() {
            self.settled
                .attributions
                .push(TokenAttribution::zero_width(token_id, end));
        } else {
            self.waiting.push(WaitingToken {
                token_id,
                came_at: end,
                position: None,
            });
        }
    }

    fn wait(&mut self, token_id: TokenId, position: usize) {
        self.waiting.push(WaitingToken {
            token_id,
            came_at: self.end(),
            position: Some(position as u32),
        });
    }

    fn settle(&mut self, consumed: usize, text: &str) {
        let base = self.end();
        self.settled.text.push_str(text);
        let end = self.end();
        let same_bytes = consumed == text.len();
        self.resolve(consumed, false, |at, _| {
            let start = if same_bytes {
                floor_char_boundary(text, at)
            } else {
                0
            };
            TokenAttribution {
                continues_char: at > start,
                ..TokenAttribution::visible(0, base + start as u32)
            }
        });
        // A token comes with what it settles, even if none of that is its own.
        if let Some(latest) = self
            .waiting
            .last_mut()
            .filter(|token| token.position.is_some())
        {
            latest.came_at = end;
        }
    }

    fn discard(&mut self, consumed: usize, latest_goes_on: bool) {
        self.resolve(consumed, latest_goes_on, |_, came_at| {
            TokenAttribution::zero_width(0, came_at)
        });
    }
}

/// A buffer whose settled text leaves at once, so that nobody will see its records. Tokens that
/// wait are still counted: they leave with what comes later.
pub(crate) struct Unrecorded<'b>(pub(crate) &'b mut AttributedTextBuffer);

impl Unrecorded<'_> {
    /// The first `consumed` unsettled bytes are gone. `latest_goes_on` as in [`Sink::discard`].
    fn consume(&mut self, consumed: usize, latest_goes_on: bool) {
        let waiting = &mut self.0.waiting;
        let latest = waiting.len().saturating_sub(1);
        let mut resolved = 0;
        for (index, token) in waiting.iter_mut().enumerate() {
            match token.position.map(|position| position as usize) {
                Some(at) if at >= consumed || latest_goes_on && index == latest => {
                    token.position = Some(at.saturating_sub(consumed) as u32);
                }
                _ => resolved += usize::from(resolved == index),
            }
        }
        if resolved == waiting.len() {
            waiting.clear();
        } else {
            waiting.drain(..resolved);
        }
    }
}

impl Sink for Unrecorded<'_> {
    fn copy(&mut self, _token_id: TokenId, text: &str) {
        self.0.settled.text.push_str(text);
    }

    fn place_zero_width(&mut self, token_id: TokenId) {
        if !self.0.waiting.is_empty() {
            self.0.place_zero_width(token_id);
        }
    }

    fn wait(&mut self, token_id: TokenId, position: usize) {
        self.0.wait(token_id, position);
    }

    fn settle(&mut self, consumed: usize, text: &str) {
        self.0.settled.text.push_str(text);
        self.consume(consumed, false);
    }

    fn discard(&mut self, consumed: usize, latest_goes_on: bool) {
        self.consume(consumed, latest_goes_on);
    }
}
