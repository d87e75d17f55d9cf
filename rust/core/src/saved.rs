//! A tokenizer as bytes: its compact table, and where its source is to be had for `encode`.

use crate::encode::Encoder;
use crate::error::{Error, LoadError};
use crate::table::Table;

/// Changes with the layout of anything behind it.
const HEADER: &[u8] = b"detok tokenizer 1\n";

/// Bytes of the checksum behind the header.
const CHECKSUM_LEN: usize = 16;

pub(crate) fn write(table: Option<&Table>, encoder: &Encoder) -> Result<Vec<u8>, Error> {
    let table = table.ok_or_else(|| {
        Error::Unsupported(
            "a tokenizer decoded by windows cannot be saved: its source is not data".into(),
        )
    })?;
    let body =
        postcard::to_allocvec(&(table, encoder)).map_err(|error| Error::Source(Box::new(error)))?;
    let mut bytes = HEADER.to_vec();
    bytes.extend_from_slice(&xxhash_rust::xxh3::xxh3_128(&body).to_le_bytes());
    bytes.extend_from_slice(&body);
    Ok(bytes)
}

pub(crate) fn read(bytes: &[u8]) -> Result<(Table, Encoder), LoadError> {
    let body = bytes
        .strip_prefix(HEADER)
        .ok_or_else(|| LoadError::invalid("not a saved tokenizer of this version"))?;
    let (checksum, body) = body
        .split_at_checked(CHECKSUM_LEN)
        .ok_or_else(|| LoadError::invalid("the saved tokenizer is cut short"))?;
    if checksum != xxhash_rust::xxh3::xxh3_128(body).to_le_bytes() {
        return Err(LoadError::invalid("the saved tokenizer is damaged"));
    }
    let (table, encoder): (Table, Encoder) = postcard::from_bytes(body)
        .map_err(|error| LoadError::invalid(format!("the saved tokenizer is damaged: {error}")))?;
    table.validate()?;
    Ok((table, encoder))
}
