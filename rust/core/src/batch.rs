//! Many requests, one call per step of the engine.

use crate::context::Prompt;
use crate::error::Error;
use crate::event::TokenUsage;
use crate::generation::Generation;
use crate::options::TextDecodeOptions;
use crate::step_output::{Action, StepOutput};
use crate::stream::Pending;
use crate::token::TokenId;
use crate::tokenizer::Tokenizer;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// A place in a batch: given when a request is added, free again when it is removed.
pub type Slot = u32;

/// A step of fewer ids is done before threads have started.
pub const THREADS_FROM: usize = 1 << 14;

/// Most threads of a step, whatever is asked for.
const MAX_THREADS: usize = 64;

/// Decodes many requests in steps. Slots keep no output.
#[derive(Debug)]
pub struct BatchDecoder {
    tokenizer: Arc<Tokenizer>,
    requests: Vec<Option<BatchRequest>>,
    free: BinaryHeap<Reverse<Slot>>,
    /// By slot, the last call that named it, so that a slot named twice is found in one look.
    named_in: Vec<u64>,
    calls: u64,
}

/// A request that can be added to a batch of the same tokenizer.
#[derive(Clone, Debug)]
pub struct BatchRequest {
    pub(crate) generation: Generation,
    prompt_tokens: u64,
}

impl BatchRequest {
    /// Behind `prompt`, of which the tail is read and nothing kept.
    ///
    /// # Errors
    /// As [`DecodeStream::open`](crate::DecodeStream::open).
    pub fn open<E: From<Error>>(
        tokenizer: Arc<Tokenizer>,
        prompt: &(impl Prompt<E> + ?Sized),
        options: Arc<TextDecodeOptions>,
    ) -> Result<Self, E> {
        Ok(Self {
            generation: Generation::open(tokenizer, prompt, options)?,
            prompt_tokens: prompt.len() as u64,
        })
    }
}

/// A slot with its request, if it has one, and what is done to it.
type Job<'r> = (Slot, Option<&'r mut BatchRequest>, Action<'r>);

/// Jobs in order, in shares of about as many ids each.
fn shares<'j, 'r>(jobs: &'j mut [Job<'r>], count: usize) -> Vec<&'j mut [Job<'r>]> {
    let total: usize = jobs.iter().map(|(_, _, action)| action.len()).sum();
    let most = total.div_ceil(count).max(1);
    let mut ids = 0;
    jobs.chunk_by_mut(|(_, _, action), _| {
        ids += action.len();
        let goes_on = ids < most;
        ids = if goes_on { ids } else { 0 };
        goes_on
    })
    .collect()
}

impl BatchDecoder {
    /// No requests.
    #[must_use]
    pub fn new(tokenizer: Arc<Tokenizer>) -> Self {
        Self {
            tokenizer,
            requests: Vec::new(),
            free: BinaryHeap::new(),
            named_in: Vec::new(),
            calls: 0,
        }
    }

    /// Number of slots in use.
    #[must_use]
    pub fn len(&self) -> usize {
        self.requests.len() - self.free.len()
    }

    /// No slot is in use.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Puts a request into the lowest free slot.
    ///
    /// # Errors
    /// [`Error::BadStep`] if it was opened with another tokenizer.
    pub fn add(&mut self, request: BatchRequest) -> Result<Slot, Error> {
        if !Arc::ptr_eq(request.generation.stream().tokenizer(), &self.tokenizer) {
            return Err(Error::BadStep(
                "the request was opened with another tokenizer than the batch".into(),
            ));
        }
        if let Some(Reverse(slot)) = self.free.pop()
            && let Some(place) = self.requests.get_mut(slot as usize)
        {
            *place = Some(request);
            return Ok(slot);
        }
        self.requests.push(Some(request));
        self.named_in.push(0);
        Ok((self.requests.len() - 1) as Slot)
    }

