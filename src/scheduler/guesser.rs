//! Asks what follows the sequences that go on: the draft head of the engine, or a draft model. Whatever fails there costs speed, and no
//! sequence.

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::commit::Advanced;
use crate::drafts::draft_model::{DraftEngine, DraftModel};
use crate::drafts::{DrafterKind, GuessCost, GuessRequest};
use crate::sequences::Sequences;
use engine::{DraftHeadInfo, DraftRequest, Engine, EngineError};

/// The engine of a model, and that of its draft model.
pub struct Engines {
    pub engine: Box<dyn Engine>,
    /// None: there is no draft model. The engine must be one that computes in `submit`.
    pub draft: Option<DraftEngine>,
}

impl From<Box<dyn Engine>> for Engines {
    fn from(engine: Box<dyn Engine>) -> Self {
        Self { engine, draft: None }
    }
}

/// Asks for guesses between steps.
#[derive(Default)]
pub struct Guesser {
    cost: Option<GuessCost>,
    head: Option<DraftHeadInfo>,
    model: Option<DraftModel>,
}

impl Guesser {
    /// A draft model takes the place of a head.
    pub fn new(head: Option<DraftHeadInfo>, draft: Option<DraftEngine>, prefix_cache: bool) -> Self {
        let of_head = |head: DraftHeadInfo| GuessCost { kind: DrafterKind::Heads, pass: head.cost, row: 0.0 };
        let of_model =
            |draft: &DraftEngine| GuessCost { kind: DrafterKind::Model, pass: draft.pass, row: draft.pass * draft.engine.info().row_cost };
        let cost = draft.as_ref().map(of_model).or(head.map(of_head));
        Self { cost, head: head.filter(|_| draft.is_none()), model: draft.map(|draft| DraftModel::new(draft, prefix_cache)) }
    }

    /// The time that guesses take. None if nothing is asked for.
    pub fn cost(&self) -> Option<GuessCost> {
        self.cost
    }

    /// Asks what follows the sequences that go on after a step. No step may be in flight. Returns whether any was asked for.
    ///
    /// # Errors
    /// The engine has failed for good.
    pub fn ask(&mut self, engine: &mut dyn Engine, sequences: &mut Sequences, advanced: &[Advanced]) -> Result<bool, EngineError> {
        let guesses = match (&mut self.model, self.head) {
            (Some(model), _) => {
                // The draft model's engine is not the one that the sequences need, so no error of it is final.
                let asked = catch_unwind(AssertUnwindSafe(|| ask_model(model, sequences, advanced)));
                asked.unwrap_or_else(|_| Err(EngineError::Unsupported("it panicked".into())))
            }
            (None, Some(head)) => match ask_head(engine, head, sequences, advanced) {
                Err(error) if error.is_final() => return Err(error),
                other => other,
            },
            (None, None) => return Ok(false),
        };
        match guesses {
            Ok(guesses) => {
                let any = !guesses.is_empty();
                for (id, guess) in guesses {
                    if let Some(sequence) = sequences.running.get_mut(id) {
                        sequence.bring_guess(guess);
                    }
                }
                Ok(any)
            }
            Err(error) => {
                let what = if self.model.is_some() { "model" } else { "head" };
                tracing::warn!("the draft {what} failed: answers go on without it: {error}");
                (self.head, self.model) = (None, None);
                Ok(false)
            }
        }
    }

    /// Gives back the memory of the draft model's cache.
    pub fn give_back(&mut self) {
        if let Some(Err(error)) = self.model.as_mut().map(DraftModel::give_back) {
            tracing::warn!("the draft model failed: answers go on without it: {error}");
            self.model = None;
        }
    }
}

type Guesses = Vec<(u64, Vec<u32>)>;

fn ask_head(engine: &mut dyn Engine, head: DraftHeadInfo, sequences: &Sequences, advanced: &[Advanced]) -> Result<Guesses, EngineError> {
    let Sequences { running, blocks, .. } = sequences;
    let asks = |one: &Advanced| Some((one.id, running.get(one.id)?.draft_request(head.group, advanced.len(), blocks)?));
    let (ids, requests): (Vec<u64>, Vec<DraftRequest>) = advanced.iter().filter_map(asks).unzip();
    if requests.is_empty() {
        return Ok(Vec::new());
    }
    Ok(ids.into_iter().zip(engine.draft(&requests)?).collect())
}

fn ask_model(model: &mut DraftModel, sequences: &Sequences, advanced: &[Advanced]) -> Result<Guesses, EngineError> {
    let Sequences { running, blocks, .. } = sequences;
    model.keep(|id| running.get(id).is_some());
    let mut requests = Vec::new();
    for one in advanced {
        let Some(sequence) = running.get(one.id) else { continue };
        let Some((drafts, request)) = sequence.drafts.as_ref().filter(|drafts| drafts.may_ask()).zip(sequence.guess_request()) else {
            continue;
        };
        let Some(num_unread) = model.num_unread(&request)? else { continue };
        let most = drafts.num_to_ask(sequence.asking(advanced.len(), num_unread, blocks.max_tokens()));
        requests.extend((most > 0).then_some(GuessRequest { most, ..request }));
    }
    if requests.is_empty() {
        return Ok(Vec::new());
    }
    let guesses = model.guess(&requests)?;
    // A guess is empty while the draft model still reads.
    Ok(requests.iter().map(|request| request.id).zip(guesses).filter(|(_, guess)| !guess.is_empty()).collect())
}
