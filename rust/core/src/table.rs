//! The compiled vocabulary: token id → the bytes it contributes.
//!
//! A step of a stream is one look-up here and one copy. The table is built once per
//! tokenizer and shared; nothing in it changes afterwards.

use crate::byte_kinds::ByteKinds;
use crate::error::{Error, LoadError};
use crate::program::Program;
use crate::token::TokenId;
use crate::utf8::is_incomplete;
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::OnceLock;

/// Ids behind more unmapped ones than this are kept in a side list, so that a few stray
/// ids do not allocate the gaps before them.
const MAX_GAP: u32 = 1 << 20;

/// Flags share a word with the length.
const FLAG_BITS: u32 = 12;

/// Longest contribution of one token.
const MAX_TOKEN_LEN: usize = (1 << (u32::BITS - FLAG_BITS)) - 1;

/// Most tokens are no longer than this.
const COPY_WIDTH: usize = 16;

/// What is known of a token beyond its bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenFlags(u16);

impl TokenFlags {
    /// Hidden while special tokens are skipped.
    pub const HIDEABLE: Self = Self(1);
    /// Special by the source's own word.
    pub const SPECIAL: Self = Self(1 << 1);
    /// Added to the model's vocabulary.
    pub const ADDED: Self = Self(1 << 2);
    /// One byte of a byte-fallback run.
    pub const BYTE: Self = Self(1 << 3);
    /// Leaves a blank to the next shown token (end-of-word suffix).
    pub const LEAVES_BLANK: Self = Self(1 << 4);
    const UNMAPPED: Self = Self(1 << 5);
    const PARTIAL: Self = Self(1 << 6);
    const EMPTY: Self = Self(1 << 7);
    /// The beginning of a character and nothing else.
    pub(crate) const OPENS_CHAR: Self = Self(1 << 8);
    /// A byte that a step after joining may replace.
    const REPLACEABLE: Self = Self(1 << 9);
    /// A byte that no character can begin with: alone, it is one U+FFFD and leaves nothing open.
    pub(crate) const BROKEN: Self = Self(1 << 10);

    /// Tokens that need more than a copy, even in the middle of text.
    const NOT_A_COPY: u16 = Self::HIDEABLE.0
        | Self::LEAVES_BLANK.0
        | Self::UNMAPPED.0
        | Self::PARTIAL.0
        | Self::EMPTY.0
        | Self::REPLACEABLE.0;

    /// Both sets together.
    #[must_use]
    pub const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Whether every flag of `other` is set.
    #[must_use]
    pub const fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

/// Where a contribution lies, and the flags of its token, in eight bytes.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Entry {
    offset: u32,
    len_and_flags: u32,
}

impl Entry {
    const UNMAPPED: Self = Self {
        offset: 0,
        len_and_flags: TokenFlags::UNMAPPED.0 as u32,
    };

    const fn len(self) -> usize {
        (self.len_and_flags >> FLAG_BITS) as usize
    }

    const fn flags(self) -> TokenFlags {
        TokenFlags((self.len_and_flags & ((1 << FLAG_BITS) - 1)) as u16)
    }

    const fn range(self) -> std::ops::Range<usize> {
        let start = self.offset as usize;
        start..start + self.len()
    }
}

/// A mapped token as a decoder meets it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Piece<'t> {
    pub(crate) bytes: &'t [u8],
    pub(crate) flags: TokenFlags,
}

impl Piece<'_> {
    /// Whether the bytes are whole characters on their own.
    pub(crate) fn is_whole(&self) -> bool {
        !self.flags.has(TokenFlags::PARTIAL)
    }
}

