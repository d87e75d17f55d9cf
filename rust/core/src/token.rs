//! Token ids and positions of tokens.

/// An entry of the vocabulary, as the model samples it.
///
/// Not a position: the third token of a generation has an id like any other.
pub type TokenId = u32;

/// What becomes of a generated id that the tokenizer cannot map.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum UnknownIds {
    /// The call fails and changes nothing.
    #[default]
    Error,
    /// The id gives no text and one zero-width record.
    Skip,
}
