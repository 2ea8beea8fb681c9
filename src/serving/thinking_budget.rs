//! A bound on reasoning. Once a model has reasoned for as many tokens as it may, the only token that may follow is the next one of the tag
//! that ends its reasoning.

use std::collections::VecDeque;
use std::sync::Arc;

use logits::{Allowed, Constraint, Grammar, mask_words};
use tokenizer::Tokenizer;

/// The rules of an answer, with a bound on the reasoning before it.
pub(super) struct ThinkingBudget {
    tokenizer: Arc<Tokenizer>,
    vocab_size: usize,
    open: &'static str,
    close: &'static str,
    close_ids: Vec<u32>,
    /// Whether the prompt ends inside reasoning.
    opened: bool,
    most: u32,
    rules: Option<Arc<dyn Grammar>>,
}

impl std::fmt::Debug for ThinkingBudget {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        f.debug_struct("ThinkingBudget").field("most", &self.most).field("rules", &self.rules).finish_non_exhaustive()
    }
}

impl ThinkingBudget {
    /// `tags`: what the model's reasoning begins and ends with. `most`: tokens of it.
    pub(super) fn new(
        tokenizer: &Arc<Tokenizer>,
        vocab_size: usize,
        tags: (&'static str, &'static str),
        opened: bool,
        most: u32,
        rules: Option<Arc<dyn Grammar>>,
    ) -> Self {
        let (open, close) = (tags.0.trim(), tags.1);
        let close_ids = tokenizer.encode(close, true);
        Self { tokenizer: tokenizer.clone(), vocab_size, open, close, close_ids, opened, most, rules }
    }
}

impl Grammar for ThinkingBudget {
    fn start(&self) -> Box<dyn Constraint> {
        let (stage, due) = match self.opened {
            true if self.most == 0 => (Stage::Past, self.close_ids.iter().copied().collect()),
            true => (Stage::Inside { tokens: 0, tail: Vec::new() }, VecDeque::new()),
            false => (Stage::Beginning(Vec::new()), VecDeque::new()),
        };
        Box::new(Position {
            tokenizer: self.tokenizer.clone(),
            vocab_size: self.vocab_size,
            open: self.open,
            close: self.close,
            close_ids: self.close_ids.clone(),
            most: self.most,
            rules: self.rules.as_ref().map(|rules| rules.start()),
            stage,
            due,
        })
    }
}

enum Stage {
    /// The text so far may become the tag that reasoning begins with.
    Beginning(Vec<u8>),
    /// In reasoning. `tail`: the last bytes, as many as may be the beginning of the closing tag.
    Inside { tokens: u32, tail: Vec<u8> },
    /// The reasoning has ended, or there is none.
    Past,
}

struct Position {
    tokenizer: Arc<Tokenizer>,
    vocab_size: usize,
    open: &'static str,
    close: &'static str,
    close_ids: Vec<u32>,
    most: u32,
    rules: Option<Box<dyn Constraint>>,
    stage: Stage,
    /// What is left of the closing tag, once the reasoning is too long.
    due: VecDeque<u32>,
}

impl Position {
    fn advance(&mut self, id: u32) {
        let bytes = self.tokenizer.token_bytes(id, true).unwrap_or_default();
        match &mut self.stage {
            Stage::Beginning(text) => {
                text.extend_from_slice(bytes);
                let text = text.trim_ascii_start();
                if text.starts_with(self.open.as_bytes()) {
                    self.stage = Stage::Inside { tokens: 0, tail: Vec::new() };
                } else if !self.open.as_bytes().starts_with(text) {
                    self.stage = Stage::Past;
                }
            }
            Stage::Inside { tokens, tail } => {
                *tokens += 1;
                tail.extend_from_slice(bytes);
                if tail.windows(self.close.len()).any(|window| window == self.close.as_bytes()) {
                    self.stage = Stage::Past;
                    return;
                }
                let surplus = tail.len().saturating_sub(self.close.len());
                tail.drain(..surplus);
            }
            Stage::Past => {}
        }
        if let Stage::Inside { tokens, .. } = &self.stage
            && *tokens >= self.most
        {
            self.due.extend(&self.close_ids);
            self.stage = Stage::Past;
        }
    }
}

impl Constraint for Position {
    fn accept(&mut self, id: u32) -> Result<(), String> {
        if let Some(rules) = &mut self.rules {
            rules.accept(id)?;
        }
        match self.due.pop_front() {
            Some(due) if due == id => Ok(()),
            Some(due) => Err(format!("the reasoning must end with the token {due}, and {id} came")),
            None => {
                self.advance(id);
                Ok(())
            }
        }
    }

    fn allowed(&mut self) -> Result<Allowed, String> {
        let Some(&due) = self.due.front() else { return self.rules.as_mut().map_or(Ok(Allowed::All), |rules| rules.allowed()) };
        let mut mask = vec![0; mask_words(self.vocab_size)];
        match mask.get_mut(due as usize / 32) {
            Some(word) => *word |= 1 << (due % 32),
            None => return Err(format!("the vocabulary has no token {due}, with which the reasoning must end")),
        }
        Ok(Allowed::Mask(mask))
    }
}