/// Token id → bytes and flags; immutable, shared by every stream of a tokenizer.
#[derive(Debug, Serialize, Deserialize)]
pub struct Table {
    program: Program,
    /// One entry per id below `dense_len`, then one per id of `sparse`.
    entries: Vec<Entry>,
    dense_len: u32,
    /// Ids beyond a gap, ascending; the i-th has entry `dense_len + i`.
    sparse: Vec<TokenId>,
    /// Entries of tokens that contribute something else when they come first;
    /// empty where none does.
    first_entries: Vec<Entry>,
    /// Contributions that are whole characters, end to end.
    text: String,
    /// Contributions that are not, end to end.
    bytes: Vec<u8>,
    /// Names as the source spells them; `None` where a name is its token's lossy text.
    names: Option<Names>,
    /// Longest contribution of all.
    longest: u32,
    /// Every id below `dense_len` is mapped, and no other.
    has_no_gaps: bool,
    #[serde(skip)]
    by_name: OnceLock<Vec<u32>>,
    #[serde(skip)]
    marked_by_name: OnceLock<Vec<u32>>,
    /// By id below `dense_len`, what [`Table::copied_text`] has; made for the first stop strings.
    #[serde(skip)]
    byte_kinds: OnceLock<Box<[ByteKinds]>>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Names {
    ends: Vec<u32>,
    text: String,
}

impl Names {
    fn get(&self, index: usize) -> Option<&str> {
        let end = *self.ends.get(index)? as usize;
        let start = match index.checked_sub(1) {
            Some(before) => *self.ends.get(before)? as usize,
            None => 0,
        };
        self.text.get(start..end)
    }
}

impl Table {
    /// How contributions are put together.
    pub(crate) fn program(&self) -> &Program {
        &self.program
    }

    /// Highest mapped id + 1.
    #[must_use]
    pub fn vocab_size(&self) -> u64 {
        match self.sparse.last() {
            Some(&last) => u64::from(last) + 1,
            None => u64::from(self.dense_len),
        }
    }

    /// Ids below this have entries of their own, mapped or not.
    #[must_use]
    pub fn dense_len(&self) -> usize {
        self.dense_len as usize
    }

    /// Position of a mapped token in the table.
    #[inline]
    pub(crate) fn index(&self, id: TokenId) -> Option<usize> {
        let index = if id < self.dense_len {
            id as usize
        } else {
            self.dense_len as usize + self.sparse.binary_search(&id).ok()?
        };
        let entry = self.entries.get(index)?;
        (!entry.flags().has(TokenFlags::UNMAPPED)).then_some(index)
    }

    /// The text of a token that is a mere copy in the middle of text: mapped, shown, not empty,
    /// whole characters, leaving nothing to the next.
    #[inline]
    #[must_use]
    pub fn copied_text(&self, id: TokenId) -> Option<&str> {
        self.text.get(self.copied(id)?.range())
    }

    /// Bytes of that text.
    #[inline]
    #[must_use]
    pub fn copied_len(&self, id: TokenId) -> Option<usize> {
        self.copied(id).map(Entry::len)
    }

    /// Makes [`Self::byte_kinds`] ready.
    pub(crate) fn classify_bytes(&self) {
        self.byte_kinds.get_or_init(|| {
            let texts = (0..self.dense_len).map(|id| self.copied_text(id).unwrap_or_default());
            texts.map(|text| ByteKinds::of(text.bytes())).collect()
        });
    }

    /// Kinds of the bytes of that text, where they are ready.
    #[inline]
    pub(crate) fn byte_kinds(&self, id: TokenId) -> Option<ByteKinds> {
        self.byte_kinds.get()?.get(id as usize).copied()
    }

    /// Appends that text; says whether the token has one. A run of short tokens is copied at a
    /// fixed width and cut to size, which is faster than copying each at its own.
    #[inline]
    pub(crate) fn append_copied(&self, id: TokenId, out: &mut Vec<u8>) -> bool {
        let Some(entry) = self.copied(id) else {
            return false;
        };
        let start = entry.offset as usize;
        match self.text.as_bytes().get(start..start + COPY_WIDTH) {
            Some(wide) if entry.len() <= COPY_WIDTH => {
                let end = out.len() + entry.len();
                out.extend_from_slice(wide);
                out.truncate(end);
            }
            _ => out.extend_from_slice(self.text.as_bytes().get(entry.range()).unwrap_or_default()),
        }
        true
    }

    #[inline]
    fn copied(&self, id: TokenId) -> Option<Entry> {
        let entry = *self.entries.get(id as usize)?;
        (id < self.dense_len && entry.flags().0 & TokenFlags::NOT_A_COPY == 0).then_some(entry)
    }

