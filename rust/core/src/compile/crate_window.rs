//! The `tokenizers` crate's own tokenizer as a source of windows.

use crate::token::TokenId;
use crate::window::{SourceError, WindowSource};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use tokenizers::Tokenizer;

/// Decodes what no table can.
pub(super) struct CrateTokenizer(pub(super) Arc<Tokenizer>);

impl WindowSource for CrateTokenizer {
    fn decode(&self, ids: &[TokenId], skip_special_tokens: bool) -> Result<String, SourceError> {
        // Some of the crate's decoders panic on input they did not expect, such as no tokens.
        catch_unwind(AssertUnwindSafe(|| self.0.decode(ids, skip_special_tokens)))
            .unwrap_or_else(|_| Err("the tokenizers crate could not decode these ids".into()))
    }

    fn id_to_token(&self, id: TokenId) -> Result<Option<String>, SourceError> {
        Ok(self.0.id_to_token(id))
    }

    fn is_special(&self, id: TokenId) -> Result<bool, SourceError> {
        let added = self.0.get_added_tokens_decoder();
        Ok(added.get(&id).is_some_and(|token| token.special))
    }

    fn is_added(&self, id: TokenId) -> Result<bool, SourceError> {
        Ok(self.0.get_added_tokens_decoder().contains_key(&id))
    }

    fn token_to_id(&self, token: &str) -> Result<Option<TokenId>, SourceError> {
        Ok(self.0.token_to_id(token))
    }

    fn vocab_size(&self) -> Result<u64, SourceError> {
        let highest = self.0.get_vocab(true).into_values().max();
        Ok(highest.map_or(0, |id| u64::from(id) + 1))
    }

    fn special_token_ids(&self) -> Result<Vec<TokenId>, SourceError> {
        let added = self.0.get_added_tokens_decoder();
        let mut ids: Vec<_> = added
            .iter()
            .filter(|(_, token)| token.special)
            .map(|(&id, _)| id)
            .collect();
        ids.sort_unstable();
        Ok(ids)
    }

    fn to_json(&self) -> Option<String> {
        self.0.to_string(false).ok()
    }
}