    fn request(&self, slot: Slot) -> Result<&BatchRequest, Error> {
        let request = self.requests.get(slot as usize);
        request.and_then(Option::as_ref).ok_or(Error::NoSlot(slot))
    }

    /// What a slot withholds.
    ///
    /// # Errors
    /// [`Error::NoSlot`].
    pub fn pending(&self, slot: Slot) -> Result<Pending, Error> {
        Ok(self.request(slot)?.generation.pending())
    }

    /// Tokens of a slot's request so far.
    ///
    /// # Errors
    /// [`Error::NoSlot`].
    pub fn usage(&self, slot: Slot) -> Result<TokenUsage, Error> {
        let request = self.request(slot)?;
        Ok(TokenUsage {
            prompt_token_count: request.prompt_tokens,
            output_token_count: request.generation.kept_tokens(),
            cached_token_count: 0,
        })
    }

    /// Frees slots, all or none.
    ///
    /// # Errors
    /// [`Error::NoSlot`]; [`Error::BadStep`] for a slot named twice.
    pub fn remove(&mut self, slots: &[Slot]) -> Result<(), Error> {
        self.check_named_once(slots)?;
        for &slot in slots {
            self.request(slot)?;
        }
        for &slot in slots {
            if let Some(place) = self.requests.get_mut(slot as usize) {
                *place = None;
                self.free.push(Reverse(slot));
            }
        }
        Ok(())
    }

    /// Pushes `ids`, of which `counts[i]` belong to `slots[i]` (without counts, one each). A slot that
    /// fails stays as it was and leaves the others alone.
    ///
    /// # Errors
    /// [`Error::BadStep`] for a slot named twice and counts that do not add up; [`Error::InSlot`] if a
    /// window source fails. Then nothing has changed.
    pub fn step(
        &mut self,
        slots: &[Slot],
        ids: &[TokenId],
        counts: Option<&[u32]>,
        token_texts: bool,
        threads: usize,
    ) -> Result<StepOutput, Error> {
        check_counts(slots.len(), ids.len(), counts)?;
        self.check_named_once(slots)?;
        let mut at = 0;
        let runs = slots.iter().enumerate().map(|(position, &slot)| {
            let count = counts.map_or(1, |counts| counts.get(position).map_or(0, |&n| n as usize));
            at += count;
            let run = ids.get(at - count..at).unwrap_or_default();
            (slot, Action::Push(run))
        });
        let output = StepOutput::with_room_for(&self.tokenizer, slots.len(), token_texts);
        if threads > 1 && ids.len() >= THREADS_FROM && self.tokenizer.table().is_some() {
            let runs: Vec<_> = runs.collect();
            return Ok(self.act_in_threads(&runs, output, threads));
        }
        self.act(slots, runs, output)
    }

    /// Ends requests: what they withheld comes out.
    ///
    /// # Errors
    /// As [`Self::step`].
    pub fn finish(&mut self, slots: &[Slot]) -> Result<StepOutput, Error> {
        self.check_named_once(slots)?;
        let output = StepOutput::with_room_for(&self.tokenizer, slots.len(), false);
        let runs = slots.iter().map(|&slot| (slot, Action::Finish));
        self.act(slots, runs, output)
    }

    fn act<'i>(
        &mut self,
        slots: &[Slot],
        actions: impl Iterator<Item = (Slot, Action<'i>)>,
        mut output: StepOutput,
    ) -> Result<StepOutput, Error> {
        let table = self.tokenizer.table();
        if table.is_none() {
            return self.act_with_window(slots, actions, output);
        }
        for (slot, action) in actions {
            let request = self.requests.get_mut(slot as usize);
            output.act(table, slot, request.and_then(Option::as_mut), action);
        }
        Ok(output)
    }