    /// The token at a position given by [`Table::index`], in the middle of text.
    pub(crate) fn piece(&self, index: usize) -> Piece<'_> {
        self.resolve(self.entries.get(index).copied())
    }

    /// The same token as the first of its text.
    pub(crate) fn first_piece(&self, index: usize) -> Piece<'_> {
        let first = self
            .first_entries
            .get(index)
            .or_else(|| self.entries.get(index));
        self.resolve(first.copied())
    }

    /// Most bytes of text a token of `len` bytes can settle, a blank before it included.
    pub(crate) fn most_bytes_of(&self, len: usize) -> usize {
        let replaced = self.program.after_joining.iter().map(|(_, to)| to.len());
        // Every byte may turn into U+FFFD, which has three.
        len * replaced.max().unwrap_or(0).max(3) + 1
    }

    /// Most bytes of text a run of tokens can settle.
    pub(crate) fn most_bytes(&self, tokens: usize) -> usize {
        tokens.saturating_mul(self.most_bytes_of(self.longest as usize))
    }

    /// The error for an id that is not mapped.
    pub(crate) fn unknown(&self, index: usize, id: TokenId) -> Error {
        Error::UnknownToken {
            id,
            index,
            vocab_size: Some(self.vocab_size()),
        }
    }

    /// The first id of a run that is not mapped, and its position.
    pub(crate) fn first_unknown(&self, ids: &[TokenId]) -> Option<(usize, TokenId)> {
        if self.has_no_gaps && ids.iter().all(|&id| id < self.dense_len) {
            return None;
        }
        let mut ids = ids.iter().copied().enumerate();
        ids.find(|&(_, id)| self.index(id).is_none())
    }

    fn resolve(&self, entry: Option<Entry>) -> Piece<'_> {
        let entry = entry.unwrap_or(Entry::UNMAPPED);
        let arena = if entry.flags().has(TokenFlags::PARTIAL) {
            self.bytes.as_slice()
        } else {
            self.text.as_bytes()
        };
        Piece {
            bytes: arena.get(entry.range()).unwrap_or_default(),
            flags: entry.flags(),
        }
    }

    /// Flags of a mapped token.
    #[must_use]
    pub fn flags(&self, id: TokenId) -> Option<TokenFlags> {
        self.index(id).map(|index| self.piece(index).flags)
    }

    /// What the token contributes in the middle of text.
    #[must_use]
    pub fn token_bytes(&self, id: TokenId) -> Option<&[u8]> {
        self.index(id).map(|index| self.piece(index).bytes)
    }

    /// The token as its source spells it.
    #[must_use]
    pub fn name(&self, id: TokenId) -> Option<Cow<'_, str>> {
        self.index(id).map(|index| self.name_at(index))
    }

    fn name_at(&self, index: usize) -> Cow<'_, str> {
        match &self.names {
            Some(names) => Cow::Borrowed(names.get(index).unwrap_or_default()),
            None => String::from_utf8_lossy(self.piece(index).bytes),
        }
    }

    /// The id of a token by its name; the lowest one if several share it.
    #[must_use]
    pub fn id_of(&self, name: &str) -> Option<TokenId> {
        let all = |flags: TokenFlags| !flags.has(TokenFlags::UNMAPPED);
        self.find(name, self.by_name.get_or_init(|| self.sorted(all)))
    }

    /// The same among special and added tokens, which are few.
    pub(crate) fn marked_id_of(&self, name: &str) -> Option<TokenId> {
        let marked =
            |flags: TokenFlags| flags.has(TokenFlags::SPECIAL) || flags.has(TokenFlags::ADDED);
        self.find(
            name,
            self.marked_by_name.get_or_init(|| self.sorted(marked)),
        )
    }

    /// Indices in the order of their names.
    fn sorted(&self, are_wanted: impl Fn(TokenFlags) -> bool) -> Vec<u32> {
        let mut indices: Vec<u32> = (0..self.entries.len())
            .filter(|&index| are_wanted(self.piece(index).flags))
            .map(|index| index as u32)
            .collect();
        // Stable, so that equal names stay in the order of their ids.
        indices.sort_by(|&a, &b| self.name_at(a as usize).cmp(&self.name_at(b as usize)));
        indices
    }

    fn find(&self, name: &str, sorted: &[u32]) -> Option<TokenId> {
        let at = sorted.partition_point(|&index| *self.name_at(index as usize) < *name);
        let index = *sorted.get(at)?;
        (self.name_at(index as usize) == name).then(|| self.id_at(index as usize))
    }

    fn id_at(&self, index: usize) -> TokenId {
        match index.checked_sub(self.dense_len as usize) {
            Some(beyond) => self.sparse.get(beyond).copied().unwrap_or(TokenId::MAX),
            None => index as TokenId,
        }
    }

    /// Every mapped id, ascending.
    pub fn ids(&self) -> impl Iterator<Item = TokenId> + '_ {
        (0..self.entries.len())
            .filter(|&index| !self.piece(index).flags.has(TokenFlags::UNMAPPED))
            .map(|index| self.id_at(index))
    }

    /// A hash of everything decoding depends on, the same in every process.
    #[must_use]
    pub fn fingerprint(&self) -> String {
        let mut hasher = xxhash_rust::xxh3::Xxh3::new();
        hasher.update(&postcard::to_allocvec(&self.program).unwrap_or_default());
        for entries in [&self.entries, &self.first_entries] {
            for entry in entries {
                hasher.update(&entry.offset.to_le_bytes());
                hasher.update(&entry.len_and_flags.to_le_bytes());
            }
        }
        for id in &self.sparse {
            hasher.update(&id.to_le_bytes());
        }
        hasher.update(self.text.as_bytes());
        hasher.update(&self.bytes);
        format!("{:032x}", hasher.digest128())
    }

    /// Checks a table that came from outside, so that no later look-up can fail.
    pub(crate) fn validate(&self) -> Result<(), LoadError> {
        let sound = |entry: &Entry| {
            if entry.flags().has(TokenFlags::PARTIAL) {
                self.bytes.get(entry.range()).is_some()
            } else {
                self.text.get(entry.range()).is_some()
            }
        };
        let slots = self.dense_len as usize + self.sparse.len();
        let lengths = self.entries.len() == slots
            && (self.first_entries.is_empty() || self.first_entries.len() == slots)
            && self
                .names
                .as_ref()
                .is_none_or(|names| names.ends.len() == slots);
        let ascending = self.sparse.is_sorted_by(|a, b| a < b)
            && self
                .sparse
                .first()
                .is_none_or(|&first| first >= self.dense_len);
        let names = self
            .names
            .as_ref()
            .is_none_or(|names| (0..slots).all(|index| names.get(index).is_some()));
        let ranges = self.entries.iter().chain(&self.first_entries).all(sound);
        let bounds = self
            .entries
            .iter()
            .chain(&self.first_entries)
            .all(|entry| entry.len() <= self.longest as usize)
            && (!self.has_no_gaps || self.ids().count() == slots && self.sparse.is_empty());
        if bounds && lengths && ascending && names && ranges {
            Ok(())
        } else {
            Err(LoadError::invalid("the compiled table is damaged"))
        }
    }
}

/// What a source says of one token.
#[derive(Clone, Debug, Default)]
pub(crate) struct TokenSpec {
    /// As the source spells it; `None`: the lossy text of its bytes.
    pub(crate) name: Option<String>,
    /// Contribution in the middle of text.
    pub(crate) bytes: Vec<u8>,
    /// Contribution as the first token, where that differs.
    pub(crate) first: Option<Vec<u8>>,
    /// Everything but what the bytes themselves tell.
    pub(crate) flags: TokenFlags,
}

/// Collects tokens in any order and lays them out.
#[derive(Debug, Default)]
pub(crate) struct TableBuilder {
    tokens: BTreeMap<TokenId, TokenSpec>,
}

impl TableBuilder {
    /// Adds a token, in place of an earlier one with this id.
    pub(crate) fn insert(&mut self, id: TokenId, spec: TokenSpec) {
        self.tokens.insert(id, spec);
    }

    pub(crate) fn contains(&self, id: TokenId) -> bool {
        self.tokens.contains_key(&id)
    }

    pub(crate) fn build(self, program: Program) -> Result<Table, LoadError> {
        let mut table = Table {
            program,
            entries: Vec::new(),
            dense_len: 0,
            sparse: Vec::new(),
            first_entries: Vec::new(),
            text: String::new(),
            bytes: Vec::new(),
            names: None,
            longest: 0,
            has_no_gaps: true,
            by_name: OnceLock::new(),
            marked_by_name: OnceLock::new(),
            byte_kinds: OnceLock::new(),
        };
        let named = self.tokens.values().any(|spec| spec.name.is_some());
        let varies = self.tokens.values().any(|spec| spec.first.is_some());
        let mut names = Names {
            ends: Vec::new(),
            text: String::new(),
        };
        let mut spare_gap = MAX_GAP;
        for (id, spec) in self.tokens {
            let gap = id - table.dense_len;
            if table.sparse.is_empty() && gap <= spare_gap {
                spare_gap -= gap;
                table.entries.resize(id as usize, Entry::UNMAPPED);
                table.dense_len = id.saturating_add(1);
            } else {
                table.sparse.push(id);
            }
            let entry = table.store(&spec.bytes, spec.flags)?;
            if varies {
                table
                    .first_entries
                    .resize(table.entries.len(), Entry::UNMAPPED);
                let first = match &spec.first {
                    Some(first) => table.store(first, spec.flags)?,
                    None => entry,
                };
                table.first_entries.push(first);
            }
            table.entries.push(entry);
            if named {
                let end = names.text.len() as u32;
                names.ends.resize(table.entries.len() - 1, end);
                match &spec.name {
                    Some(name) => names.text.push_str(name),
                    None => names.text.push_str(&String::from_utf8_lossy(&spec.bytes)),
                }
                let end = u32::try_from(names.text.len())
                    .map_err(|_| LoadError::invalid("the names of its tokens pass 4 GiB"))?;
                names.ends.push(end);
            }
        }
        table.names = named.then_some(names);
        table.has_no_gaps = table.sparse.is_empty() && table.ids().count() == table.entries.len();
        table.text.shrink_to_fit();
        table.bytes.shrink_to_fit();
        table.entries.shrink_to_fit();
        Ok(table)
    }
}