    /// A source may run code of the caller and fail as it likes: then all slots are as they were.
    fn act_with_window<'i>(
        &mut self,
        slots: &[Slot],
        actions: impl Iterator<Item = (Slot, Action<'i>)>,
        mut output: StepOutput,
    ) -> Result<StepOutput, Error> {
        let mut changed: Vec<Option<BatchRequest>> = slots
            .iter()
            .map(|&slot| self.requests.get(slot as usize)?.clone())
            .collect();
        for ((slot, action), request) in actions.zip(&mut changed) {
            output.act(None, slot, request.as_mut(), action);
            if let Some((slot, Error::Source(_))) = output.errors.last()
                && let slot = *slot
                && let Some((_, error)) = output.errors.pop()
            {
                return Err(Error::InSlot {
                    slot,
                    error: Box::new(error),
                });
            }
        }
        for (&slot, request) in slots.iter().zip(changed) {
            if let Some(place) = self.requests.get_mut(slot as usize) {
                *place = request;
            }
        }
        Ok(output)
    }

    fn act_in_threads(
        &mut self,
        runs: &[(Slot, Action<'_>)],
        mut output: StepOutput,
        threads: usize,
    ) -> StepOutput {
        let tokenizer = &self.tokenizer;
        let table = tokenizer.table();
        let mut requests: Vec<Option<&mut BatchRequest>> =
            self.requests.iter_mut().map(Option::as_mut).collect();
        let mut jobs: Vec<Job<'_>> = runs
            .iter()
            .map(|&(slot, action)| {
                let request = requests.get_mut(slot as usize);
                (slot, request.and_then(Option::take), action)
            })
            .collect();
        let threads = threads.min(MAX_THREADS);
        let token_texts = output.token_texts.is_some();
        let shares: Vec<Mutex<(&mut [Job<'_>], StepOutput)>> = shares(&mut jobs, threads)
            .into_iter()
            .map(|jobs| {
                let part = StepOutput::with_room_for(tokenizer, jobs.len(), token_texts);
                Mutex::new((jobs, part))
            })
            .collect();
        let next = AtomicUsize::new(0);
        let work = || {
            while let Some(share) = shares.get(next.fetch_add(1, Ordering::Relaxed)) {
                let mut share = share.lock().unwrap_or_else(PoisonError::into_inner);
                let (jobs, part) = &mut *share;
                for (slot, request, action) in jobs.iter_mut() {
                    part.act(table, *slot, request.as_deref_mut(), *action);
                }
            }
        };
        std::thread::scope(|scope| {
            for _ in 1..threads {
                // If the system gives no more threads, those that there are do it all.
                let _started = std::thread::Builder::new().spawn_scoped(scope, work);
            }
            work();
        });
        for share in shares {
            let (_, part) = share.into_inner().unwrap_or_else(PoisonError::into_inner);
            output.append(part);
        }
        output
    }

    fn check_named_once(&mut self, slots: &[Slot]) -> Result<(), Error> {
        self.calls += 1;
        let mut unknown = HashSet::new();
        for &slot in slots {
            let before = match self.named_in.get_mut(slot as usize) {
                Some(named_in) => std::mem::replace(named_in, self.calls) == self.calls,
                None => !unknown.insert(slot),
            };
            if before {
                return Err(Error::BadStep(format!(
                    "slot {slot} is named twice; name each slot once"
                )));
            }
        }
        Ok(())
    }
}

fn check_counts(slots: usize, ids: usize, counts: Option<&[u32]>) -> Result<(), Error> {
    let Some(counts) = counts else {
        if slots == ids {
            return Ok(());
        }
        return Err(Error::BadStep(format!(
            "{ids} token ids for {slots} slots: without counts there must be one each"
        )));
    };
    if counts.len() != slots {
        return Err(Error::BadStep(format!(
            "{} counts for {slots} slots: there must be one each",
            counts.len()
        )));
    }
    let sum: u64 = counts.iter().map(|&count| u64::from(count)).sum();
    if sum == ids as u64 {
        Ok(())
    } else {
        Err(Error::BadStep(format!(
            "the counts add up to {sum}, but there are {ids} token ids"
        )))
    }
}