impl Table {
    fn store(&mut self, bytes: &[u8], flags: TokenFlags) -> Result<Entry, LoadError> {
        if bytes.len() > MAX_TOKEN_LEN {
            return Err(LoadError::invalid(format!(
                "a token of {} bytes is longer than {MAX_TOKEN_LEN}",
                bytes.len()
            )));
        }
        let flags = if flags.has(TokenFlags::BYTE) && !self.program.after_joining.is_empty() {
            flags.with(TokenFlags::REPLACEABLE)
        } else {
            flags
        };
        let (offset, shape) = match std::str::from_utf8(bytes) {
            Ok("") => (0, TokenFlags::EMPTY),
            Ok(whole) => {
                self.text.push_str(whole);
                (self.text.len() - whole.len(), TokenFlags::default())
            }
            Err(_) => {
                self.bytes.extend_from_slice(bytes);
                let shape = match bytes {
                    _ if is_incomplete(bytes) => TokenFlags::OPENS_CHAR,
                    [_] if !flags.has(TokenFlags::REPLACEABLE) => TokenFlags::BROKEN,
                    _ => TokenFlags::default(),
                };
                let shape = shape.with(TokenFlags::PARTIAL);
                (self.bytes.len() - bytes.len(), shape)
            }
        };
        self.longest = self.longest.max(bytes.len() as u32);
        let offset = u32::try_from(offset)
            .map_err(|_| LoadError::invalid("the bytes of its tokens pass 4 GiB"))?;
        Ok(Entry {
            offset,
            len_and_flags: (bytes.len() as u32) << FLAG_BITS | u32::from(flags.with(shape).0),
        })
    }
}
